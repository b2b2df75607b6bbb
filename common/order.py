"""The order of everything that is shuffled, a pure function of (seed, epoch, task), and its cutting.

Whoever asks again gets the same order, so that positions within a task mean the same to the master,
to every worker and to every server's ledger.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def order(seed: int, epoch: int, task: int, size: int, shuffle: bool) -> NDArray[np.int64]:
    """Record offsets by position: int64[size], a permutation of 0..size-1.

    Task ids begin at 1; task 0 stands for the order of the tasks of the epoch itself.
    """
    if not shuffle:
        return np.arange(size, dtype=np.int64)
    key = np.random.SeedSequence([seed & 0xFFFFFFFF, epoch, task])
    return np.random.Generator(np.random.Philox(key)).permutation(size).astype(np.int64)


def part_of(start: int, stop: int, part: int, parts: int) -> range:
    """Part number `part` of so many of [start, stop): together they are all of it, in order, and
    their sizes differ by one at most."""
    first, last = (start + (stop - start) * p // parts for p in (part, part + 1))
    return range(first, last)


def minibatches(records: int, size: int) -> int:
    """Into how many minibatches of `size` so many records are cut: one that would be left alone is
    joined to those before it, since a minibatch of one has no variance to normalise by."""
    whole, left = divmod(records, size)
    return whole + (left > 0) - (left == 1 and whole > 0)
