"""Statistics of a column's values in bounded memory; those of parts merge.

Pure. Each takes an array of values and merges with another of its kind; the merge of parts says
what the whole would, exactly or within the error that it tells itself.

    Moments    count, mean and deviation                exact (float64)
    Distinct   how many values differ                   exact up to its size, then an estimate
    Frequent   the most frequent values, with counts    exact up to its size, then within an error
    Quantiles  the value of each rank                   exact up to its size, then within an error
"""

from __future__ import annotations

import collections
import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.hashing import hash64

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared differences from the mean.

    Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", equation 2.1.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Floats) -> Moments:
        if not len(values):
            return cls()
        with np.errstate(over="ignore"):
            mean = float(values.mean())
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(len(values), mean, float(np.square(values - mean).sum()))

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        if not (self.count and other.count):
            return self if self.count else other
        delta = other.mean - self.mean
        squares = self.squares + other.squares + delta * delta * self.count * other.count / count
        return Moments(count, self.mean + delta * other.count / count, squares)

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the values themselves (divided by n, not n - 1)."""
        return (self.squares / self.count) ** 0.5 if self.count else 0.0


@dataclass
class Distinct:
    """The `size` least hashes of the values: how many there are, if fewer, is known exactly.

    Else the k-th of them tells it: Bar-Yossef et al. 2002, "Counting distinct elements in a data
    stream", algorithm 1, with the unbiased (k - 1) / U(k) of Beyer et al. 2007, section 4.1.
    """

    size: int
    hashes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, values: list[Any]) -> None:
        """Take values; each may come any number of times."""
        self._take(hash64("", values))

    def merge(self, other: Distinct) -> None:
        self._take(other.hashes)

    def _take(self, hashes: NDArray[np.int64]) -> None:
        if not self.exact:
            hashes = hashes[hashes < self.hashes[-1]]  # soon few, and there is nothing to sort
        if len(hashes):  # sorted by hand: np.union1d takes 20 times as long
            merged = np.sort(np.concatenate([self.hashes, hashes]))
            self.hashes = merged[np.append(True, merged[1:] != merged[:-1])][: self.size]

    @property
    def exact(self) -> bool:
        return len(self.hashes) < self.size

    @property
    def count(self) -> int:
        if self.exact:
            return len(self.hashes)
        return round((self.size - 1) / (float(self.hashes[-1]) / 2.0**63))

    @property
    def error(self) -> float:
        """Return the relative standard error (Beyer et al. 2007, section 4.2); 0 where exact."""
        return 0.0 if self.exact else 1 / (self.size - 2) ** 0.5


@dataclass
class Frequent:
    """Counts of the most frequent values: right up to `size` values, then too low by <= `error`.

    Misra and Gries 1982; the merge is that of Agarwal et al. 2012, "Mergeable summaries", section
    3: the counts add up, and the (size + 1)-th greatest is taken off all. So the error is at most
    the number of values / (size + 1).
    """

    size: int
    counts: collections.Counter[Any] = field(default_factory=collections.Counter)
    error: int = 0

    def add(self, counts: collections.Counter[Any]) -> None:
        """Take so many of each of these values."""
        self.counts.update(counts)
        if len(self.counts) > 4 * self.size:  # seldom: it takes a look at all
            self.shrink()

    def merge(self, other: Frequent) -> None:
        self.counts.update(other.counts)
        self.error += other.error
        self.shrink()

    def most(self, number: int) -> list[tuple[Any, int]]:
        """Return the most frequent values and their counts; of equal ones the lesser first."""
        self.shrink()
        return heapq.nsmallest(number, self.counts.items(), key=lambda each: (-each[1], each[0]))

    def shrink(self) -> None:
        """Keep `size` values at most."""
        if len(self.counts) <= self.size:
            return
        counts = np.fromiter(self.counts.values(), np.int64, len(self.counts))
        cut = int(np.partition(counts, -self.size - 1)[-self.size - 1])
        self.counts = collections.Counter({v: n - cut for v, n in self.counts.items() if n > cut})
        self.error += cut


@dataclass
class Quantiles:
    """A sample of the values from which the value of each rank can be told.

    Karnin, Lang and Liberty 2016, "Optimal quantile approximation in streams", section 4: buffers
    of values of weight 2^h. A full one is sorted, and every other value, from the first or from the
    second by a throw of a coin, goes up to the next. A compaction changes a rank by 2^h at most,
    0 on average, so their squares add up to the variance that `rank_error` tells.
    """

    size: int
    coins: np.random.Generator
    buffers: list[Floats] = field(default_factory=lambda: [np.empty(0)])
    count: int = 0
    variance: float = 0.0

    def add(self, values: Floats) -> None:
        self.count += len(values)
        self.buffers[0] = np.concatenate([self.buffers[0], values])
        self._compact()

    def merge(self, other: Quantiles) -> None:
        while len(self.buffers) < len(other.buffers):
            self.buffers.append(np.empty(0))
        for height, buffer in enumerate(other.buffers):
            self.buffers[height] = np.concatenate([self.buffers[height], buffer])
        self.count += other.count
        self.variance += other.variance
        self._compact()

    def _room(self, height: int) -> int:
        """Return how many values a buffer may hold: 2/3 of the one above it."""
        return max(8, int(self.size * (2 / 3) ** (len(self.buffers) - 1 - height)))

    def _compact(self) -> None:
        height = 0
        while height < len(self.buffers):
            if len(self.buffers[height]) > self._room(height):
                if height + 1 == len(self.buffers):
                    self.buffers.append(np.empty(0))
                values = np.sort(self.buffers[height])
                odd, values = np.split(values, [len(values) % 2])
                chosen = values[int(self.coins.integers(2)) :: 2]
                self.buffers[height] = odd
                self.buffers[height + 1] = np.concatenate([self.buffers[height + 1], chosen])
                self.variance += 4.0**height
            height += 1

    @property
    def rank_error(self) -> float:
        """Return 3 standard deviations of a rank, and half the weight of a value, as a share.

        It is 0 where all values are there.
        """
        if len(self.buffers) == 1:
            return 0.0
        return float(3 * self.variance**0.5 + 2.0 ** (len(self.buffers) - 2)) / self.count

    def at(self, probabilities: Floats) -> Floats:
        """Return the values of which so large a share of all is less or equal, by linear rank."""
        values = np.concatenate(self.buffers)
        if len(self.buffers) == 1:
            return np.asarray(np.quantile(values, probabilities))
        weights = np.repeat(2.0 ** np.arange(len(self.buffers)), [len(b) for b in self.buffers])
        order = np.argsort(values, kind="stable")
        ends = np.cumsum(weights[order])
        middles = (ends - weights[order] / 2) / ends[-1]
        places = np.searchsorted(middles, probabilities).clip(0, len(values) - 1)
        return np.asarray(values[order][places])
