"""A pass over the data in optimizer steps of one global batch, whatever the replicas. Pure.

    positions   |<-- step 0 -->|<-- step 1 -->| ... |<- last ->|   the last is what is left
    micro-batch |<---->|<----->|                                   no more than memory has room for
    shares      | 0 | 1 | 0 | 1 |                                  of replicas, even to one record

Steps do not depend on the replicas, so the number of a step is a position that each world
understands, and learning rates that follow it go on unchanged. All steps but the last have the same
number of micro-batches, as trainers expect of gradient accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..adaptive.positions import Step
from ..common.errors import UsageError
from ..common.order import order


@dataclass(frozen=True)
class Batches:
    """A global batch of `total` records, of which a replica computes `most` at once."""

    total: int
    most: int

    def __post_init__(self) -> None:
        if self.total < 1 or self.most < 1:
            raise UsageError(
                f"a global batch of {self.total} records, {self.most} at once, is none: give at "
                "least 1 of each."
            )

    def micros(self, records: int, replicas: int) -> int:
        """Return into how many micro-batches a step of so many records is split."""
        return -(-records // (replicas * self.most))

    def accumulation(self, replicas: int) -> int:
        """Return the micro-batches of a whole step. Raises UsageError where a replica has none."""
        if self.total < replicas:
            raise UsageError(
                f"a batch of {self.total} records has none for some of {replicas} replicas: make "
                "it larger, or lower MAX of --nodes."
            )
        return self.micros(self.total, replicas)


@dataclass(frozen=True)
class Passes:
    """The passes over so many records. Raises UsageError where a pass has no step."""

    records: int
    batches: Batches
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not self.steps:
            raise UsageError(
                f"there are {self.records} records, which is not one batch of "
                f"{self.batches.total}: give more records, a smaller batch, or leave out drop_last."
            )

    @property
    def steps(self) -> int:
        """The optimizer steps of a pass."""
        whole, left = divmod(self.records, self.batches.total)
        return whole + (left > 0 and not self.drop_last)

    def step(self, number: int, replicas: int) -> Step:
        """Return a step of a pass, by its number from 0."""
        start = number * self.batches.total
        stop = min(start + self.batches.total, self.records)
        return Step(start, stop, self.batches.micros(stop - start, replicas))

    def micro_batches(self, replicas: int) -> int:
        """Return the micro-batches of a pass."""
        whole = self.batches.accumulation(replicas)
        return (self.steps - 1) * whole + self.step(self.steps - 1, replicas).micros

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the records by position, int64[records]: the same on all replicas."""
        return order(self.seed, epoch, 0, self.records, self.shuffle)
