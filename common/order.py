"""The order of all that is shuffled and how it is split, a function of (seed, epoch, task).

Whoever asks again gets the same order, so that positions within a task mean the same to the master,
to every worker and to every server's ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_64 = (1 << 64) - 1


def order(seed: int, epoch: int, task: int, size: int, shuffle: bool) -> NDArray[np.int64]:
    """Return record offsets by position: int64[size], a permutation of 0..size-1.

    Task ids begin at 1; task 0 stands for the order of the tasks of the epoch itself.
    """
    if not shuffle:
        return np.arange(size, dtype=np.int64)
    key = np.random.SeedSequence([seed & 0xFFFFFFFF, epoch, task])
    return np.random.Generator(np.random.Philox(key)).permutation(size).astype(np.int64)


class TaskOrder:
    """The order of an epoch's tasks: a permutation of 0..size-1, asked for by position.

    Up to `LISTED` tasks it is `order`'s of task 0. More are never listed: a Feistel network
    permutes the numbers below the next power of two, and is walked along until it comes back below
    `size` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 4 on
    cycle walking and section 5 on the network): microseconds, whatever the size.
    """

    LISTED = 1 << 17

    def __init__(self, seed: int, epoch: int, size: int, shuffle: bool) -> None:
        self._about = seed, epoch, 0, size
        self._size = size
        self._shuffle = shuffle
        bits = max(2, (size - 1).bit_length())
        self._right = bits // 2
        self._masks = (1 << (bits - self._right)) - 1, (1 << self._right) - 1
        sequence = np.random.SeedSequence([seed & 0xFFFFFFFF, epoch, 0])
        self._keys = [int(key) for key in sequence.generate_state(_ROUNDS, np.uint64)]

    def at(self, position: int) -> int:
        """Return the task that comes at this position."""
        if not self._shuffle:
            return position
        if self._size <= self.LISTED:
            return int(self._listed[position])
        while True:
            position = self._network(position, range(_ROUNDS))
            if position < self._size:
                return position

    def position_of(self, task: int) -> int:
        """Return the position at which this task comes."""
        if not self._shuffle:
            return task
        if self._size <= self.LISTED:
            return int(self._positions[task])
        while True:
            task = self._network(task, reversed(range(_ROUNDS)))
            if task < self._size:
                return task

    @cached_property
    def _listed(self) -> NDArray[np.int64]:
        return order(*self._about, shuffle=True)

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        return np.argsort(self._listed)

    def _network(self, number: int, passes: Iterable[int]) -> int:
        """Change one half by the other in each pass, which is its own inverse."""
        left, right = number >> self._right, number & self._masks[1]
        for each in passes:
            if each % 2:
                right ^= _mixed(left ^ self._keys[each]) & self._masks[1]
            else:
                left ^= _mixed(right ^ self._keys[each]) & self._masks[0]
        return left << self._right | right


def _mixed(number: int) -> int:
    """Apply the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, figure 14)."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _64
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _64
    return number ^ number >> 31


def part_of(start: int, stop: int, part: int, parts: int) -> range:
    """Return part number `part` of so many of [start, stop).

    Together they are all of it, in order, and their sizes differ by one at most.
    """
    first, last = (start + (stop - start) * p // parts for p in (part, part + 1))
    return range(first, last)


def minibatches(records: int, size: int) -> int:
    """Return into how many minibatches of `size` so many records are split.

    One left alone is joined to those before it, since a minibatch of one has no variance to
    normalise by.
    """
    whole, left = divmod(records, size)
    return whole + (left > 0) - (left == 1 and whole > 0)
