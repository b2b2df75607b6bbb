"""A checkpoint made of values that were trained elsewhere, for a job to begin from.

Dense values come by the model's names, rows by table. The checkpoint is at version 0, of an
optimizer that keeps no state: a job that begins from it has the definition's, afresh.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor, nn

from ..common import paths, pieces, storage
from ..common.errors import UsageError
from ..common.extras import install
from ..model_zoo.catalogue import did_you_mean
from ..model_zoo.spec import Definition
from ..nn.dense import dense_tensors, model_spec
from ..nn.device import others_seeded, seed_step
from ..nn.model_spec import CHUNK_ELEMENTS, ModelSpec, TableSpec
from ..nn.moved import take_first_rows
from ..nn.optimizers import SGD
from ..nn.replace import prepare
from .checkpoint import Ids, Values
from .rows import narrowed

Rows = tuple[Ids, Values]
_SHARD = "shard-00000-of-00001"
_CHUNKS_OF_FILE = 16
_LARGEST = {"float32": 3.4028234e38, "bfloat16": 3.3895313e38, "float16": 65504.0}
_ROWS_NBYTES = 64 << 20  # of a file, as servers write them


@dataclass(frozen=True)
class Given:
    """The files that values come from.

    `dense`: safetensors, a `state_dict()`. `rows`, by table: Parquet (id, weight), or safetensors
    or .npz (ids, weight). `partial`: what `dense` lacks keeps the definition's first values.
    """

    dense: Path | None = None
    rows: Mapping[str, Path] = field(default_factory=dict)
    partial: bool = False


def make(
    definition: Definition, given: Given, out: Path, *, threshold_bytes: int, seed: int
) -> Path:
    """Write a checkpoint into the folder `out`, new or empty; return the checkpoint's own.

    `threshold_bytes`: above it an nn.Embedding is a table. Raises UsageError for each value that
    does not fit, with its name and file.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} is there already: name a new folder, or an empty one.")
    if why := paths.why_unwritable(out):
        raise UsageError(f"{why}: choose another folder.")
    with torch.random.fork_rng(devices=[]):
        seed_step(seed, torch.device("cpu"))
        with others_seeded(seed):
            model = definition.model()
        prepare(model, threshold_bytes)
    first = take_first_rows(model)
    spec = model_spec(model, SGD(lr=0.0), seed)
    tables = {table.name: table for table in spec.tables}
    for name, path in given.rows.items():
        if name not in tables:
            near = did_you_mean(name, list(tables)) or f": its tables are {_words(tables)}"
            raise UsageError(f"{path}: {definition.name} has no table {name!r}{near}.")
    whole = _put_dense(model, tables, given) if given.dense is not None else {}
    directory = storage.version_directory(out, 0)
    directory.mkdir(parents=True)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        files = list(_write(directory, model, spec, given, whole, first))
        storage.write_manifest(
            directory,
            version=0,
            num_shards=1,
            num_slots=1024,
            files=files,
            model=json.loads(spec.to_json()),
        )
        undo.pop_all()
    return directory


def _put_dense(model: nn.Module, tables: Mapping[str, TableSpec], given: Given) -> dict[str, Rows]:
    """Give the model its dense values; return the rows of tables that are among them.

    A table that is an nn.Embedding elsewhere has all of its rows in its weight.
    """
    path = given.dense
    assert path is not None
    try:
        values = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise UsageError(f"{path} cannot be read as safetensors: {error}") from error
    tensors = {name: tensor for name, (tensor, _) in dense_tensors(model).items()}
    others = {*model.state_dict()} - {*tensors}  # integer buffers, which no checkpoint holds
    weights = {f"{name}.weight": table for name, table in tables.items()}
    rows: dict[str, Rows] = {}
    for name, value in values.items():
        if name in tensors:
            _put(path, name, tensors[name], value)
        elif name in weights and (table := weights[name].name) not in given.rows:
            ids = np.arange(len(value), dtype=np.int64)
            rows[table] = _checked(path, weights[name], ids, value.float().numpy())
        elif name not in others and name not in weights:
            near = did_you_mean(name, [*tensors, *weights])
            raise UsageError(f"{path}: the model has no tensor {name!r}{near}.")
    if (lacking := [name for name in tensors if name not in values]) and not given.partial:
        raise UsageError(
            f"{path} lacks {_words(lacking)}: add what is lacking, or --partial, which begins with "
            "the definition's first values of it."
        )
    return rows


@torch.no_grad()
def _put(path: Path, name: str, tensor: Tensor, value: Tensor) -> None:
    if tensor.shape != value.shape:
        raise UsageError(
            f"{path}: {name!r} has the shape {list(value.shape)}, and {list(tensor.shape)} in the "
            "model."
        )
    if not bool(value.isfinite().all()):
        raise UsageError(f"{path}: {name!r} has values that are not finite.")
    tensor.copy_(value)


def _write(
    directory: Path,
    model: nn.Module,
    spec: ModelSpec,
    given: Given,
    whole: Mapping[str, Rows],
    first: Mapping[str, Values],
) -> Iterator[storage.FileRecord]:
    """Write the files of the one shard."""
    chunks = [
        (name, number, part.clone().numpy())
        for name, (tensor, _) in dense_tensors(model).items()
        for number, part in enumerate(
            torch.split(tensor.detach().float().reshape(-1), CHUNK_ELEMENTS)
        )
    ]
    for at in range(0, len(chunks), _CHUNKS_OF_FILE):
        run = chunks[at : at + _CHUNKS_OF_FILE]
        parts = pieces.encode(
            {f"{place}.value": values for place, (*_, values) in enumerate(run)},
            {"chunks": [[name, number, 0, 0] for name, number, _ in run]},
        )
        name = f"{_SHARD}.dense-{at // _CHUNKS_OF_FILE:05d}.safetensors"
        yield storage.write_file(directory / name, *parts)
    for index, table in enumerate(spec.tables):
        if table.name in given.rows:
            found = read_rows(given.rows[table.name], table)
        elif table.name in whole:
            found = whole[table.name]
        else:
            found = np.empty(0, np.int64), np.empty((0, table.dim), np.float32)
        if table.name in first:
            found = _filled_up(found, first[table.name])
        if not len(found[0]):
            continue
        most = max(1, _ROWS_NBYTES // (4 * table.dim + 16))
        for number, at in enumerate(range(0, len(found[0]), most)):
            ids, weight = found[0][at : at + most], found[1][at : at + most]
            kept = weight if table.dtype == "float32" else narrowed(weight, table.dtype)
            steps = np.zeros(len(ids), np.int64)
            tensors = {"ids": ids, "weight": kept, "steps": steps}
            name = f"{_SHARD}.table-{index:03d}-{number:05d}.safetensors"
            parts = pieces.encode(tensors, {"rows": table.name})
            yield storage.write_file(directory / name, *parts)
    books = {"version": 0, "low_water": 0, "ledger": [], "pushes": 0}
    text = json.dumps({"model": json.loads(spec.to_json()), **books})
    yield storage.write_file(directory / f"{_SHARD}.json", text.encode())


def _filled_up(found: Rows, first: Values) -> Rows:
    """Return these rows, and of the ids 0 to n - 1 that are not among them the first values."""
    others = np.setdiff1d(np.arange(len(first)), found[0])
    return np.concatenate([found[0], others]), np.concatenate([found[1], first[others]])


def read_rows(path: Path, table: TableSpec) -> Rows:
    """Read a table's rows: ids int64[n] and float32[n, dim]. Raises UsageError."""
    readers = {".parquet": _parquet, ".safetensors": _safetensors, ".npz": _npz}
    if path.suffix not in readers:
        raise UsageError(f"{path}: rows come from a file .parquet, .safetensors or .npz.")
    try:
        ids, weight = readers[path.suffix](path)
    except KeyError as error:
        raise UsageError(f"{path} has no {error}") from error
    except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise UsageError(f"{path} cannot be read as rows: {error}") from error
    return _checked(path, table, ids, weight)


def _checked(path: Path, table: TableSpec, ids: Any, weight: Any) -> Rows:
    """Return rows as a table has them. Raises UsageError where they are not such."""
    said = f"{path}: the table {table.name!r}"
    if (
        ids.dtype.kind not in "iu"
        or ids.ndim != 1
        or (ids.dtype == np.uint64 and (ids >> 63).any())
    ):
        raise UsageError(f"{said} has ids of {ids.dtype}{list(ids.shape)}, not int64[n].")
    if weight.dtype.kind != "f" or weight.shape != (len(ids), table.dim):
        raise UsageError(
            f"{said} has {len(ids)} ids, and weights of {weight.dtype}{list(weight.shape)} instead "
            f"of float32[{len(ids)}, {table.dim}]."
        )
    distinct, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise UsageError(f"{said} has the id {distinct[counts > 1][0]} more than once.")
    most = _LARGEST[table.dtype]
    if not (fits := (np.abs(weight) <= most).all(axis=1)).all():
        raise UsageError(
            f"{said}: the row {ids[~fits][0]} has values that are not finite, or beyond {most:g}."
        )
    return ids.astype(np.int64), np.ascontiguousarray(weight, np.float32)


def _parquet(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(f"Parquet needs pyarrow: {install('parquet')}") from error
    found = pq.read_table(path)
    for name in ("id", "weight"):
        if name not in found.column_names:
            raise KeyError(name)
        if found[name].null_count:
            raise ValueError(f"{found[name].null_count} values of {name!r} are null")
    ids, weight = found["id"].combine_chunks(), found["weight"].combine_chunks()
    widths = weight.value_lengths().unique().to_pylist() if len(weight) else [0]
    if len(widths) > 1:
        raise ValueError(f"its weights are of {min(widths)} to {max(widths)} values")
    values = weight.flatten().to_numpy(zero_copy_only=False)
    return ids.to_numpy(zero_copy_only=False), values.reshape(len(ids), widths[0])


def _safetensors(path: Path) -> tuple[Any, Any]:
    found = safetensors.numpy.load_file(path)
    return found["ids"], found["weight"]


def _npz(path: Path) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as found:
        return found["ids"], found["weight"]


def _words(names: Any) -> str:
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return (", ".join(listed[:4]) or "none") + more
