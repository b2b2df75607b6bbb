"""The distinct ids of a batch, and sums of gradients by id, in kernels that run without the GIL.

`distinct` numbers ids in the order of their first appearance through an open-addressed table of
positions (linear probing, at most half full), which each thread keeps. Several tensors may be of
one table: they share one numbering, so one pull and one sum serve them all. `add_by_place` is the
backward pass of the lookup: one walk over the gradients in their order, so the sums are the same
at each run.

Shape suffixes: N ids, U unique ids, D row dimension.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import types
from numpy.typing import NDArray
from torch import Tensor

from ..common.kernels import compiled
from ..nn.embedding import PADDING

Ids = NDArray[np.int64]
Places = NDArray[np.int32]
Values = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Lookup:
    """Ids that a forward asks for, PADDING left out, and the place of each in `Unique.ids_U`."""

    given: Tensor
    places: Tensor  # int32, of the shape of `given`


@dataclass(frozen=True)
class Unique:
    """The distinct ids of one table in one batch, in the order of their first appearance."""

    ids_U: Ids
    lookups: Sequence[Lookup]


def unique(given: Sequence[Tensor]) -> Unique:
    """The distinct ids of int64 tensors of any shape, without PADDING, and the places of each.

    Of a tensor that has PADDING, `Lookup.given` is a vector of the others, as
    `Embedding.lookup_ids` makes it. The results hold views of `given` where it is on the CPU.
    """
    host = [ids.detach().cpu() for ids in given]
    arrays = [np.ascontiguousarray(ids.numpy()).reshape(-1) for ids in host]
    ids_U, places_N = distinct(arrays)
    lookups, first = [], 0
    for ids, array in zip(host, arrays, strict=True):
        places = places_N[first : first + len(array)]
        first += len(array)
        if len(places) and places.min() < 0:
            present = places >= 0
            ids, places = torch.from_numpy(array[present]), places[present]
        lookups.append(Lookup(ids, torch.from_numpy(places).reshape(ids.shape)))
    return Unique(ids_U, lookups)


def distinct(arrays: Sequence[Ids]) -> tuple[Ids, Places]:
    """Distinct ids int64[U] in order of first appearance; the place in it of each id, int32[N].

    `arrays` are taken one after the other; the place of PADDING is -1.
    """
    total = sum(len(array) for array in arrays)
    table = _table(total)
    ids_U = np.empty(total, np.int64)
    places_N = np.empty(total, np.int32)
    kernel, count, first = _distinct_kernel(), 0, 0
    for array in arrays:
        count = kernel(array, table, ids_U, count, places_N[first : first + len(array)])
        first += len(array)
    return ids_U[:count], places_N


def add_by_place(values_ND: Values, places_N: Places, sums_UD: Values, fresh: bool) -> None:
    """Add each row of values to the row of sums at its place.

    `fresh`: the sums hold nothing yet, and the places are those of a whole `distinct`: each row is
    written where its place comes up first, so nobody needs to clear them.
    """
    _add_kernel()(values_ND, places_N, sums_UD, fresh)


def finite(values: Values) -> bool:
    """Whether no value of a C-contiguous array is NaN or infinite."""
    return bool(_finite_kernel()(values.reshape(-1).view(np.int32)))


class _Scratch(threading.local):
    """Each thread's hash table of the size last needed."""

    table: Places = np.zeros(0, np.int32)


_scratch = _Scratch()


def _table(total: int) -> Places:
    """Cleared, of a power of two at least twice the ids."""
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
    return compiled(_distinct, ids_in, places, ids, types.int64, places)


@functools.cache
def _add_kernel() -> Callable[..., None]:
    values = types.Array(types.float32, 2, "C", readonly=True)
    places = types.Array(types.int32, 1, "C", readonly=True)
    return compiled(_add, values, places, types.float32[:, ::1], types.boolean)


@functools.cache
def _finite_kernel() -> Callable[..., bool]:
    return compiled(_finite, types.Array(types.int32, 1, "C", readonly=True))


def _distinct(ids: Ids, table: Places, ids_U: Ids, count: int, places: Places) -> int:
    """Number the ids from `count` on; the new count."""
    shift = np.uint64(64)
    size = len(table)
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    mask = len(table) - 1
    for i in range(len(ids)):
        key = ids[i]
        if key == PADDING:
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


def _add(values: Values, places: Places, sums: Values, fresh: bool) -> None:
    count, width = 0, values.shape[1]
    for i in range(len(places)):
        place = places[i]
        if fresh and place == count:
            count += 1
            for j in range(width):
                sums[place, j] = values[i, j]
        else:
            for j in range(width):
                sums[place, j] += values[i, j]


def _finite(bits: Any) -> bool:
    wrong = 0
    for i in range(len(bits)):
        wrong += (bits[i] & 0x7F800000) == 0x7F800000
    return wrong == 0
