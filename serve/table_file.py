"""A table as one file, which is opened by mapping it: nothing is read, sorted or built.

It is safetensors (common/pieces.py), in which the store's own kind of index lies beside the rows:

    buckets  int64[B, 8]     ids and places, as kernels/buckets.py looks into them
    scale    float32[N]      of int8 rows only: what a row's values are multiplied by
    weight   [N, D]          float32, the bits of bfloat16 or float16, or int8

The data begins at a multiple of 64 bytes, so that a bucket is one cache line. A lookup touches one
line of the index and one row for each id. An id that is not there is answered as the job would.

The file may be a stranger's or torn: its header must be that of such a file of its size, and a
place in the index that is no row's is an error. Shape suffixes: N rows, U ids asked for, D values
of a row.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import pieces
from ..common.errors import CheckpointError, UsageError
from ..common.foreign import must_be
from ..common.storage import FileRecord
from ..kernels.buckets import (
    AHEAD,
    BUCKET_NBYTES,
    ENTRIES,
    ROW,
    Shape,
    home_of,
    is_full,
    probe,
    put,
)
from ..kernels.compile import INTEGER, INTS_1D, INTS_1D_IN, compiled, prefetch
from ..nn.initializers import INITIALIZERS, initial_rows
from ..nn.model_spec import DTYPES, MOST_DIM, TableSpec
from .checkpoint import Ids, Values
from .rows import narrowed, rounded, widened

KEPT = (*DTYPES, "int8")  # what a file's rows may be
_TYPES = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.uint16, "int8": np.int8}
_LINE = BUCKET_NBYTES // 8  # int64 of a bucket
_LOAD = 0.6  # entries of all places: that of a server's index
_TAIL = 64  # buckets for what runs over the end; more where it does not do
_BLOCK = 1 << 16  # rows that are converted and written at once
_ABOUT = {"table": {"name": str, "dim": int, "initializer": str}, "seed": int, "homes": int}


@dataclass
class Error:
    """The distance of values from those that they stand for."""

    values: int = 0
    largest: float = 0.0
    total: float = 0.0

    def add(self, exact: NDArray[Any], near: NDArray[Any]) -> None:
        """Take the differences of two arrays of one shape into account."""
        if not exact.size:
            return
        apart = np.abs(exact.astype(np.float64) - near)
        self.values += apart.size
        self.largest = max(self.largest, float(apart.max()))
        self.total += float(apart.sum())

    @property
    def mean(self) -> float:
        return self.total / self.values if self.values else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"values": self.values, "largest": self.largest, "mean": self.mean}


def quantized(rows_ND: Values) -> tuple[NDArray[np.int8], Values]:
    """Return rows as int8, and the scale of each: its largest value is 127."""
    scale = np.abs(rows_ND).max(axis=1, initial=0.0) / np.float32(127)
    safe = np.where(scale > 0, scale, np.float32(1))
    return np.rint(rows_ND / safe[:, None]).astype(np.int8), scale.astype(np.float32)


def kept_as(rows_ND: Values, kept: str) -> Values:
    """Return rows as a file of this kind gives them back. Raises UsageError beyond its range."""
    if kept == "int8":
        whole, scale = quantized(rows_ND)
        return whole * scale[:, None]
    with np.errstate(over="ignore"):
        near = rounded(rows_ND, kept)
    if (beyond := np.isfinite(rows_ND) & ~np.isfinite(near)).any():
        raise UsageError(
            f"a weight of {rows_ND[beyond][0]:.6g} is beyond {kept}: choose float32 or int8 rows"
        )
    return near


def write_table(
    path: Path, spec: TableSpec, seed: int, found: Sequence[pieces.Rows], kept: str
) -> tuple[FileRecord, Error]:
    """Write the rows of a table as one file; return what it is, and how near its values are.

    `kept`: of KEPT. Raises CheckpointError where an id is there twice, UsageError where a value is
    beyond what is kept.
    """
    count = sum(len(block.ids) for block in found)
    if count >= ROW:
        raise UsageError(f"the table {spec.name!r} has {count} rows, and a file holds {ROW - 1}")
    buckets, homes = _indexed(spec, found, count)
    about = {"table": dataclasses.asdict(spec), "seed": seed, "homes": homes, "kept": kept}
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "buckets": (buckets.dtype, buckets.shape),
        **({"scale": (np.dtype(np.float32), (count,))} if kept == "int8" else {}),
        "weight": (np.dtype(_TYPES[kept]), (count, spec.dim)),
    }
    error, digest, nbytes = Error(), hashlib.sha256(), 0
    with open(path, "wb") as file:
        head = np.frombuffer(pieces.head(shapes, about, BUCKET_NBYTES), np.uint8)
        scales = _scales(spec, found) if kept == "int8" else ()
        for part in (head, buckets, *scales, *_weights(spec, found, kept, error)):
            data = memoryview(np.ascontiguousarray(part).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            digest.update(data)
            nbytes += file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(path.name, nbytes, digest.hexdigest()), error


def _blocks(spec: TableSpec, found: Sequence[pieces.Rows]) -> Iterator[tuple[NDArray[Any], Values]]:
    """Yield some rows at a time: as they lie, and as float32."""
    for block in found:
        for first in range(0, len(block.ids), _BLOCK):
            weight = block.weight[first : first + _BLOCK]
            yield weight, widened(weight, spec.dtype)


def _scales(spec: TableSpec, found: Sequence[pieces.Rows]) -> list[Values]:
    return [quantized(rows_ND)[1] for _, rows_ND in _blocks(spec, found)]


def _weights(
    spec: TableSpec, found: Sequence[pieces.Rows], kept: str, error: Error
) -> Iterator[NDArray[Any]]:
    """Yield the rows as the file has them, and add up how far they are from the exact ones."""
    for weight, rows_ND in _blocks(spec, found):
        if kept == spec.dtype:
            error.values += weight.size
            yield weight
        elif kept == "int8":
            whole, scale = quantized(rows_ND)
            error.add(rows_ND, whole * scale[:, None])
            yield whole
        else:
            near = kept_as(rows_ND, kept)
            error.add(rows_ND, near)
            yield near if kept == "float32" else narrowed(near, kept)


def _indexed(spec: TableSpec, found: Sequence[pieces.Rows], count: int) -> tuple[Ids, int]:
    """Return the buckets of all rows, by their places, and how many of these are homes."""
    homes = int(count / (ENTRIES * _LOAD)) + 1
    fill = compiled(_fill, INTEGER, INTEGER, INTEGER, INTS_1D_IN, INTEGER)
    tail = _TAIL
    while True:
        buckets = _lines(homes + tail)
        first = 0
        for block in found:
            ids = np.ascontiguousarray(block.ids)
            stopped = fill(buckets.ctypes.data, homes, len(buckets), ids, first)
            if stopped < 0:
                break
            if stopped < len(ids):
                raise CheckpointError(
                    f"the row {ids[stopped]} of the table {spec.name!r} is there twice: the "
                    "checkpoint is damaged"
                )
            first += len(ids)
        else:
            return buckets, homes
        tail *= 8


def _lines(count: int) -> Ids:
    """Return so many empty buckets at a multiple of their size."""
    memory = np.zeros(_LINE * (count + 1), np.int64)
    skipped = -memory.ctypes.data % BUCKET_NBYTES // 8
    return memory[skipped : skipped + _LINE * count].reshape(count, _LINE)


class TableFile:
    """The rows of one table by id, out of its file. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises CheckpointError where it is none of a table."""
        file = pieces.mapped(path)
        self.path = path
        try:
            self.spec, self.seed, self.kept, self._homes = _told(file.about)
            self._buckets = _array(file, "buckets", np.int64, (None, _LINE))
            self._weight = _array(file, "weight", _TYPES[self.kept], (None, self.spec.dim))
            self._scale = None
            if self.kept == "int8":
                self._scale = _array(file, "scale", np.float32, (len(self._weight),))
            if not 0 < self._homes < len(self._buckets) or self._buckets[-1].any():
                raise ValueError("its index has no end")
            if self._buckets.ctypes.data % BUCKET_NBYTES:
                raise ValueError("its index does not lie by lines")
        except ValueError as error:
            raise CheckpointError(f"{path} is no file of a table: {error}") from error
        self._find = compiled(_find, INTEGER, INTEGER, INTS_1D_IN, INTS_1D)

    def __len__(self) -> int:
        return len(self._weight)

    def known(self, ids_U: Ids) -> NDArray[np.bool_]:
        """Tell of each id whether its row is there."""
        return self.places(ids_U) >= 0

    def places(self, ids_U: Ids) -> Ids:
        """Return the place of each id's row; -1 where there is none. Raises CheckpointError."""
        places_U = np.empty(len(ids_U), np.int64)
        self._find(
            self._buckets.ctypes.data, self._homes, np.ascontiguousarray(ids_U, np.int64), places_U
        )
        if len(ids_U) and places_U.max() >= len(self):
            raise CheckpointError(f"{self.path} is damaged: its index has a place beyond its rows")
        return places_U

    def rows(self, ids_U: Ids) -> Values:
        """Return the rows of these ids: float32[U, D]. Raises CheckpointError."""
        places_U = self.places(ids_U)
        known_U = places_U >= 0
        if known_U.all():
            return self._at(places_U)
        rows_UD = np.empty((len(ids_U), self.spec.dim), np.float32)
        rows_UD[known_U] = self._at(places_U[known_U])
        first = initial_rows(self.seed, self.spec, ids_U[~known_U])
        rows_UD[~known_U] = rounded(first, self.spec.dtype)
        return rows_UD

    def ids(self) -> Ids:
        """Return all ids by their places: this reads the whole index."""
        lines = self._buckets.reshape(-1, 2, ENTRIES)
        words = lines[:, 1].reshape(-1)
        there = words != 0
        ids = np.zeros(len(self), np.int64)
        ids[(words[there] & ROW) - 1] = lines[:, 0].reshape(-1)[there]
        return ids

    def _at(self, places: Ids) -> Values:
        weight: NDArray[Any] = self._weight[places]
        if self._scale is None:
            return widened(weight, self.kept)
        scaled: Values = weight * self._scale[places][:, None]
        return scaled


def _told(about: dict[str, Any]) -> tuple[TableSpec, int, str, int]:
    """Return what a file's header says of its table. Raises ValueError."""
    must_be(about, _ABOUT)
    try:
        spec = TableSpec(**about["table"])
    except TypeError as error:
        raise ValueError(f"its table is not known: {error}") from error
    known = spec.dtype in DTYPES and spec.initializer in INITIALIZERS and about.get("kept") in KEPT
    if not known or not 1 <= spec.dim <= MOST_DIM or type(spec.scale) not in (int, float):
        raise ValueError(f"its table is {about['table']}, kept as {about.get('kept')!r}")
    return spec, about["seed"], about["kept"], about["homes"]


def _array(
    file: pieces.Mapped, name: str, dtype: Any, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Return an array of a file, of this type and shape. Raises ValueError."""
    found = file.tensors.get(name)
    if found is None:
        raise ValueError(f"it has no {name!r}")
    fits = found.ndim == len(shape) and all(
        size in (None, real) for size, real in zip(shape, found.shape, strict=True)
    )
    if found.dtype != dtype or not fits:
        raise ValueError(f"{name} is {found.dtype}{list(found.shape)}")
    return found


# -- Compiled by numba


def _fill(base, homes, count, ids, first):  # type: ignore[no-untyped-def]
    """Enter ids at the places from `first` on.

    Returns how many; less where the next one is there already, -1 where the end is reached.
    """
    shape = Shape(base, np.uint64(homes), np.uint64(homes), np.int64(0))
    last = base + BUCKET_NBYTES * (count - 2)  # the one behind it stays empty
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            prefetch(base + BUCKET_NBYTES * home_of(ids[i + AHEAD], shape))
        if i >= 0:
            home = home_of(ids[i], shape)
            word, _ = probe(base, ids[i], home)
            if word != 0:
                return i
            put(base + BUCKET_NBYTES * home, ids[i], first + i + 1)
            if is_full(last):
                return -1
    return len(ids)


def _find(base, homes, ids, places):  # type: ignore[no-untyped-def]
    shape = Shape(base, np.uint64(homes), np.uint64(homes), np.int64(0))
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            prefetch(base + BUCKET_NBYTES * home_of(ids[i + AHEAD], shape))
        if i >= 0:
            word, _ = probe(base, ids[i], home_of(ids[i], shape))
            places[i] = (word & ROW) - 1
