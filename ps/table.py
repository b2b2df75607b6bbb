"""A dynamic embedding table: int64 ids, float32 rows, made at the first push that names them.

An open-addressing index maps an id to its row number; weight, optimizer state, step counts and ids
stand in columns that grow by doubling, and a row never changes its number. A pull of an unknown id
answers its initial value and makes nothing, so reading never changes what a snapshot holds.

Pins (copy on write, row by row): a pin remembers how many rows there were; before a row is written
for the first time after it, the row's old content is kept with the pin. So a pin costs four bytes a
row and a copy of each row that is then written, and several pins may be open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..nn.initializers import initial_rows
from ..nn.model_spec import TableSpec
from .kernels import INTEGER, INTS_1D, INTS_1D_IN, compiled
from .optimizers import Floats, Ints, Rule

_FIRST_CAPACITY = 1024
_Scalar = TypeVar("_Scalar", np.int64, np.float32)


@dataclass(frozen=True)
class RowBlock:
    """Rows with everything that the next step depends on; state in the rule's order."""

    ids: Ints
    weight: Floats
    state: tuple[Floats, ...]
    steps: Ints

    def select(self, mask: NDArray[np.bool_]) -> RowBlock:
        return RowBlock(
            self.ids[mask],
            self.weight[mask],
            tuple(values[mask] for values in self.state),
            self.steps[mask],
        )


class Table:
    """The rows of one table that this shard owns. Not thread-safe: the store holds the lock."""

    def __init__(self, spec: TableSpec, seed: int, rule: Rule) -> None:
        self.spec = spec
        self._seed = seed
        self._rule = rule
        self._index = IdIndex()
        self._rows = _Columns(spec.dim, len(rule.state))
        self._pins: dict[str, _Pin] = {}

    def __len__(self) -> int:
        return self._rows.size

    @property
    def nbytes(self) -> int:
        """Memory of rows, index and pins, used or reserved."""
        pins = sum(pin.nbytes for pin in self._pins.values())
        return self._rows.nbytes + self._index.nbytes + pins

    def pull(self, ids: Ints, cut: str = "") -> Floats:
        """float32[n, dim]: the rows now, or as they were when `cut` was pinned."""
        rows = self._index.find(ids)
        pin = self._pins[cut] if cut else None
        known = (rows >= 0) & (rows < (pin.size if pin else self._rows.size))
        if known.all():
            return self._weight(rows, pin)
        values = initial_rows(self._seed, self.spec, ids)
        values[known] = self._weight(rows[known], pin)
        return values

    def apply(self, ids: Ints, grads: Floats, lr: float) -> None:
        """One optimizer step of the rows `ids` (unique); rows that are missing are made first."""
        rows = self._make(ids)
        for pin in self._pins.values():
            pin.keep(rows, self._rows)
        columns = self._rows
        self._rule.apply(columns.weight, columns.state, columns.steps, rows, grads, lr)

    def insert(self, block: RowBlock) -> None:
        """Rows from a snapshot. None of them may exist."""
        before = self._rows.size
        rows = self._index.add(block.ids)
        if len(rows) != self._index.size - before:
            raise ValueError(f"table {self.spec.name!r}: a row of the snapshot is there already")
        self._rows.append(block)

    def take_over(self, other: Table, *, keep_state: bool) -> None:
        """All rows of a table with the same ids; state and steps too, or fresh ones."""
        self._index, self._rows = other._index, other._rows
        if not keep_state:
            shape = self._rows.weight.shape
            self._rows.state = [np.full(shape, v, np.float32) for v in self._rule.state.values()]
            self._rows.steps[:] = 0

    def pin(self, cut: str) -> None:
        self._pins[cut] = _Pin(self._rows)

    def unpin(self, cut: str) -> None:
        self._pins.pop(cut, None)

    def pinned_rows(self, cut: str) -> int:
        return self._pins[cut].size

    def block(self, cut: str, start: int, stop: int) -> RowBlock:
        """Rows [start, stop) as they were when `cut` was pinned."""
        pin = self._pins[cut]
        rows = np.arange(start, min(stop, pin.size), dtype=np.int64)
        block = self._rows.take(rows)
        kept = pin.kept_at(rows)
        where = np.flatnonzero(kept >= 0)
        if len(where):
            old = pin.old.take(kept[where].astype(np.int64))
            block.weight[where] = old.weight
            block.steps[where] = old.steps
            for now, before in zip(block.state, old.state, strict=True):
                now[where] = before
        return block

    def _weight(self, rows: Ints, pin: _Pin | None) -> Floats:
        values = self._rows.weight[rows]
        if pin:
            kept = pin.kept_at(rows)
            where = np.flatnonzero(kept >= 0)
            values[where] = pin.old.weight[kept[where]]
        return values

    def _make(self, ids: Ints) -> Ints:
        before = self._rows.size
        rows = self._index.add(ids)
        fresh = ids[rows >= before]  # numbered in the order of `ids`
        if len(fresh):
            shape = (len(fresh), self.spec.dim)
            state = tuple(np.full(shape, v, np.float32) for v in self._rule.state.values())
            weight = initial_rows(self._seed, self.spec, fresh)
            self._rows.append(RowBlock(fresh, weight, state, np.zeros(len(fresh), np.int64)))
        return rows


class _Columns:
    """ids, weight, state and steps of equal length; capacity doubles."""

    def __init__(self, dim: int, num_states: int) -> None:
        self.size = 0
        self.ids = np.empty(0, np.int64)
        self.steps = np.empty(0, np.int64)
        self.weight = np.empty((0, dim), np.float32)
        self.state = [np.empty((0, dim), np.float32) for _ in range(num_states)]

    @property
    def nbytes(self) -> int:
        state_nbytes = sum(array.nbytes for array in self.state)
        return self.ids.nbytes + self.steps.nbytes + self.weight.nbytes + state_nbytes

    def append(self, block: RowBlock) -> None:
        start, end = self.size, self.size + len(block.ids)
        if end > len(self.ids):
            self._grow(max(end, 2 * len(self.ids), _FIRST_CAPACITY))
        self.ids[start:end] = block.ids
        self.steps[start:end] = block.steps
        self.weight[start:end] = block.weight
        for mine, theirs in zip(self.state, block.state, strict=True):
            mine[start:end] = theirs
        self.size = end

    def take(self, rows: Ints) -> RowBlock:
        """A copy of these rows."""
        return RowBlock(
            self.ids[rows],
            self.weight[rows],
            tuple(values[rows] for values in self.state),
            self.steps[rows],
        )

    def _grow(self, capacity: int) -> None:
        self.ids = self._grown(self.ids, capacity)
        self.steps = self._grown(self.steps, capacity)
        self.weight = self._grown(self.weight, capacity)
        self.state = [self._grown(values, capacity) for values in self.state]

    def _grown(self, values: NDArray[_Scalar], capacity: int) -> NDArray[_Scalar]:
        grown = np.empty((capacity, *values.shape[1:]), values.dtype)
        grown[: self.size] = values[: self.size]
        return grown


class _Pin:
    """The rows that have been written since the pin, as they were."""

    def __init__(self, columns: _Columns) -> None:
        self.size = columns.size
        self.old = _Columns(columns.weight.shape[1], len(columns.state))
        self._kept = np.full(self.size, -1, np.int32)  # row -> number in `old`

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes + self.old.nbytes

    def keep(self, rows: Ints, columns: _Columns) -> None:
        """These rows (unique) are about to be written."""
        inside = rows[rows < self.size]
        new = inside[self._kept[inside] < 0]
        if len(new):
            self._kept[new] = np.arange(self.old.size, self.old.size + len(new))
            self.old.append(columns.take(new))

    def kept_at(self, rows: Ints) -> NDArray[np.int32]:
        """By row: its number in `old`, -1 where it has not been written since."""
        return self._kept[rows]


class IdIndex:
    """int64 id -> row number, in order of arrival. Linear probing, at most half full."""

    def __init__(self) -> None:
        self.size = 0
        self._ids = np.empty(2 * _FIRST_CAPACITY, np.int64)
        self._rows = np.full(2 * _FIRST_CAPACITY, -1, np.int64)  # -1: an empty place
        self._find = compiled(_find, INTS_1D_IN, INTS_1D_IN, INTS_1D_IN, INTS_1D)
        self._add = compiled(_add, INTS_1D, INTS_1D, INTS_1D_IN, INTS_1D, INTEGER)
        self._rehash = compiled(_rehash, INTS_1D_IN, INTS_1D_IN, INTS_1D, INTS_1D)

    @property
    def nbytes(self) -> int:
        return self._ids.nbytes + self._rows.nbytes

    def find(self, ids: Ints) -> Ints:
        """Row numbers; -1 where unknown."""
        out = np.empty(len(ids), np.int64)
        self._find(self._ids, self._rows, ids, out)
        return out

    def add(self, ids: Ints) -> Ints:
        """Row numbers; an unknown id gets the next one."""
        capacity = len(self._ids)
        while 2 * (self.size + len(ids)) > capacity:
            capacity *= 2
        if capacity > len(self._ids):
            grown = np.empty(capacity, np.int64), np.full(capacity, -1, np.int64)
            self._rehash(self._ids, self._rows, *grown)
            self._ids, self._rows = grown
        out = np.empty(len(ids), np.int64)
        self.size = int(self._add(self._ids, self._rows, ids, out, self.size))
        return out


# Compiled by numba. A place is the top of a Fibonacci hash mixed once, masked by the capacity.


def _find(keys, rows, ids, out):  # type: ignore[no-untyped-def]
    mask = len(keys) - 1
    for i in range(len(ids)):
        h = np.uint64(ids[i]) * np.uint64(0x9E3779B97F4A7C15)
        place = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(mask))
        while rows[place] >= 0 and keys[place] != ids[i]:
            place = (place + 1) & mask
        out[i] = rows[place]


def _add(keys, rows, ids, out, size):  # type: ignore[no-untyped-def]
    mask = len(keys) - 1
    for i in range(len(ids)):
        h = np.uint64(ids[i]) * np.uint64(0x9E3779B97F4A7C15)
        place = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(mask))
        while rows[place] >= 0 and keys[place] != ids[i]:
            place = (place + 1) & mask
        if rows[place] < 0:
            keys[place] = ids[i]
            rows[place] = size
            size += 1
        out[i] = rows[place]
    return size


def _rehash(old_keys, old_rows, keys, rows):  # type: ignore[no-untyped-def]
    mask = len(keys) - 1
    for i in range(len(old_keys)):
        if old_rows[i] >= 0:
            h = np.uint64(old_keys[i]) * np.uint64(0x9E3779B97F4A7C15)
            place = np.int64((h ^ (h >> np.uint64(32))) & np.uint64(mask))
            while rows[place] >= 0:
                place = (place + 1) & mask
            keys[place] = old_keys[i]
            rows[place] = old_rows[i]
