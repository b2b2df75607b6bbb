"""A dynamic embedding table: int64 ids, rows made at the first push that names them.

A pull of an unknown id answers its initial value and makes nothing, so reading never changes what
a snapshot holds.

Any number of threads may pull and push at the same time: they share the table's lock, kernels run
without the GIL, and a push has each row for itself while it is at it (ps/rows/passes.py), so no
update is lost. Who makes rows, pins or restores has the lock alone. A pull beside a push may see a
row half updated; a pull of a cut never does.

Pins (copy on write, row by row): a pin remembers how many rows there were; before a row is written
for the first time after it, the row's old content is kept with the pin. So a pin costs four bytes a
row, lazily, and a copy of each row that is then written, and several pins may be open.

A recovery snapshot pins too, and the pin begins a new generation of marks (ps/rows/passes.py).
`touched` then tells which rows were written between its pin and the one before: those that still
have the old mark and those that the pin had to keep while they had it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...nn.initializers import initial_rows
from ...nn.model_spec import TableSpec
from .halves import narrowed, widened
from .index import MANY, STEPS
from .lock import SharedLock
from .memory import Memory
from .optimizers import Floats, Ints, Rule
from .rows import Rows, Weights

_RUN = 4096  # rows copied in one go: nobody waits longer for the lock


@dataclass(frozen=True)
class RowBlock:
    """Rows with everything that the next step depends on; state in the rule's order.

    `weight` is float32[n, dim], of a 16-bit table its uint16 bits.
    """

    ids: Ints
    weight: Weights
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
    """The rows of one table that this shard owns. Every public method may be called at any time."""

    def __init__(self, spec: TableSpec, seed: int, rule: Rule) -> None:
        self.spec = spec
        self.wire_dtype = np.dtype(np.float32 if spec.dtype == "float32" else np.uint16)
        self.seed = seed
        self._rule = rule
        self._rows = Rows(spec, rule)
        self._pins: dict[str, _Pin] = {}
        self._lock = SharedLock()
        self._initial(np.empty(0, np.int64))  # the last kernel is compiled

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Return the memory in use by rows, index and pins."""
        return self._rows.nbytes + sum(pin.nbytes for pin in list(self._pins.values()))

    def rows_and_lock(self) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows and the lock's word, for kernels that read rows by themselves.

        They then share the lock by that word.
        """
        return self._rows, self._lock.word

    def pull(self, ids: Ints, cut: str = "") -> Floats:
        """Return the rows now, or as they were when `cut` was pinned: float32[n, dim]."""
        shape = len(ids), self.spec.dim
        if self.wire_dtype == np.uint16:
            bits = np.empty(shape, np.uint16)
            self.gather(ids, bits, cut)
            return widened(bits, self.spec.dtype)
        out = np.empty(shape, np.float32)
        self.gather(ids, out, cut)
        return out

    def gather(self, ids: Ints, out: Weights, cut: str = "") -> None:
        """Write the rows that `pull` returns into out[n, dim], of `wire_dtype`.

        That is float32, or the bits of a 16-bit table.
        """
        with self._lock:
            unknown = self._rows.gather(ids, out)
            if cut:
                unknown = self._pins[cut].correct(ids, out, self._rows)
        if len(unknown):
            out[unknown] = self._initial(ids[unknown])

    def apply(self, ids: Ints, grads: Floats, lr: float) -> None:
        """Make one optimizer step of the rows `ids` (unique) with grads[n, dim].

        Missing rows are made.

        MemoryError, before anything is changed, where there may be no room for them.
        """
        constants = self._rule.constants(lr)
        if constants is None:
            return self._make(ids)
        self.check_room(len(ids))
        grads = self._rule.prepared(grads)
        while True:
            unknown, busy = self._pass(constants, ids, grads)
            if len(unknown):
                self._make(ids[unknown])
            elif len(busy):
                os.sched_yield()  # another thread is at these rows
            else:
                return None
            again = np.concatenate([unknown, busy])
            ids, grads = ids[again], grads[again]

    def check_room(self, count: int) -> None:
        """Raise MemoryError where `count` more rows may not have room."""
        self._rows.check_room(count)

    def _pass(self, constants: Floats, ids: Ints, grads: Floats) -> tuple[Ints, Ints]:
        """Apply to the rows, after the pins have got what is theirs."""
        with self._lock:
            if not self._pins:
                return self._rows.apply(constants, ids, grads)
        with self._lock.alone() as share:
            rows = self._rows.index.find(ids)
            for pin in self._pins.values():
                pin.keep(ids, rows, self._rows)
            share()
            return self._rows.apply(constants, ids, grads)

    def make(self, ids: Ints, weight: Floats) -> None:
        """Make rows of these first values, float32[n, dim]; those that are there are left alone.

        `ids` are unique. MemoryError, before anything is changed, where there may be no room.
        """
        self.check_room(len(ids))
        for start in range(0, len(ids), MANY):
            piece = slice(start, start + MANY)
            values = weight[piece]
            half = self.wire_dtype == np.uint16
            self._append(ids[piece], narrowed(values, self.spec.dtype) if half else values)

    def has(self, ids: Ints) -> bool:
        """Tell whether all of these rows have been made."""
        with self._lock:
            return bool((self._rows.index.find(ids) >= 0).all())

    def _make(self, ids: Ints) -> None:
        for start in range(0, len(ids), MANY):
            piece = ids[start : start + MANY]
            self._append(piece, self._initial(piece))

    def _append(self, ids: Ints, weight: Weights) -> None:
        """Append those of the rows that are not there."""
        with self._lock.alone():
            new = self._rows.index.find(ids) < 0  # another thread may have been faster
            self._rows.append(ids[new], weight[new], list(self._rule.state.values()))

    def _initial(self, ids: Ints) -> Weights:
        values = initial_rows(self.seed, self.spec, ids)
        return values if self.wire_dtype == np.float32 else narrowed(values, self.spec.dtype)

    def insert(self, block: RowBlock) -> None:
        """Insert rows from a snapshot, of which none may exist."""
        with self._lock.alone():
            if (self._rows.index.find(block.ids) >= 0).any():
                raise ValueError(
                    f"table {self.spec.name!r}: a row of the snapshot is there already"
                )
            self._rows.append(block.ids, block.weight, block.state)
            self._rows.index.set_steps(block.ids, block.steps)

    def put(self, block: RowBlock) -> None:
        """Put rows from a snapshot in place of those that are there.

        Their ids are unique.
        """
        with self._lock.alone():
            numbers = self._rows.index.find(block.ids)
        there = numbers >= 0
        if not there.all():
            self.insert(block.select(~there))
        with self._lock.alone():
            block, numbers = block.select(there), numbers[there]
            self._rows.weight[numbers] = block.weight
            for mine, theirs in zip(self._rows.state, block.state, strict=True):
                mine[numbers] = theirs
            self._rows.index.set_steps(block.ids, block.steps)

    def take_over(self, other: Table, *, keep_state: bool) -> None:
        """Take all rows of a table with the same ids; state and steps too, or fresh ones."""
        with self._lock.alone():
            if keep_state:
                self._rows, self._lock = other._rows, other._lock
                return
            theirs, state = other._rows, list(self._rule.state.values())
            for start in range(0, len(theirs), MANY):
                piece = slice(start, min(start + MANY, len(theirs)))
                self._rows.append(theirs.ids[piece], theirs.weight[piece], state)

    def pin(self, cut: str, *, mark: bool = False) -> None:
        """Pin the rows as they are, for the cut.

        mark: what is written from now on is `touched` at the next such pin.
        """
        with self._lock.alone():
            old = self._rows.change_mark() if mark else 0
            self._pins[cut] = _Pin(len(self._rows), self._rows, old)

    def unpin(self, cut: str) -> None:
        with self._lock.alone():
            self._pins.pop(cut, None)

    def pinned_rows(self, cut: str) -> int:
        return self._pins[cut].size

    def written_since(self, cut: str) -> Ints:
        """Return, in order, the numbers of the rows written since a pin, but for new ones."""
        with self._lock:
            return np.sort(self._pins[cut].kept_numbers())

    def block(self, cut: str, start: int, stop: int) -> RowBlock:
        """Return rows [start, stop) as they were when `cut` was pinned."""
        return self.rows(cut, np.arange(start, min(stop, self._pins[cut].size)))

    def rows(self, cut: str, numbers: Ints) -> RowBlock:
        """Return the rows of these numbers as they were when `cut` was pinned."""
        rows, n = self._rows, len(numbers)
        ids, tags, raw = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, rows.raw.dtype)
        for start in range(0, n, _RUN):
            piece = slice(start, start + _RUN)
            with self._lock:
                pin = self._pins[cut]
                rows.copy(numbers[piece], ids[piece], raw[piece])
                tags[piece] = rows.index.tags(ids[piece])
                where, number = pin.kept_at(numbers[piece])
                raw[piece][where], tags[piece][where] = pin.raw[number], pin.tags[number]
        weight, state = rows.views(raw)
        copies = tuple(np.ascontiguousarray(values) for values in state)
        return RowBlock(ids, weight.copy(), copies, tags >> STEPS)

    def touched(self, cut: str) -> Ints:
        """Return, in order, the numbers of the rows written between the last two pins with a mark.

        `cut` is the last of them. Once only: the marks are taken away.
        """
        pin = self._pins[cut]
        is_touched = np.zeros(pin.size, np.bool_)
        start = None
        while start != 0:
            with self._lock:
                found, start = self._rows.index.collect(start or 0, pin.mark)
            is_touched[found] = True
        with self._lock:
            is_touched[pin.kept_marked()] = True
        return np.flatnonzero(is_touched)


class _Pin:
    """The rows that have been written since the pin, as they were."""

    def __init__(self, size: int, rows: Rows, mark: int) -> None:
        """Begin a pin; `mark` is that of the rows that were written since the pin before."""
        self.size, self.mark = size, mark
        self._memory = Memory(rows.raw.dtype.itemsize, max(size, 1))
        self.raw: NDArray[np.void] = np.ndarray(size, rows.raw.dtype, self._memory.bytes)
        self.tags: Ints = np.empty(size, np.int64)
        self._numbers: Ints = np.empty(size, np.int64)
        self._count = 0
        self._kept = np.zeros(size, np.uint32)  # row -> number among the kept, plus one

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes + self._count * (self.raw.itemsize + 16)

    def keep(self, ids: Ints, numbers: Ints, rows: Rows) -> None:
        """Keep these rows (unique; -1: none), which are about to be written."""
        inside = np.flatnonzero((numbers >= 0) & (numbers < self.size))
        new = inside[self._kept[numbers[inside]] == 0]
        if not len(new):
            return
        kept = slice(self._count, self._count + len(new))
        rows.copy(numbers[new], np.empty(len(new), np.int64), self.raw[kept])
        self.tags[kept] = rows.index.tags(ids[new])
        self._numbers[kept] = numbers[new]
        self._kept[numbers[new]] = np.arange(kept.start + 1, kept.stop + 1)
        self._count = kept.stop

    def kept_numbers(self) -> Ints:
        """Return the rows that have been kept, in no order."""
        return self._numbers[: self._count]

    def kept_marked(self) -> Ints:
        """Return the rows that had the mark when they were kept."""
        marked: NDArray[np.bool_] = self.tags[: self._count] & self.mark != 0
        return self._numbers[: self._count][marked]

    def kept_at(self, rows: Ints | slice) -> tuple[Ints, Ints]:
        """Return which of these rows have been written since, and their numbers among the kept."""
        kept = self._kept[rows]
        where = np.flatnonzero(kept)
        return where, kept[where].astype(np.int64) - 1

    def correct(self, ids: Ints, out: Weights, rows: Rows) -> Ints:
        """Make of the weights now those at the pin, and return the places of ids unknown then."""
        numbers = rows.index.find(ids)
        unknown = (numbers < 0) | (numbers >= self.size)
        there = np.flatnonzero(~unknown)
        where, number = self.kept_at(numbers[there])
        weight, _ = rows.views(self.raw[number])
        out[there[where]] = weight
        return np.flatnonzero(unknown)
