"""A checkpoint as files that others read.

    OUT/dense.safetensors         the dense values by the model's names, in its shapes
    OUT/dense-state.safetensors   the optimizer's, NAME/STATE, where it is asked for
    OUT/TABLE.parquet             id, steps, weight (a list); the state likewise; in no order
    OUT/TABLE.safetensors         or so: ids, steps, weight, state.NAME; by id, ascending
    OUT/about.json                what the checkpoint says of itself, and these files by sha256

The folder is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from ..common import finite, paths
from ..common.errors import UsageError
from ..common.pieces import STATE
from ..common.storage import FileRecord
from .checkpoint import Checkpoint
from .rows import Rows, blocks, none_of, rows, write_parquet

FORMS = ("parquet", "safetensors")


def convert(checkpoint: Checkpoint, out: Path, form: str = "parquet", state: bool = False) -> Path:
    """Write a checkpoint into the folder `out`, which must be new or empty; return it.

    `form`: of rows, one of FORMS. `state`: the optimizer's too. Raises UsageError where it cannot
    be written, CheckpointError where the checkpoint is damaged.
    """
    with new_folder(out) as partial:
        files = write(checkpoint, partial, form, state)
        about = {**checkpoint.about, "written": [vars(record) for record in files]}
        (partial / "about.json").write_text(finite.dumps(about, indent=1))
    return out


def check_new(out: Path) -> None:
    """Raise UsageError unless a folder can be made there: it is new, or empty."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} is there already: name a new folder, or an empty one.")
    if why := paths.why_unwritable(out):
        raise UsageError(f"{why}: choose another folder.")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a folder beside `out`, which takes its place if the block ends well; else it is gone.

    Raises UsageError as `check_new`.
    """
    check_new(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write(
    checkpoint: Checkpoint,
    folder: Path,
    form: str,
    state: bool,
    changed: Callable[[Rows], Rows] = lambda found: found,
) -> list[FileRecord]:
    """Write the files of a checkpoint into a folder, as `convert`; return what they are.

    `changed`: makes what is written of rows.
    """
    files = [folder / "dense.safetensors"]
    _save(files[0], checkpoint.dense())
    if state:
        files.append(folder / "dense-state.safetensors")
        named = {f"{tensor}/{name}": v for (tensor, name), v in checkpoint.dense_state().items()}
        _save(files[-1], named)
    for table in checkpoint.spec.tables:
        files.append(folder / f"{quote(table.name, safe='')}.{form}")
        if form == "parquet":
            kept = (
                changed(block if state else _stateless(block))
                for block in blocks(checkpoint, table.name)
            )
            like = none_of(checkpoint, table.name)
            write_parquet(files[-1], kept, changed(like if state else _stateless(like)))
        else:
            save_rows(files[-1], changed(rows(checkpoint, table.name)), state)
    return [record_of(file) for file in files]


def record_of(path: Path) -> FileRecord:
    """Return what a file is."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(path.name, path.stat().st_size, digest)


def save_rows(path: Path, found: Rows, state: bool = True) -> None:
    """Write rows as safetensors: ids, steps, weight, scale if they have one, and state.NAME."""
    arrays: dict[str, NDArray[Any]] = {
        "ids": found.ids,
        "steps": found.steps,
        "weight": found.weight,
    }
    if found.scale is not None:
        arrays["scale"] = found.scale
    if state:
        arrays |= {f"{STATE}{name}": values for name, values in found.state.items()}
    _save(path, arrays, {"table": found.table})


def _stateless(found: Rows) -> Rows:
    return Rows(found.table, found.ids, found.weight, {}, found.steps)


def _save(
    path: Path, arrays: Mapping[str, NDArray[Any]], about: dict[str, str] | None = None
) -> None:
    """Write arrays as safetensors, which others may read: `save_file` lets the owner only."""
    whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    path.write_bytes(safetensors.numpy.save(whole, about))


def write_rows(found: Rows, path: Path) -> None:
    """Write rows into a file whose name ends with one of FORMS, or .npz. Raises UsageError.

    Of rows that were asked for by their keys, Parquet has the keys, too.
    """
    writers: dict[str, Callable[[Path], None]] = {
        ".parquet": found.to_parquet,
        ".safetensors": lambda there: save_rows(there, found.distinct()),
        ".npz": lambda there: _save_npz(there, found.distinct()),
    }
    if path.suffix not in writers:
        raise UsageError(f"--out {path}: name a file that ends with {_or(list(writers))}.")
    paths.check_file(str(path), "--out")
    writers[path.suffix](path)


def _save_npz(path: Path, found: Rows) -> None:
    state: dict[str, Any] = {f"{STATE}{name}": values for name, values in found.state.items()}
    np.savez(path, ids=found.ids, steps=found.steps, weight=found.weight, **state)


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
