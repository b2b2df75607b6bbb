"""The rows of a table: weight and optimizer state side by side, found by their ids.

A row is `weight | state | state ...` in one reservation (memory.py): one run of cache lines, read
and written in one pass (passes.py). Its id stands in a column beside, which only inserts and
snapshots touch; its updates so far in its entry in the index, which a push has at hand anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

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
)
from ...kernels.lanes import WIDTH
from ...nn.model_spec import TableSpec
from .halves import FLOAT32, KINDS
from .index import COLOUR, MANY, OTHER, Index, Ints
from .memory import Memory, physical_nbytes
from .optimizers import Floats, Rule
from .passes import LAYOUT, LINE_NBYTES, MOST_AHEAD, apply_of, copy_rows, gather_of
from .work import Work

_MOST_ROWS = 2**32 - 2
_AHEAD_NBYTES = (
    4 << 10
)  # of rows that are asked for before they are updated: fewer where they are long
_PIECE = 4096  # rows that one thread applies at a time: some 0.2 ms
_NONE = np.empty(0, np.int64)
_MOST_FROZEN = 128  # floats of a row for which there are kernels of their own
_BITS_2D = types.Array(types.uint16, 2, "C")
Weights = NDArray[np.float32] | NDArray[np.uint16]


class Rows:
    """Rows by number, which never changes, and the index of their ids."""

    def __init__(self, spec: TableSpec, rule: Rule) -> None:
        widths = [rule.width(spec.dim)] * len(rule.state)
        kind = KINDS[spec.dtype]
        item = np.dtype(np.float32 if kind == FLOAT32 else np.uint16)
        weight_nbytes = spec.dim * item.itemsize
        state = -(-weight_nbytes // 4) * 4
        nbytes = state + 4 * sum(widths)
        stride = _stride(nbytes)
        lag = max(4, min(MOST_AHEAD, _AHEAD_NBYTES // nbytes))
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
        self._item, self._widths, self._by_step = item, widths, rule.by_step
        self.weight, self.state = self.views(self.raw)
        weights = FLOATS_2D if kind == FLOAT32 else _BITS_2D
        usual = kind == FLOAT32 and spec.dim % WIDTH == 0 and spec.dim <= _MOST_FROZEN
        gather = gather_of(weight_nbytes if usual else 0)
        self._gather = compiled(gather, INTEGER, INTEGER, INTS_1D_IN, weights, INTS_1D)
        push = (INTS_1D_IN, FLOATS_2D_IN, FLOATS_1D, FLOATS_2D, INTS_1D)
        apply = apply_of(rule.kind, *((nbytes, spec.dim) if usual else (0, 0)))
        self._apply = compiled(apply, INTEGER, INTEGER, *push)
        self._copy = compiled(copy_rows, INTEGER, INTS_1D, INTS_1D_IN, INTS_1D, BYTES_1D)

    def views(self, raw: NDArray[np.void]) -> tuple[Weights, list[Floats]]:
        """Return the weight and each state in rows like those of `raw`, each [n, width]."""
        at, dim = int(self.layout["state"][0]), int(self.layout["dim"][0])
        offsets = [at + 4 * sum(self._widths[:k]) for k in range(len(self._widths))]
        parts = [(self._item, (dim,)), *((np.float32, (width,)) for width in self._widths)]
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
        """Return the memory in use, by rows, ids and index."""
        return len(self) * (int(self.layout["stride"][0]) + 8) + self.index.nbytes

    def check_room(self, count: int) -> None:
        """Raise MemoryError where `count` more rows may not have room."""
        if len(self) + count > self.most:
            raise MemoryError(f"{len(self):,} rows, and {count:,} more: the machine has no memory")

    def append(self, ids: Ints, weight: Weights, state: Sequence[Floats | float]) -> None:
        """Append new rows, whose ids are unique and unknown, of no updates."""
        self.check_room(len(ids))
        new, many = slice(len(self), len(self) + len(ids)), len(ids) > MANY
        self._memory.use(new.stop * int(self.layout["stride"][0]), wait=many)
        self._id_memory.use(new.stop * 8, wait=many)
        self.ids[new], self.weight[new] = ids, weight
        for mine, theirs in zip(self.state, state, strict=True):
            mine[new] = theirs
        self.index.add(ids)

    def change_mark(self) -> int:
        """Change the mark that updates leave from now on, and return the one so far.

        No update may be under way.
        """
        before = int(self.layout["mark"][0])
        self.layout["mark"] = OTHER if before == COLOUR else COLOUR
        return before

    def copy(self, numbers: Ints, ids: Ints, raw: NDArray[np.void]) -> None:
        """Copy the rows of these numbers, and their ids, into arrays of the same length."""
        self._copy(self._address, self.ids, numbers, ids, raw.view(np.uint8))

    def gather(self, ids: Ints, out: Weights) -> Ints:
        """Gather the weights of `ids` into out[n, dim], and return the places of unknown ones."""
        unknown = np.empty(len(ids), np.int64)
        count = self._gather(self.index.address, self._address, ids, out, unknown)
        return unknown[:count]

    def apply(self, constants: Floats, ids: Ints, grads: Floats) -> tuple[Ints, Ints]:
        """Make one step of the rows `ids` with grads[n, dim].

        Returns the places of those that are unknown, and of those that another thread is at. A core
        that is free takes its share of many.
        """
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
        """Do what `apply` does, by this thread alone."""
        left = np.empty(len(ids), np.int64)
        unknown, busy = self._apply(
            self.index.address, self._address, ids, grads, constants, self._by_step, left
        )
        return left[:unknown], left[len(left) - busy :]


def _stride(nbytes: int) -> int:
    """Return whole cache lines, or a whole part of one, where that is at most a quarter more."""
    whole = (
        1 << (nbytes - 1).bit_length()
        if nbytes < LINE_NBYTES
        else -(-nbytes // LINE_NBYTES) * LINE_NBYTES
    )
    return whole if 4 * whole <= 5 * nbytes else nbytes
