"""Parts of an export: its folder, tables inside of a program, rows for others, ONNX, the cut."""

from __future__ import annotations

import ast
import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common import finite
from ..common.errors import EdlError, UsageError
from ..common.locations import is_local
from ..common.places import Place
from ..common.ragged import Ragged
from ..common.storage import MANIFEST
from ..data.exact import Values as Given
from . import convert
from .checkpoint import Checkpoint, Ids, Values
from .export_format import Use
from .others import quiet, told_as
from .rows import Lookup, Rows, rows
from .servable import Column
from .table_file import Error, kept_as, quantized
from .tracing import Held

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}  # bytes of a value


class AsHeld:
    """A table as a program has it inside: as near, and zeros for what it has not got."""

    def __init__(self, exact: Lookup, kept: str, whole: bool) -> None:
        self._exact, self._kept, self._whole = exact, kept, whole

    def rows(self, ids_U: Ids) -> Values:
        rows_UD = kept_as(self._exact.rows(ids_U), self._kept)
        if not self._whole:
            rows_UD[~self._exact.known(ids_U)] = 0
        return rows_UD


def held_tables(
    found: Checkpoint,
    uses: Sequence[Use],
    exact: Mapping[str, Lookup],
    kept_of: Callable[[str], str],
    most_nbytes: int,
) -> dict[str, tuple[Held, Error]]:
    """Return the tables that go inside of a program, and how near they are.

    `kept_of`: what rows of a dtype are kept as. A table that was an nn.Embedding has all its rows.
    Raises UsageError where they do not fit.
    """
    made: dict[str, tuple[Held, Error]] = {}
    sizes = {use.table: use.size for use in uses}
    specs = [spec for spec in found.spec.tables if spec.name in sizes]
    counts = {spec.name: sizes[spec.name] or len(exact[spec.name]) for spec in specs}
    nbytes = sum(counts[s.name] * (8 + s.dim * _WIDTHS[kept_of(s.dtype)]) for s in specs)
    if nbytes > most_nbytes:
        raise UsageError(
            f"the tables take {nbytes >> 20} MiB inside of a program, and {most_nbytes >> 20} MiB "
            "are the most (--inside_mib): raise that, or leave them outside (--to torch)"
        )
    for spec in specs:
        kept, size = kept_of(spec.dtype), sizes[spec.name]
        if size:
            ids = np.arange(size)
            weight = exact[spec.name].rows(ids)
        else:
            stored = rows(found, spec.name)
            ids, weight = stored.ids, stored.weight
        error = Error()
        near = kept_as(weight, kept)
        error.add(weight, near)
        if kept == "int8":
            whole, scale = quantized(weight)
            held = Held(None if size else ids, torch.from_numpy(whole), torch.from_numpy(scale))
        else:
            values = torch.from_numpy(near).to(getattr(torch, kept))
            held = Held(None if size else ids, values, None)
        made[spec.name] = held, error
    return made


def rows_kept(found: Rows, kept: str, errors: dict[str, Error]) -> Rows:
    """Return rows as they are written for others, and add up how near they are."""
    error = errors.setdefault(found.table, Error())
    if kept == "float32":
        error.values += found.weight.size
        return found
    error.add(found.weight, kept_as(found.weight, kept))
    if kept == "int8":
        whole, scale = quantized(found.weight)
        return replace(found, weight=whole, scale=scale)  # type: ignore[arg-type]
    return replace(found, weight=found.weight.astype(np.float16))


def cut_of(found: Checkpoint) -> dict[str, Any]:
    """Return which state of its job a checkpoint is.

    `records`: all that had been applied; None where tasks were open.
    """
    books = found.manifest.books
    plan, epochs = books.get("plan") or {}, books.get("epochs_opened")
    is_open = books.get("tasks") or books.get("untouched") or plan.get("max_steps")
    records = None
    if isinstance(epochs, int) and not is_open and plan.get("sources"):
        records = epochs * sum(int(count) for _, count in plan["sources"])
    return {
        "version": found.manifest.version,
        "created": found.manifest.created,
        "epochs": epochs,
        "records": records,
    }


def save_onnx(program: Any, path: Path, inputs: list[str], outputs: list[str]) -> None:
    """Write a program as ONNX, without the inputs that it does not use. Raises UsageError."""
    refused = told_as(UsageError, "torch cannot make ONNX of it", " (--to torch does without)")
    with refused, quiet():
        made = torch.onnx.export(
            program, (), input_names=inputs, output_names=outputs, dynamo=True, verbose=False
        )
    assert made is not None
    for value in [each for each in made.model.graph.inputs if not list(each.uses())]:
        made.model.graph.inputs.remove(value)
    made.save(path, external_data=False)


def json_of(column: Column, values: Given) -> dict[str, Any]:
    """Return a tensor of a request or an answer, as KServe's v2 protocol has it in JSON.

    Raises UnicodeDecodeError for bytes, which JSON has not.
    """
    ragged = values if isinstance(values, Ragged) else None
    array = values if ragged is None else ragged.values
    assert isinstance(array, np.ndarray)
    flat = array.reshape(-1).tolist()
    data: list[Any] = [v.decode() if isinstance(v, bytes) else v for v in flat]
    told: dict[str, Any] = {"name": column.name, "datatype": column.datatype}
    told["shape"] = [*array.shape] if ragged is None else [len(ragged), -1]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        data, said = finite.in_list(flat)
        told["parameters"] = {finite.NOT_FINITE: said}
    if ragged is not None:
        bounds = ragged.offsets.tolist()
        data = [data[a:b] for a, b in itertools.pairwise(bounds)]
    return {**told, "data": data}


def neighbours(path: Path) -> list[str]:
    """Return the modules beside a definition's file that it imports: without them it is not whole.

    Raises SyntaxError, ValueError where it is no Python.
    """
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            if node.level:
                found.add("." * node.level + (node.module or ""))
            names = [node.module or ""]
        for name in names:
            top = path.parent / name.partition(".")[0]
            if top.name and (top.with_suffix(".py").is_file() or top.is_dir()):
                found.add(top.name)
    return sorted(found)


@contextlib.contextmanager
def whole_folder(out: str) -> Iterator[Path]:
    """Give a folder for the files of an export, which are at `out` once the block has ended well.

    At a store the manifest is written last.
    """
    if is_local(out):
        with convert.new_folder(Path(out)) as partial:
            yield partial
        return
    with tempfile.TemporaryDirectory(prefix="edl-export-") as scratch:
        folder = Path(scratch)
        yield folder
        place = Place(out)
        names = sorted(each.name for each in folder.iterdir() if each.name != MANIFEST)
        try:
            for name in (*names, MANIFEST):
                place.write(name, (folder / name).read_bytes())
        except OSError as error:
            raise EdlError(f"cannot write {out}: {error.strerror or error}") from error
