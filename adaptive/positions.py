"""The shares of a pass: which replica reads which positions, so that each is read once. Pure.

A pass is one reading of all records, in one order. An optimizer step takes the next `batch_size`
positions of it, split into micro-batches, each split into one share for each replica. All replicas
make the same steps and micro-batches, for they meet in a collective at each; so what does not
divide is shared out unevenly instead of padded or dropped: shares of a micro-batch differ by at
most one record.

    positions   |<------ step ------>|<------ step ------>|<--- step --->|<--- step --->|
    micro-batch |<------->|<-------->|                    the last two share what is left evenly,
    shares      | 0 | 1 |2| ...                           so that none is less than half a batch

A mean over replicas of means over shares is the mean over the records if each share's loss is
multiplied by its weight, (records of the share) / (mean records of a share of the step).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..common.order import part_of


@dataclass(frozen=True)
class Share:
    """A share: what one replica reads of one micro-batch.

    `weight`: see above; 1 where all shares are equal.

    A replica never has nothing to compute. Where there are fewer records than replicas (the pass
    is that short, or a restart with more replicas left so few), some repeat a record, weight 0.
    """

    positions: range
    weight: float


@dataclass(frozen=True)
class Step:
    """An optimizer step: positions [start, stop) in so many micro-batches."""

    start: int
    stop: int
    micros: int

    def share(self, micro: int, rank: int, replicas: int) -> Share:
        whole = part_of(self.start, self.stop, micro, self.micros)
        positions = part_of(whole.start, whole.stop, rank, replicas)
        weight = len(positions) * replicas * self.micros / (self.stop - self.start)
        return Share(positions or range(whole.start, whole.start + 1), weight)


def steps(start: int, end: int, *, replicas: int, batch_size: int, micros: int) -> Iterator[Step]:
    """Yield the steps from position `start` to the end of the pass.

    `batch_size` is over all replicas and micro-batches. No share has more than
    ceil(batch_size / micros / replicas) records; 2 where that is 1.
    """
    least = replicas * micros  # of a step in which every share has a record
    assert 0 <= start <= end, (start, end)
    assert batch_size >= least, (batch_size, least)
    while start < end:
        left = end - start
        size = min(batch_size, left)
        if batch_size < left < 2 * batch_size:
            size = (left + 1) // 2 if left >= 2 * least else left
        yield Step(start, start + size, min(micros, max(1, size // replicas)))
        start += size
