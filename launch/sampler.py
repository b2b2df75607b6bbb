"""A sampler with an exact position, which any number of ranks goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch.utils.data

from ..adaptive.positions import Share, Step, steps
from ..common.errors import UsageError
from ..common.order import order
from . import world
from .together import check_known

T = TypeVar("T")


class Sampler(torch.utils.data.Sampler[list[int]]):
    """The batches of one rank: its part of each global batch, in an order that all ranks share.

        sampler = edl.launch.Sampler(len(dataset), batch=64)
        loader = DataLoader(dataset, batch_sampler=sampler)
        ...                                           # state["sampler"], where there is one:
        sampler.load_state_dict(state["sampler"])     # goes on at the very record
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in sampler.count(loader):
                ...                                   # the mean loss times sampler.weight
                edl.launch.save({"model": model, "sampler": sampler})

    Over the ranks each of `records` is read once an epoch, whatever their number, and also where a
    state is loaded by another number of them, or with another `batch`. All ranks make the same
    steps. Parts differ by one record at most, and the last two steps share what is left of an
    epoch. Raises UsageError where a rank has nothing of a batch.
    """

    def __init__(self, records: int, batch: int, *, seed: int = 0, shuffle: bool = True) -> None:
        if records < 1:
            raise UsageError(f"a sampler of {records} records has none: give at least 1.")
        if batch < world.world_size():
            raise UsageError(
                f"a batch of {batch} records has none for some of {world.world_size()} workers: "
                "make it larger, or lower MAX of --nodes."
            )
        self._records = records
        self._batch = batch
        self._seed = seed
        self._shuffle = shuffle
        self._drawn = False  # by a loader, since the epoch or the position was set
        self._counted = False
        self.epoch = 0
        self.position = 0  # the records of the epoch that are done, by all ranks
        self.weight = 1.0  # of the batch at hand: the mean over ranks is that over all records

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, unless it is the one that is under way: then its position stays."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0
        self._drawn = self._counted = False

    def count(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches, of which those that came count as done, the one at hand too.

        A loader with workers draws batches long before they are trained with, so that only this
        knows the position.

        Raises UsageError where the loader has other batches than this sampler's, or where each of
        several ranks trains alone.
        """
        check_known()
        if type(loader).__module__.partition(".")[0] == "accelerate":
            # It shares out among the ranks what is this rank's share, and sets epochs from 0 on.
            raise UsageError(
                "accelerate has made a loader of its own of this one, which leaves records out: "
                "leave the loader out of prepare(), as in accelerator.prepare(model, optimizer), "
                "and move each batch by accelerate.utils.send_to_device(batch, accelerator.device)."
            )
        if getattr(loader, "batch_sampler", self) is not self:
            raise UsageError(
                "the loader does not draw from this sampler: make it with "
                "DataLoader(dataset, batch_sampler=sampler)."
            )
        left = list(self._left())
        number = -1
        for number, batch in enumerate(loader):
            if number == len(left):
                break
            self._counted = True
            self.weight = self._share(left[number]).weight
            self.position = left[number].stop
            yield batch
        if number + 1 != len(left):
            raise UsageError(
                f"the loader gave {number + 1} batches or more where this rank has {len(left)} in "
                "the rest of the epoch: it must give those of this sampler, each once."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the position, which is the same on all ranks.

        Raises UsageError where batches were drawn that nobody counted.
        """
        if self._drawn and not self._counted:
            raise UsageError(
                "nobody has counted the batches, so the position is not known: iterate over "
                "sampler.count(loader) instead of the loader."
            )
        return {
            "epoch": self.epoch,
            "position": self.position,
            "records": self._records,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position. Raises UsageError where that is one of other records or order."""
        own = {"records": self._records, "seed": self._seed, "shuffle": self._shuffle}
        for name, mine in own.items():
            if state[name] != mine:
                raise UsageError(
                    f"the saved position is of {name}={state[name]}, and this sampler has "
                    f"{name}={mine}: in another order the same position leaves records out and "
                    "reads others twice. Make the sampler as it was, or begin the epoch anew."
                )
        self.epoch, self.position = state["epoch"], state["position"]
        self._drawn = self._counted = False

    def __iter__(self) -> Iterator[list[int]]:
        records = order(self._seed, self.epoch, 0, self._records, self._shuffle)
        for step in self._left():
            self._drawn = True
            yield records[self._share(step).positions].tolist()

    def __len__(self) -> int:
        """Return the steps that are left of the epoch."""
        return sum(1 for _ in self._left())

    def _left(self) -> Iterator[Step]:
        return steps(
            self.position,
            self._records,
            replicas=world.world_size(),
            batch_size=self._batch,
            micros=1,
        )

    def _share(self, step: Step) -> Share:
        return step.share(0, world.rank(), world.world_size())
