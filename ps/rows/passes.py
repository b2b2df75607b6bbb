"""The rows of a table: weight and optimizer state side by side, and the kernels that pass over them.

A row is `weight | state | state ...` in one reservation (ps/rows/memory.py): one run of cache lines, read
and written in one pass. Its id stands in a column beside, which only inserts and snapshots touch;
its updates so far in its entry in the index, which a push has at hand anyway.

`gather` passes over a thousand ids twice: find the rows, with the lines of the index asked for some
ids ahead, and those that overflowed into another bucket behind all the others; copy them, with
theirs asked for some rows ahead. `apply` takes its ids one by one through four stages, some ids
apart: hash the id and ask for the line of the index; find the row; ask for its lines; update it. So
cache misses overlap, with each other and with the arithmetic.
(Measured otherwise: a gather in blocks takes a quarter longer. An update in blocks of 16 ids asks
for more lines at once than a core can have on their way, and stands still meanwhile: 1.04 to 1.3
times the time, most where rows are wide. One that asks for a row's lines as soon as it is found
takes 1.05 to 1.15 times the time: their addresses are not known yet, and a core has little room for
what waits.) Each rule has an `apply` of its own, and each width of a few whole lanes of float32,
which are constants there, has both: no loops and no choices.

Several threads may apply at once. The lowest bit of a row's book says that one is at it: a row that
is taken is passed over and listed, and the caller comes back for it, so that nobody
waits while he holds a row, and no update is lost.

The next two bits mark what has been written since a snapshot. There are two, so that a snapshot can
begin by making the other one current: the rows of the one before are then collected while pushes go
on. An update sets the current mark and takes the other away: a row that has still to be collected
is kept by the snapshot's pin first, with its book (ps/rows/table.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    BYTES_1D,
    FLOATS_1D,
    FLOATS_2D,
    FLOATS_2D_IN,
    INTS_1D,
    INTS_1D_IN,
    compiled,
    inlined,
    load_integer,
    load_word,
    prefetch,
    release_word,
    set_bit,
)
from ...kernels.lanes import WIDTH, copy_2, copy_4, copy_32
from ...nn.model_spec import TableSpec
from .halves import FLOAT32, KINDS, narrow, widen
from .index import (
    AHEAD,
    BOOK,
    BUCKET_NBYTES,
    COLOUR,
    MANY,
    OTHER,
    ROW,
    STEPS,
    Index,
    Ints,
    home_of,
    look,
    probe,
    shape_of,
)
from .memory import Memory, physical_nbytes
from .optimizers import Floats, Rule, constants_of, step
from .work import Work

_LINE = 64
_MOST_ROWS = 2**32 - 2
_PUSH_AHEAD = 16  # rows that are asked for before they are updated, fewer where they are long
_PUSH_AHEAD_NBYTES = 4 << 10  # of them
_FOUND_AHEAD = 4  # rows that are found before they are asked for
_RING = 32  # ids: a power of two, at least _PUSH_AHEAD + _FOUND_AHEAD
TILE = 1024  # ids that are found before their rows are copied
_COPY_AHEAD = 16  # rows that are asked for before they are copied
_PIECE = 4096  # rows that one thread applies at a time: some 0.2 ms
_NONE = np.empty(0, np.int64)
_MOST_FROZEN = 128  # floats of a row for which there are kernels of their own
_BITS_2D = types.Array(types.uint16, 2, "C")
Weights = NDArray[np.float32] | NDArray[np.uint16]
_STEP = 1 << STEPS
_MOST = -_STEP & 0xFFFFFFFF  # a book of as many steps as can be
# of `layout`
STRIDE, NBYTES, WEIGHT_NBYTES, STATE, DIM, KIND, STOCHASTIC, LAG, MARK = range(9)


class Rows:
    """Rows by number, which never changes, and the index of their ids."""

    def __init__(self, spec: TableSpec, rule: Rule) -> None:
        num_states = len(rule.state)
        kind = KINDS[spec.dtype]
        item = np.dtype(np.float32 if kind == FLOAT32 else np.uint16)
        weight_nbytes = spec.dim * item.itemsize
        state = -(-weight_nbytes // 4) * 4
        nbytes = state + 4 * spec.dim * num_states
        stride = _stride(nbytes)
        lag = max(4, min(_PUSH_AHEAD, _PUSH_AHEAD_NBYTES // nbytes))
        random = spec.rounding == "stochastic"
        self.layout = np.array(
            [stride, nbytes, weight_nbytes, state, spec.dim, kind, random, lag, COLOUR], np.int64
        )
        self._memory = Memory(stride, min(_MOST_ROWS, physical_nbytes() // stride))
        self.memory = self._memory.bytes
        self.most = len(self.memory) // stride
        self._id_memory = Memory(8, self.most)
        self.ids: Ints = self._id_memory.bytes.view(np.int64)
        self.index = Index(min(self.most, len(self.ids)))
        self.raw: NDArray[np.void] = np.ndarray(self.most, f"V{nbytes}", self.memory, 0, stride)
        self._item, self._num_states, self._by_step = item, num_states, rule.by_step
        self.weight, self.state = self.views(self.raw)
        table = (INTS_1D, INTS_1D, INTS_1D, BYTES_1D)
        weights = FLOATS_2D if kind == FLOAT32 else _BITS_2D
        usual = kind == FLOAT32 and spec.dim % WIDTH == 0 and spec.dim <= _MOST_FROZEN
        gather = _gather_of(weight_nbytes if usual else 0)
        self._gather = compiled(gather, *table, INTS_1D_IN, weights, INTS_1D)
        push = (INTS_1D_IN, FLOATS_2D_IN, FLOATS_1D, FLOATS_2D, INTS_1D)
        apply = _apply_of(rule.kind, num_states, spec.dim if usual else 0)
        self._apply = compiled(apply, *table, *push)
        self._copy = compiled(_copy, BYTES_1D, INTS_1D, INTS_1D, INTS_1D_IN, INTS_1D, BYTES_1D)

    def views(self, raw: NDArray[np.void]) -> tuple[Weights, list[Floats]]:
        """The weight and each state in rows like those of `raw`, each [n, dim]."""
        at, dim = int(self.layout[STATE]), int(self.layout[DIM])
        offsets = [at + 4 * dim * k for k in range(self._num_states)]
        parts = [(self._item, (dim,)), *[(np.float32, (dim,))] * self._num_states]
        names = [str(k) for k in range(len(parts))]
        kind = np.dtype(
            {
                "names": names,
                "formats": parts,
                "offsets": [0, *offsets],
                "itemsize": raw.dtype.itemsize,
            }
        )
        weight, *state = (raw.view(kind)[name] for name in names)
        return weight, state

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Memory in use, by rows, ids and index."""
        return len(self) * (int(self.layout[STRIDE]) + 8) + self.index.nbytes

    def check_room(self, count: int) -> None:
        """MemoryError where `count` more rows may not have room."""
        if len(self) + count > self.most:
            raise MemoryError(f"{len(self):,} rows, and {count:,} more: the machine has no memory")

    def append(self, ids: Ints, weight: Weights, state: Sequence[Floats | float]) -> None:
        """New rows, whose ids are unique and unknown, of no updates."""
        self.check_room(len(ids))
        new, many = slice(len(self), len(self) + len(ids)), len(ids) > MANY
        self._memory.use(new.stop * int(self.layout[STRIDE]), wait=many)
        self._id_memory.use(new.stop * 8, wait=many)
        self.ids[new], self.weight[new] = ids, weight
        for mine, theirs in zip(self.state, state, strict=True):
            mine[new] = theirs
        self.index.add(ids)

    def change_mark(self) -> int:
        """Updates from now on leave another mark; the one so far. No update may be under way."""
        before = int(self.layout[MARK])
        self.layout[MARK] = OTHER if before == COLOUR else COLOUR
        return before

    def copy(self, numbers: Ints, ids: Ints, raw: NDArray[np.void]) -> None:
        """The rows of these numbers, and their ids, into arrays of the same length."""
        self._copy(self.memory, self.layout, self.ids, numbers, ids, raw.view(np.uint8))

    def gather(self, ids: Ints, out: Weights) -> Ints:
        """The weights of `ids` into out[n, dim]; the places of those that are unknown."""
        unknown = np.empty(len(ids), np.int64)
        index = self.index
        count = self._gather(index.lines, index.head, self.layout, self.memory, ids, out, unknown)
        return unknown[:count]

    def apply(self, constants: Floats, ids: Ints, grads: Floats) -> tuple[Ints, Ints]:
        """One step of the rows `ids` with grads[n, dim]; the places of those that are unknown, and
        of those that another thread is at. A core that is free takes its share of many."""
        if len(ids) < 2 * _PIECE:
            return self._apply_some(constants, ids, grads)
        starts = range(0, len(ids) - _PIECE + 1, _PIECE)
        stops = [*starts[1:], len(ids)]
        left: list[tuple[Ints, Ints]] = [(_NONE, _NONE)] * len(starts)

        def apply(number: int) -> None:
            start, stop = starts[number], stops[number]
            unknown, busy = self._apply_some(constants, ids[start:stop], grads[start:stop])
            left[number] = start + unknown, start + busy

        with Work([functools.partial(apply, number) for number in range(len(starts))]):
            pass
        unknown, busy = zip(*left, strict=True)
        return np.concatenate(unknown), np.concatenate(busy)

    def _apply_some(self, constants: Floats, ids: Ints, grads: Floats) -> tuple[Ints, Ints]:
        """`apply`, by this thread."""
        left = np.empty(len(ids), np.int64)
        index = self.index
        unknown, busy = self._apply(
            index.lines,
            index.head,
            self.layout,
            self.memory,
            ids,
            grads,
            constants,
            self._by_step,
            left,
        )
        return left[:unknown], left[len(left) - busy :]


def place_rows(rows: Floats, places: Ints, target: Floats) -> None:
    """target[places] = rows, all of them float32[n, dim], in a third of numpy's time.

    Raises ValueError where the shapes do not fit. `places` must be of the target.
    """
    if rows.shape != (len(places), target.shape[1]):
        raise ValueError(f"rows {rows.shape} for {len(places)} places of {target.shape[1]} values")
    _place_kernel()(np.ascontiguousarray(rows), places, target)


def _stride(nbytes: int) -> int:
    """Whole cache lines, or a whole part of one, where that is at most a quarter more."""
    whole = 1 << (nbytes - 1).bit_length() if nbytes < _LINE else -(-nbytes // _LINE) * _LINE
    return whole if 4 * whole <= 5 * nbytes else nbytes


# -- Compiled by numba


@inlined
def row_at(word, first, stride):  # type: ignore[no-untyped-def]
    """The address of the row of an index entry's word (not 0)."""
    return first + ((word & ROW) - 1) * stride


@inlined
def prefetch_row(address, nbytes):  # type: ignore[no-untyped-def]
    for at in range(0, nbytes, _LINE):
        prefetch(address + at)
    if nbytes & (_LINE - 1):  # whole lines begin with one (_stride)
        prefetch(address + nbytes - 1)


@inlined
def copy_row(source, target, nbytes):  # type: ignore[no-untyped-def]
    at = 0
    while at + 32 <= nbytes:
        copy_32(source + at, target + at)
        at += 32
    if at < nbytes:
        if at > 0:
            copy_32(source + nbytes - 32, target + nbytes - 32)
        else:
            while at + 4 <= nbytes:
                copy_4(source + at, target + at)
                at += 4
            if at < nbytes:
                copy_2(source + at, target + at)


@inlined
def gather_rows(  # type: ignore[no-untyped-def]
    base, old, new, cursor, first, stride, nbytes, asked, n, target, rows, homes, unknown
):
    """Copy the weights of the n ids at `asked`, `nbytes` each, to `target`. Into `unknown` int64[n]
    go the places of those that are not there, and how many is returned. `rows` int64[min(n, TILE)]
    and `homes` int64[AHEAD] are memory to work in."""
    unknowns = 0
    for i in range(min(n, AHEAD)):
        homes[i] = home_of(load_integer(asked + 8 * i), old, new, cursor)
        prefetch(base + BUCKET_NBYTES * homes[i])
    for start in range(0, n, TILE):
        stop = min(start + TILE, n)
        late = end = unknowns  # unknown[late:end]: not at home, so far
        for i in range(start, stop):
            home = homes[i & (AHEAD - 1)]
            if i + AHEAD < n:
                later = home_of(load_integer(asked + 8 * (i + AHEAD)), old, new, cursor)
                prefetch(base + BUCKET_NBYTES * later)
                homes[i & (AHEAD - 1)] = later
            word, _ = look(base + BUCKET_NBYTES * home, load_integer(asked + 8 * i))
            # without a branch, which would be guessed wrong: one of some 16 is not at home
            rows[i - start] = row_at(word, first, stride) if word != 0 else home
            unknown[end] = i
            end += word == 0
        for k in range(late - _COPY_AHEAD, end):
            if k + _COPY_AHEAD < end:
                prefetch(base + BUCKET_NBYTES * (rows[unknown[k + _COPY_AHEAD] - start] + 1))
            if k >= late:
                i = unknown[k]
                word, _ = probe(base, load_integer(asked + 8 * i), rows[i - start])
                rows[i - start] = row_at(word, first, stride) if word != 0 else 0
                unknown[unknowns] = i
                unknowns += word == 0
        for i in range(min(_COPY_AHEAD, stop - start)):
            prefetch_row(rows[i], nbytes)
        for i in range(start, stop):
            if i + _COPY_AHEAD < stop:
                prefetch_row(rows[i + _COPY_AHEAD - start], nbytes)
            row = rows[i - start]
            if row != 0:
                copy_row(row, target + i * nbytes, nbytes)
    return unknowns


@functools.cache
def _gather_of(frozen: int) -> Any:
    """The kernel of `gather` for weights of so many bytes; 0: for any."""

    def gather(lines, head, layout, memory, ids, out, unknown):  # type: ignore[no-untyped-def]
        base, old, new, cursor = shape_of(lines, head)
        stride, nbytes = layout[STRIDE], frozen if frozen > 0 else layout[WEIGHT_NBYTES]
        first, target = np.int64(memory.ctypes.data), np.int64(out.ctypes.data)
        n = len(ids)
        rows, homes = np.empty(min(n, TILE), np.int64), np.empty(AHEAD, np.int64)
        asked = np.int64(ids.ctypes.data)
        return gather_rows(
            base, old, new, cursor, first, stride, nbytes, asked, n, target, rows, homes, unknown
        )

    return gather


def _copy(memory, layout, ids, numbers, out_ids, out):  # type: ignore[no-untyped-def]
    stride, nbytes, n = layout[STRIDE], layout[NBYTES], len(numbers)
    first, target = np.int64(memory.ctypes.data), np.int64(out.ctypes.data)
    for i in range(-_COPY_AHEAD, n):
        if i + _COPY_AHEAD < n:
            prefetch_row(first + numbers[i + _COPY_AHEAD] * stride, nbytes)
        if i >= 0:
            out_ids[i] = ids[numbers[i]]
            copy_row(first + numbers[i] * stride, target + i * nbytes, nbytes)


@functools.cache
def _place_kernel() -> Any:
    return compiled(_place, FLOATS_2D_IN, INTS_1D_IN, FLOATS_2D)


def _place(rows, places, target):  # type: ignore[no-untyped-def]
    nbytes = 4 * target.shape[1]
    source, base = np.int64(rows.ctypes.data), np.int64(target.ctypes.data)
    for i in range(len(places)):
        copy_row(source + i * nbytes, base + places[i] * nbytes, nbytes)


@functools.cache
def _apply_of(rule: int, states: int, floats: int) -> Any:
    """The kernel of `apply` for a rule, and rows of so many float32; 0: for any rows."""

    def apply(lines, head, layout, memory, ids, grads, constants, by_step, left):  # type: ignore[no-untyped-def]
        base, old, new, cursor = shape_of(lines, head)
        stride, lag = layout[STRIDE], layout[LAG]
        nbytes = 4 * floats * (1 + states) if floats > 0 else layout[NBYTES]
        dim = floats if floats > 0 else layout[DIM]
        state = 4 * floats if floats > 0 else layout[STATE]
        kind = FLOAT32 if floats > 0 else layout[KIND]
        stochastic, mark = layout[STOCHASTIC] != 0, np.uint32(layout[MARK])
        first, source = np.int64(memory.ctypes.data), np.int64(grads.ctypes.data)
        k = constants_of(constants)
        homes, rows = np.empty(_RING, np.int64), np.empty(_RING, np.int64)
        books = np.empty(_RING, np.int64)
        wide = np.empty(dim if kind != FLOAT32 else 0, np.float32)
        n, unknown, busy = len(ids), 0, 0
        find = lag + _FOUND_AHEAD
        for i in range(-2 * find, n):
            if i >= 0:
                row, address = rows[i & (_RING - 1)], books[i & (_RING - 1)]
                if row != 0 and set_bit(address):
                    book = load_word(address) & np.uint32(_MOST)
                    steps = np.int64(book >> np.uint32(STEPS))
                    line = min(steps, len(by_step) - 1)
                    x, y, g = by_step[line, 0], by_step[line, 1], source + 4 * dim * i
                    weight, a = row, row + state
                    if kind != FLOAT32:
                        weight = np.int64(wide.ctypes.data)
                        widen(row, weight, dim, kind)
                    b, c = a + 4 * dim, a + 8 * dim
                    # the only call, so that LLVM puts it in place here
                    step(rule, dim, weight, a, b, c, g, k, x, y)  # type: ignore[no-untyped-call]
                    if kind != FLOAT32:
                        narrow(weight, row, dim, kind, stochastic, ids[i], steps)
                    if book < np.uint32(_MOST):
                        book += np.uint32(_STEP)
                    release_word(address, book | mark)
                elif row != 0:
                    busy += 1
                    left[n - busy] = i
            j = i + lag
            if 0 <= j < n:
                row = rows[j & (_RING - 1)]
                if row != 0:
                    prefetch_row(row, nbytes)
            j = i + find
            if 0 <= j < n:
                word, address = probe(base, ids[j], homes[j & (_RING - 1)])
                row = row_at(word, first, stride) if word != 0 else 0
                if word == 0:
                    left[unknown] = j
                    unknown += 1
                rows[j & (_RING - 1)], books[j & (_RING - 1)] = row, address + BOOK
            j = i + 2 * find
            if j < n:
                home = home_of(ids[j], old, new, cursor)
                prefetch(base + BUCKET_NBYTES * home)
                homes[j & (_RING - 1)] = home
        return unknown, busy

    return apply
