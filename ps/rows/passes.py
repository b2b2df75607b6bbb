"""The kernels that pass over many rows: gather, apply, copy.

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
from typing import Any, NamedTuple

import numpy as np

from ...kernels.buckets import AHEAD, BUCKET_NBYTES, ROW, TAG, home_of, look, probe
from ...kernels.compile import (
    FLOATS_2D,
    FLOATS_2D_IN,
    INTS_1D_IN,
    compiled,
    frozen,
    inlined,
    integers,
    load_integer,
    load_word,
    prefetch,
    record_at,
    release_word,
    set_bit,
)
from ...kernels.lanes import copy_2, copy_4, copy_32
from .halves import FLOAT32, narrow, widen
from .index import STEPS, Ints, index_at, shape_of
from .optimizers import Floats
from .step import RowAt, coefficients, constants_of, step

LINE_NBYTES = 64  # of the cache
MOST_AHEAD = 16  # rows that are asked for before they are updated (`lag`)
_FOUND_AHEAD = 4  # rows that are found before they are asked for
_RING = 32  # ids under way: a power of two, at least MOST_AHEAD + _FOUND_AHEAD
TILE = 1024  # ids that are found before their rows are copied
_COPY_AHEAD = 16  # rows that are asked for before they are copied
_STEP = 1 << STEPS
_MOST = -_STEP & 0xFFFFFFFF  # a tag of as many steps as can be
LAYOUT = integers(  # what kernels are told of rows
    "rows",  # the address of the first
    "stride",  # bytes from one to the next
    "nbytes",  # of one
    "weight_nbytes",
    "state",  # bytes from a row to its first state
    "dim",
    "kind",  # of the weights (halves.py)
    "stochastic",  # whether weights of 16 bits are rounded at random
    "lag",  # so many rows are asked for before they are updated
    "mark",  # what an update leaves in the tag
)
_layout_at = record_at(LAYOUT)
_UNDER_WAY = integers(  # an id between the stages of `apply`
    "home",  # its home in the index
    "row",  # the address of its row; 0: unknown
    "tag",  # the address of its row's tag
)


def place_rows(rows: Floats, places: Ints, target: Floats) -> None:
    """Write target[places] = rows, in a third of numpy's time.

    All are float32[n, dim].

    Raises ValueError where the shapes do not fit. `places` must be of the target.
    """
    if rows.shape != (len(places), target.shape[1]):
        raise ValueError(f"rows {rows.shape} for {len(places)} places of {target.shape[1]} values")
    _place_kernel()(np.ascontiguousarray(rows), places, target)


# -- Compiled by numba


@inlined
def row_at(word, layout):  # type: ignore[no-untyped-def]
    """Return the address of the row of an index entry's word (not 0)."""
    return layout.rows + ((word & ROW) - 1) * layout.stride


@frozen
def prefetch_row(address, nbytes):  # type: ignore[no-untyped-def]
    for at in range(0, nbytes, LINE_NBYTES):
        prefetch(address + at)
    if nbytes & (LINE_NBYTES - 1):  # whole lines begin with one (rows.py)
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

    rows: np.int64
    stride: np.int64


@inlined
def gather_rows(shape, place, nbytes, asked, n, target, unknown):  # type: ignore[no-untyped-def]
    """Copy the weights of the n ids at the address `asked`, `nbytes` each, to `target`.

    Into `unknown` int64[n] go the places of those that are not there, and how many is returned.
    """
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
def gather_of(frozen_nbytes: int) -> Any:
    """Return the kernel of `gather` for weights of so many bytes; 0: for any."""

    def gather(index, layout_address, ids, out, unknown):  # type: ignore[no-untyped-def]
        layout = _layout_at(layout_address)
        nbytes = frozen_nbytes if frozen_nbytes > 0 else layout.weight_nbytes
        asked, target = np.int64(ids.ctypes.data), np.int64(out.ctypes.data)
        shape, place = shape_of(index_at(index)), Place(layout.rows, layout.stride)
        return gather_rows(shape, place, nbytes, asked, len(ids), target, unknown)

    return gather


def copy_rows(layout_address, ids, numbers, out_ids, out):  # type: ignore[no-untyped-def]
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
def apply_of(rule: int, frozen_nbytes: int, floats: int) -> Any:
    """Return the kernel of `apply` for a rule and rows of such sizes; 0: for any rows."""

    def apply(index, layout_address, ids, grads, constants, by_step, left):  # type: ignore[no-untyped-def]
        shape, layout = shape_of(index_at(index)), _layout_at(layout_address)
        place = Place(layout.rows, layout.stride)
        nbytes = frozen_nbytes if floats > 0 else layout.nbytes
        dim = floats if floats > 0 else layout.dim
        state = 4 * floats if floats > 0 else layout.state
        kind = FLOAT32 if floats > 0 else layout.kind
        stochastic, mark = layout.stochastic != 0, np.uint32(layout.mark)
        asked, source = np.int64(ids.ctypes.data), np.int64(grads.ctypes.data)
        k, table, last = constants_of(constants), np.int64(by_step.ctypes.data), len(by_step) - 1
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
                    step(rule, dim, at, coefficients(k, table, last, steps))  # type: ignore[no-untyped-call]
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
