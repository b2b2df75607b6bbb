"""The distinct ids of arrays, sums of rows by id, and a look for what is not finite: kernels.

`distinct` numbers ids in the order of their first appearance through an open-addressed table of
positions (linear probing, at most half full), which each thread keeps. `add_by_place` is one walk
over the values in their order, so the sums are the same at each run.

Shape suffixes: N ids, U unique ids, D row dimension.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from .compile import compiled

Ids = NDArray[np.int64]
Places = NDArray[np.int32]
Values = NDArray[np.float32]


def distinct(arrays: Sequence[Ids], nothing: int | None = None) -> tuple[Ids, Places]:
    """Return the distinct ids and, for each id, its place among them.

    Distinct ids int64[U] are in order of first appearance; places are int32[N].

    `arrays` are taken one after the other. `nothing`: an id that is none; its place is -1.
    """
    total = sum(len(array) for array in arrays)
    table = _table(total)
    ids_U = np.empty(total, np.int64)
    places_N = np.empty(total, np.int32)
    kernel, count, first = _distinct_kernel(), 0, 0
    skip = (nothing is not None, nothing or 0)
    for array in arrays:
        count = kernel(array, *skip, table, ids_U, count, places_N[first : first + len(array)])
        first += len(array)
    return ids_U[:count], places_N


def add_by_place(
    values_ND: Values, places_N: Places, sums_UD: Values, written: int | None = None
) -> int:
    """Add each row of values to the row of sums at its place.

    `written`: how many rows of the sums hold something yet; None: all. With places of a `distinct`,
    taken from its first on (in one call or several), a row is written where its place comes up
    first, so nobody needs to clear the sums: begin with 0. Returns how many hold something now.
    """
    if written is None:
        written = len(sums_UD)
    return _add_kernel()(values_ND, places_N, sums_UD, written)


def sum_by_id(parts: Sequence[tuple[Ids, Values]]) -> tuple[Ids, Values]:
    """Return distinct ids int64[U] and the sums float32[U, D] of their rows, by id.

    Rows are added in the order of `parts`.

    Of one part, whose ids are distinct, the very arrays.
    """
    if len(parts) == 1:
        return parts[0]
    ids_U, places_N = distinct([ids for ids, _ in parts])
    sums_UD = np.empty((len(ids_U), parts[0][1].shape[1]), np.float32)
    first = written = 0
    for ids, values in parts:
        places = places_N[first : first + len(ids)]
        written = add_by_place(values, places, sums_UD, written)
        first += len(ids)
    return ids_U, sums_UD


def finite(values: Values) -> bool:
    """Tell whether no value of a C-contiguous array is NaN or infinite."""
    return bool(_finite_kernel()(values.reshape(-1).view(np.int32)))


class _Scratch(threading.local):
    """Each thread's hash table of the size last needed."""

    table: Places = np.zeros(0, np.int32)


_scratch = _Scratch()


def _table(total: int) -> Places:
    """Return this thread's table, cleared, of a power of two at least twice the ids."""
    size = 1 << max(4, (2 * total - 1).bit_length())
    if len(_scratch.table) < size:
        _scratch.table = np.empty(size, np.int32)
    table = _scratch.table[:size]
    table.fill(-1)
    return table


@functools.cache
def _distinct_kernel() -> Callable[..., int]:
    ids_in = types.Array(types.int64, 1, "C", readonly=True)
    ids, places = types.int64[::1], types.int32[::1]
    return compiled(_distinct, ids_in, types.boolean, types.int64, places, ids, types.int64, places)


@functools.cache
def _add_kernel() -> Callable[..., int]:
    values = types.Array(types.float32, 2, "C", readonly=True)
    places = types.Array(types.int32, 1, "C", readonly=True)
    return compiled(_add, values, places, types.float32[:, ::1], types.int64)


@functools.cache
def _finite_kernel() -> Callable[..., bool]:
    return compiled(_finite, types.Array(types.int32, 1, "C", readonly=True))


def _distinct(
    ids: Ids, skip: bool, nothing: int, table: Places, ids_U: Ids, count: int, places: Places
) -> int:
    """Give the ids numbers from `count` on, and return the new count."""
    shift = np.uint64(64)
    size = len(table)
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    mask = len(table) - 1
    for i in range(len(ids)):
        key = ids[i]
        if skip and key == nothing:
            places[i] = -1
            continue
        mixed = np.uint64(key)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        at = np.int64(mixed >> shift)
        place = table[at]
        while place >= 0 and ids_U[place] != key:
            at = (at + 1) & mask
            place = table[at]
        if place < 0:
            place = np.int32(count)
            table[at] = place
            ids_U[count] = key
            count += 1
        places[i] = place
    return count


def _add(values: Values, places: Places, sums: Values, written: int) -> int:
    width = values.shape[1]
    for i in range(len(places)):
        place = places[i]
        if place == written:
            written += 1
            for j in range(width):
                sums[place, j] = values[i, j]
        else:
            for j in range(width):
                sums[place, j] += values[i, j]
    return written


def _finite(bits: Any) -> bool:
    wrong = 0
    for i in range(len(bits)):
        wrong += (bits[i] & 0x7F800000) == 0x7F800000
    return wrong == 0
