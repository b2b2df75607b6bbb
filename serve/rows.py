"""The rows of a table: as arrays for people and programs, and looked up for a model.

A lookup answers what a server would: the row of an id, widened to float32, and of an id that was
never trained the first value that it would be made with, a function of (seed, table, id).

Shape suffixes: N rows, U distinct ids asked for, D row dimension.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import pieces
from ..common.errors import CheckpointError, UsageError
from ..common.extras import install
from ..nn.initializers import initial_rows
from ..nn.model_spec import TableSpec
from .checkpoint import Checkpoint, Ids, Values, open_checkpoint

_NO_PARQUET = f"Parquet needs pyarrow: {install('parquet')}"


@dataclass(frozen=True, repr=False)
class Rows:
    """Rows of a table, by id, ascending.

    `ids` int64[N], `weight` float32[N, D], `state` what the optimizer keeps beside it, by name,
    each float32[N, D] (of a row-wise optimizer [N, 1]); `steps` int64[N], the updates of a row.
    `scale` float32[N]: what a row of int8 is multiplied by; None: weights are as they are.
    `keys` [N]: the raw values that were asked for, and rows are in their order; None: by id.
    """

    table: str
    ids: Ids
    weight: Values
    state: Mapping[str, Values]
    steps: Ids
    scale: Values | None = None
    keys: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        state = f", state {', '.join(self.state)}" if self.state else ""
        return f"<{len(self)} rows of {self.table!r}, dim {self.weight.shape[1]}{state}>"

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table: id, steps, and a list for weight and each state."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise UsageError(_NO_PARQUET) from error
        columns = {"id": pa.array(self.ids), "steps": pa.array(self.steps)}
        if self.keys is not None:
            columns = {"key": pa.array(self.keys.tolist()), **columns}
        for name, values in self._values():
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        if self.scale is not None:
            columns["scale"] = pa.array(self.scale)
        return pa.table(columns)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame by id: steps, weight[0], weight[1], ..., the state likewise."""
        try:
            import pandas as pd
        except ImportError as error:
            raise UsageError("a DataFrame needs pandas: pip install pandas") from error
        columns: dict[str, NDArray[Any]] = {"steps": self.steps}
        if self.keys is not None:
            columns = {"key": self.keys, **columns}
        for name, values in self._values():
            columns |= {f"{name}[{place}]": values[:, place] for place in range(values.shape[1])}
        return pd.DataFrame(columns, index=pd.Index(self.ids, name="id"))

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file, whole or not at all: `to_arrow`'s columns."""
        write_parquet(path, iter([self]), self)

    def take(self, places: NDArray[np.int64], keys: NDArray[Any] | None) -> Rows:
        """Return the rows at these places, which are those of the keys."""
        return replace(
            self,
            ids=self.ids[places],
            weight=self.weight[places],
            state={name: values[places] for name, values in self.state.items()},
            steps=self.steps[places],
            scale=None if self.scale is None else self.scale[places],
            keys=keys,
        )

    def distinct(self) -> Rows:
        """Return each row once, by id: several keys may have one."""
        return self.take(np.unique(self.ids, return_index=True)[1], None)

    def _values(self) -> list[tuple[str, Values]]:
        return [("weight", self.weight), *((f"state.{n}", v) for n, v in self.state.items())]


def rows(
    checkpoint: str | Path | Checkpoint,
    table: str,
    ids: Sequence[int] | None = None,
    *,
    keys: Sequence[Any] | None = None,
    column: str = "",
    field: str = "",
) -> Rows:
    """Return the rows of a checkpoint's table; `ids`: those of these that are there.

    `keys`: those of these raw values, in their order. Their ids are made as the definition's
    `raw_keys()` says, or are hash64(field, values of the column), which both are the table's name
    unless said otherwise.

    `checkpoint`: a path, or a job's name or folder, as `load`. Raises EdlError: there is none that
    is whole, or no such table in it.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint)
    if keys is not None:
        if ids is not None:
            raise UsageError("ids and keys: give one of both.")
        return _of_keys(checkpoint, table, keys, column, field)
    if column or field:
        raise UsageError("column and field say how ids are made of keys: give keys.")
    wanted = None if ids is None else np.asarray(ids, np.int64)
    spec = checkpoint.table(table)
    found = [_selected(spec, block, wanted) for block in checkpoint.rows(table)]
    found = [block for block in found if len(block)] or [_none(spec, found)]
    joined = np.concatenate([block.ids for block in found])
    order = np.argsort(joined)
    _check_unique(spec, joined[order])
    return Rows(
        table,
        joined[order],
        np.concatenate([block.weight for block in found])[order],
        {n: np.concatenate([b.state[n] for b in found])[order] for n in found[0].state},
        np.concatenate([block.steps for block in found])[order],
    )


def _of_keys(
    checkpoint: Checkpoint, table: str, keys: Sequence[Any], column: str, field: str
) -> Rows:
    from .keys import ids_of, objects, unknown

    if isinstance(keys, str | bytes):
        raise UsageError(f"keys is a list of raw values, not the text {keys!r:.60}.")
    wanted, way = ids_of(checkpoint, table, keys, column, field)
    found = rows(checkpoint, table, np.unique(wanted).tolist())
    there = np.isin(wanted, found.ids)
    if len(keys) and not there.any() and not way.is_known:
        raise unknown(table, way)
    return found.take(np.searchsorted(found.ids, wanted[there]), objects(keys)[there])


def blocks(checkpoint: Checkpoint, table: str) -> Iterator[Rows]:
    """Yield the rows of a table file by file, not sorted: no more than a file is in memory."""
    spec = checkpoint.table(table)
    for block in checkpoint.rows(table):
        yield _selected(spec, block, None)


def none_of(checkpoint: Checkpoint, table: str) -> Rows:
    """Return a table's rows without any row."""
    spec, found = checkpoint.table(table), checkpoint.rows(table)
    return _none(spec, [_selected(spec, found[0], np.zeros(0, np.int64))] if found else [])


def _selected(spec: TableSpec, block: pieces.Rows, wanted: Ids | None) -> Rows:
    which: Any = slice(None) if wanted is None else np.isin(block.ids, wanted)
    state = {name: values[which] for name, values in block.state.items()}
    weight = widened(block.weight[which], spec.dtype)
    return Rows(spec.name, block.ids[which], weight, state, block.steps[which])


def _none(spec: TableSpec, like: Sequence[Rows]) -> Rows:
    empty, ids = np.zeros((0, spec.dim), np.float32), np.zeros(0, np.int64)
    state = {name: values[:0] for name, values in (like[0].state if like else {}).items()}
    return Rows(spec.name, ids, empty, state, ids)


def _check_unique(spec: TableSpec, sorted_ids: Ids) -> None:
    if len(twice := np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])):
        raise CheckpointError(
            f"the row {sorted_ids[twice[0]]} of the table {spec.name!r} is there twice: the "
            "checkpoint is damaged"
        )


def write_parquet(path: str | Path, found: Iterator[Rows], like: Rows) -> None:
    """Write rows as a Parquet file, a row group for each part, whole or not at all."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(_NO_PARQUET) from error
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with pq.ParquetWriter(partial, like.to_arrow().schema) as writer:
            for part in found:
                writer.write_table(part.to_arrow())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def widened(weight: NDArray[Any], dtype: str) -> Values:
    """Return the float32 of a table's values, which may be the bits of 16-bit rows."""
    if dtype == "float32":
        return weight
    if dtype == "float16":
        return weight.view(np.float16).astype(np.float32)
    return (weight.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Values, dtype: str) -> NDArray[np.uint16]:
    """Return the bits that a table of 16-bit rows keeps of these values."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits: NDArray[np.uint16] = (rounded(values, dtype).view(np.uint32) >> 16).astype(np.uint16)
    return bits


def rounded(values: Values, dtype: str) -> Values:
    """Return values as a table of this type would keep them: rounded to the nearest, ties to even.

    Of finite values.
    """
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32)


class Lookup:
    """The rows of one table by id, out of files that are mapped.

    In memory are the ids, sorted, and the place of each: 16 bytes a row. Threads may share it.
    """

    def __init__(self, spec: TableSpec, seed: int, found: Sequence[pieces.Rows]) -> None:
        """Sort the ids. Raises CheckpointError where one is there twice."""
        self.spec = spec
        self._seed = seed
        self._weights = [block.weight for block in found]
        self._first = np.cumsum([0, *(len(block.ids) for block in found)])  # of each file, a place
        ids = np.concatenate([np.zeros(0, np.int64), *(block.ids for block in found)])
        self._places = np.argsort(ids)
        self._ids = ids[self._places]
        _check_unique(spec, self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def known(self, ids_U: Ids) -> NDArray[np.bool_]:
        """Tell of each id whether its row is there."""
        return self._find(ids_U)[0]

    def rows(self, ids_U: Ids) -> Values:
        """Return the rows of these ids: float32[U, D]."""
        rows_UD = np.empty((len(ids_U), self.spec.dim), np.float32)
        known_U, places = self._find(ids_U)
        self._gather(places, np.flatnonzero(known_U), rows_UD)
        if not known_U.all():
            first = initial_rows(self._seed, self.spec, ids_U[~known_U])
            rows_UD[~known_U] = rounded(first, self.spec.dtype)
        return rows_UD

    def _find(self, ids_U: Ids) -> tuple[NDArray[np.bool_], Ids]:
        """Return which ids are there, and the places of those, of all files."""
        if not len(self):
            return np.zeros(len(ids_U), np.bool_), np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids_U), len(self) - 1)
        known_U = self._ids[at] == ids_U
        return known_U, self._places[at[known_U]]

    def _gather(self, places: Ids, into: Ids, rows_UD: Values) -> None:
        """Write the rows at these places of all files to `into` of the answer."""
        files = np.searchsorted(self._first, places, side="right") - 1
        for file in np.unique(files).tolist():
            mine = files == file
            weight = self._weights[file][places[mine] - self._first[file]]
            rows_UD[into[mine]] = widened(weight, self.spec.dtype)
