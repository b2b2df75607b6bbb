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

Several threads may apply at once. The lowest bit of a row's tag says that one is at it: a row that
is taken is passed over and listed, and the caller comes back for it, so that nobody
waits while he holds a row, and no update is lost.

The next two bits mark what has been written since a snapshot. There are two, so that a snapshot can
begin by making the other one current: the rows of the one before are then collected while pushes go
on. An update sets the current mark and takes the other away: a row that has still to be collected
is kept by the snapshot's pin first, with its tag (ps/rows/table.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    BYTES_1D,
    FLOATS_1D,
    FLOATS_2D,
    FLOATS_2D_IN,
    INTEGER,
    INTS_1D,
    INTS_1D_IN,
    compiled,
    frozen,
    inlined,
    load_integer,
    load_word,
    prefetch,
    record_at,
    release_word,
    set_bit,
)
from ...kernels.lanes import WIDTH, copy_2, copy_4, copy_32
from ...nn.model_spec import TableSpec
from .halves import FLOAT32, KINDS, narrow, widen
from .index import (
    AHEAD,
    BUCKET_NBYTES,
    COLOUR,
    MANY,
    OTHER,
    ROW,
    STEPS,
    TAG,
    Index,
    Ints,
    home_of,
    index_at,
    look,
    probe,
    shape_of,
)
from .memory import Memory, physical_nbytes
from .optimizers import Floats, RowAt, Rule, coefficients, constants_of, step
from .work import Work

_LINE = 64
_MOST_ROWS = 2**32 - 2
_PUSH_AHEAD = 16  # rows that are asked for before they are updated, fewer where they are long
_PUSH_AHEAD_NBYTES = 4 << 10  # of them
_FOUND_AHEAD = 4  # rows that are found before they are asked for
_RING = 32  # ids under way: a power of two, at least _PUSH_AHEAD + _FOUND_AHEAD
TILE = 1024  # ids that are found before their rows are copied
_COPY_AHEAD = 16  # rows that are asked for before they are copied
_PIECE = 4096  # rows that one thread applies at a time: some 0.2 ms
_NONE = np.empty(0, np.int64)
_MOST_FROZEN = 128  # floats of a row for which there are kernels of their own
_BITS_2D = types.Array(types.uint16, 2, "C")
Weights = NDArray[np.float32] | NDArray[np.uint16]
_STEP = 1 << STEPS
_MOST = -_STEP & 0xFFFFFFFF  # a tag of as many steps as can be
LAYOUT = np.dtype(  # what kernels are told of rows
    [
        ("rows", np.int64),  # the address of the first
        ("stride", np.int64),  # bytes from one to the next
        ("nbytes", np.int64),  # of one
        ("weight_nbytes", np.int64),
        ("state", np.int64),  # bytes from a row to its first state
        ("dim", np.int64),
        ("kind", np.int64),  # of the weights (halves.py)
        ("stochastic", np.int64),  # whether weights of 16 bits are rounded at random
        ("lag", np.int64),  # so many rows are asked for before they are updated
        ("mark", np.int64),  # what an update leaves in the tag
    ]
)
_layout_at = record_at(LAYOUT)
_UNDER_WAY = np.dtype(  # an id between the stages of `apply`
    [
        ("home", np.int64),  # its home in the index
        ("row", np.int64),  # the address of its row; 0: unknown
        ("tag", np.int64),  # the address of its row's tag
    ]
)


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
        self._memory = Memory(stride, min(_MOST_ROWS, physical_nbytes() // stride))
        self.memory = self._memory.bytes
        first = self.memory.ctypes.data
        sizes = (stride, nbytes, weight_nbytes, state, spec.dim)
        self.layout = np.array([(first, *sizes, kind, random, lag, COLOUR)], LAYOUT)
        self._address = int(self.layout.ctypes.data)
        self.most = len(self.memory) // stride
        self._id_memory = Memory(8, self.most)
        self.ids: Ints = self._id_memory.bytes.view(np.int64)
        self.index = Index(min(self.most, len(self.ids)))
        self.raw: NDArray[np.void] = np.ndarray(self.most, f"V{nbytes}", self.memory, 0, stride)
        self._item, self._num_states, self._by_step = item, num_states, rule.by_step
        self.weight, self.state = self.views(self.raw)
        weights = FLOATS_2D if kind == FLOAT32 else _BITS_2D
        usual = kind == FLOAT32 and spec.dim % WIDTH == 0 and spec.dim <= _MOST_FROZEN
        gather = _gather_of(weight_nbytes if usual else 0)
        self._gather = compiled(gather, INTEGER, INTEGER, INTS_1D_IN, weights, INTS_1D)
        push = (INTS_1D_IN, FLOATS_2D_IN, FLOATS_1D, FLOATS_2D, INTS_1D)
        apply = _apply_of(rule.kind, num_states, spec.dim if usual else 0)
        self._apply = compiled(apply, INTEGER, INTEGER, *push)
        self._copy = compiled(_copy, INTEGER, INTS_1D, INTS_1D_IN, INTS_1D, BYTES_1D)

    def views(self, raw: NDArray[np.void]) -> tuple[Weights, list[Floats]]:
        """The weight and each state in rows like those of `raw`, each [n, dim]."""
        at, dim = int(self.layout["state"][0]), int(self.layout["dim"][0])
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
        return len(self) * (int(self.layout["stride"][0]) + 8) + self.index.nbytes

    def check_room(self, count: int) -> None:
        """MemoryError where `count` more rows may not have room."""
        if len(self) + count > self.most:
            raise MemoryError(f"{len(self):,} rows, and {count:,} more: the machine has no memory")

    def append(self, ids: Ints, weight: Weights, state: Sequence[Floats | float]) -> None:
        """New rows, whose ids are unique and unknown, of no updates."""
        self.check_room(len(ids))
        new, many = slice(len(self), len(self) + len(ids)), len(ids) > MANY
        self._memory.use(new.stop * int(self.layout["stride"][0]), wait=many)
        self._id_memory.use(new.stop * 8, wait=many)
        self.ids[new], self.weight[new] = ids, weight
        for mine, theirs in zip(self.state, state, strict=True):
            mine[new] = theirs
        self.index.add(ids)

    def change_mark(self) -> int:
        """Updates from now on leave another mark; the one so far. No update may be under way."""
        before = int(self.layout["mark"][0])
        self.layout["mark"] = OTHER if before == COLOUR else COLOUR
        return before

    def copy(self, numbers: Ints, ids: Ints, raw: NDArray[np.void]) -> None:
        """The rows of these numbers, and their ids, into arrays of the same length."""
        self._copy(self._address, self.ids, numbers, ids, raw.view(np.uint8))

    def gather(self, ids: Ints, out: Weights) -> Ints:
        """The weights of `ids` into out[n, dim]; the places of those that are unknown."""
        unknown = np.empty(len(ids), np.int64)
        count = self._gather(self.index.address, self._address, ids, out, unknown)
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
        unknown, busy = self._apply(
            self.index.address, self._address, ids, grads, constants, self._by_step, left
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
def row_at(word, layout):  # type: ignore[no-untyped-def]
    """The address of the row of an index entry's word (not 0)."""
    return layout.rows + ((word & ROW) - 1) * layout.stride


@frozen
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


class Place(NamedTuple):
    """Two numbers of a LAYOUT, in registers."""

    rows: Any
    stride: Any


@inlined
def gather_rows(shape, place, nbytes, asked, n, target, unknown):  # type: ignore[no-untyped-def]
    """Copy the weights of the n ids at the address `asked`, `nbytes` each, to `target`. Into
    `unknown` int64[n] go the places of those that are not there, and how many is returned."""
    base = shape.buckets
    rows, homes = np.empty(min(n, TILE), np.int64), np.empty(AHEAD, np.int64)
    unknowns = 0
    for i in range(min(n, AHEAD)):
        homes[i] = home_of(load_integer(asked + 8 * i), shape)
        prefetch(base + BUCKET_NBYTES * homes[i])
    for start in range(0, n, TILE):
        stop = min(start + TILE, n)
        late = end = unknowns  # unknown[late:end]: not at home, so far
        for i in range(start, stop):
            home = homes[i & (AHEAD - 1)]
            if i + AHEAD < n:
                later = home_of(load_integer(asked + 8 * (i + AHEAD)), shape)
                prefetch(base + BUCKET_NBYTES * later)
                homes[i & (AHEAD - 1)] = later
            word, _ = look(base + BUCKET_NBYTES * home, load_integer(asked + 8 * i))
            # without a branch, which would be guessed wrong: one of some 16 is not at home
            rows[i - start] = row_at(word, place) if word != 0 else home
            unknown[end] = i
            end += word == 0
        for k in range(late - _COPY_AHEAD, end):
            if k + _COPY_AHEAD < end:
                prefetch(base + BUCKET_NBYTES * (rows[unknown[k + _COPY_AHEAD] - start] + 1))
            if k >= late:
                i = unknown[k]
                word, _ = probe(base, load_integer(asked + 8 * i), rows[i - start])
                rows[i - start] = row_at(word, place) if word != 0 else 0
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
def _gather_of(frozen_nbytes: int) -> Any:
    """The kernel of `gather` for weights of so many bytes; 0: for any."""

    def gather(index, layout_address, ids, out, unknown):  # type: ignore[no-untyped-def]
        layout = _layout_at(layout_address)
        nbytes = frozen_nbytes if frozen_nbytes > 0 else layout.weight_nbytes
        asked, target = np.int64(ids.ctypes.data), np.int64(out.ctypes.data)
        shape, place = shape_of(index_at(index)), Place(layout.rows, layout.stride)
        return gather_rows(shape, place, nbytes, asked, len(ids), target, unknown)

    return gather


def _copy(layout_address, ids, numbers, out_ids, out):  # type: ignore[no-untyped-def]
    layout = _layout_at(layout_address)
    first, stride, nbytes = layout.rows, layout.stride, layout.nbytes
    n, target = len(numbers), np.int64(out.ctypes.data)
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

    def apply(index, layout_address, ids, grads, constants, by_step, left):  # type: ignore[no-untyped-def]
        shape, layout = shape_of(index_at(index)), _layout_at(layout_address)
        place = Place(layout.rows, layout.stride)
        nbytes = 4 * floats * (1 + states) if floats > 0 else layout.nbytes
        dim = floats if floats > 0 else layout.dim
        state = 4 * floats if floats > 0 else layout.state
        kind = FLOAT32 if floats > 0 else layout.kind
        stochastic, mark = layout.stochastic != 0, np.uint32(layout.mark)
        asked, source = np.int64(ids.ctypes.data), np.int64(grads.ctypes.data)
        k = constants_of(constants)
        ring = np.empty(_RING, _UNDER_WAY)
        wide = np.empty(dim if kind != FLOAT32 else 0, np.float32)
        n, unknown, busy, find = len(ids), 0, 0, layout.lag + _FOUND_AHEAD
        for i in range(-2 * find, n):
            if i >= 0:
                now = ring[i & (_RING - 1)]
                row, address = now.row, now.tag
                # another thread's `set_bit` of this tag fails until our `release_word`
                if row != 0 and set_bit(address):
                    tag = load_word(address) & np.uint32(_MOST)
                    steps = np.int64(tag >> np.uint32(STEPS))
                    weight, a = row, row + state
                    if kind != FLOAT32:
                        weight = np.int64(wide.ctypes.data)
                        widen(row, weight, dim, kind)
                    # the only call, so that LLVM puts it in place here
                    at = RowAt(weight, a, a + 4 * dim, a + 8 * dim, source + 4 * dim * i)
                    step(rule, dim, at, coefficients(k, by_step, steps))  # type: ignore[no-untyped-call]
                    if kind != FLOAT32:
                        narrow(weight, row, dim, kind, stochastic, ids[i], steps)
                    if tag < np.uint32(_MOST):
                        tag += np.uint32(_STEP)
                    release_word(address, tag | mark)
                elif row != 0:
                    busy += 1
                    left[n - busy] = i
            j = i + find - _FOUND_AHEAD
            if 0 <= j < n and ring[j & (_RING - 1)].row != 0:
                prefetch_row(ring[j & (_RING - 1)].row, nbytes)
            j = i + find
            if 0 <= j < n:
                found = ring[j & (_RING - 1)]
                word, address = probe(shape.buckets, load_integer(asked + 8 * j), found.home)
                if word == 0:
                    left[unknown] = j
                    unknown += 1
                found.row = row_at(word, place) if word != 0 else 0
                found.tag = address + TAG
            j = i + 2 * find
            if j < n:
                home = home_of(load_integer(asked + 8 * j), shape)
                prefetch(shape.buckets + BUCKET_NBYTES * home)
                ring[j & (_RING - 1)].home = home
        return unknown, busy

    return apply
