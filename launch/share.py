"""The batch when the world changes: its total stays, or it grows with the world.

- `batch(total)`: each rank's part of a total that stays exact whatever the world is. The parts
  differ by one record at most, so that an average over the ranks (as DistributedDataParallel makes)
  weighs each by `weight`.
- `Linear`: each rank's batch stays, the total grows with the world, and the learning rate with it
  (Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1: "When the minibatch size is
  multiplied by k, multiply the learning rate by k"), by way of a warm-up after each change (2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..common.errors import UsageError
from ..common.order import part_of
from . import world


@dataclass(frozen=True)
class Share:
    """This rank's records of a global batch: [start, stop).

    `weight`: the factor of its mean loss by which the mean over ranks is the mean over all records.
    """

    start: int
    stop: int
    weight: float

    @property
    def size(self) -> int:
        return self.stop - self.start

    def parts(self, most: int) -> list[tuple[int, int]]:
        """Return the share in pieces of at most `most` records, for gradient accumulation.

        As many on every rank as the largest share needs is not promised. Raises UsageError where
        `most` < 1.
        """
        if most < 1:
            raise UsageError(f"a part of {most} records is none: give at least 1.")
        return [
            (start, min(start + most, self.stop)) for start in range(self.start, self.stop, most)
        ]


def batch(total: int, *, rank: int | None = None, world_size: int | None = None) -> Share:
    """Return this rank's share of a global batch of `total` records.

    Raises UsageError where a rank would have none: --nodes must not allow that many.
    """
    rank = world.rank() if rank is None else rank
    world_size = world.world_size() if world_size is None else world_size
    if total < world_size:
        raise UsageError(
            f"a batch of {total} records has none for some of {world_size} workers: make it "
            "larger, or lower MAX of --nodes."
        )
    mine = part_of(0, total, rank, world_size)
    return Share(mine.start, mine.stop, len(mine) * world_size / total)


@dataclass(frozen=True)
class Linear:
    """A batch that grows with the world, and the learning rate with it.

    Each rank has `per_rank` records; the learning rate was chosen for `base_world` ranks. `before`:
    the world of the run that this one goes on from (`load().progress["world_size"]`). Over
    `warmup_steps` after a change the factor goes evenly from the former one to the new one.
    """

    per_rank: int
    base_world: int
    warmup_steps: int = 0
    before: int | None = None

    def __post_init__(self) -> None:
        if self.per_rank < 1 or self.base_world < 1 or self.warmup_steps < 0:
            raise UsageError(
                "Linear needs a batch and a base world of at least 1, and no fewer than 0 steps of "
                "warm-up."
            )

    @property
    def total(self) -> int:
        return self.per_rank * world.world_size()

    def factor(self, step: int) -> float:
        """Return the learning rate's factor in this step, counted from the start of the run.

        The run is this one of the script.
        """
        target = world.world_size() / self.base_world
        start = (self.before or self.base_world) / self.base_world
        if step >= self.warmup_steps:
            return target
        return start + (target - start) * (step + 1) / (self.warmup_steps + 1)
