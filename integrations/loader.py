"""A torch DataLoader of one replica's micro-batches, from any optimizer step of any epoch on.

It may be given to a trainer that counts batches: its length is that of a whole pass, also where it
begins in the middle of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ..common.errors import UsageError
from .passes import Batches, Passes

T = TypeVar("T")


class Shares(Sampler[list[int]]):
    """The records of one replica, by micro-batch: those of one pass each time it is iterated."""

    def __init__(self, passes: Passes, rank: int, replicas: int) -> None:
        self._passes = passes
        self._rank = rank
        self._replicas = replicas
        self._epoch = 0
        self._first = 0
        self.sampler = self  # where trainers look for set_epoch
        # Of the loader's workers: a loader that is begun anew takes no number from the model's.
        self.generator = torch.Generator()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Give the next iteration the order of this epoch."""
        self._epoch = epoch
        words = np.random.SeedSequence([self._passes.seed & 0xFFFFFFFF, epoch, self._rank])
        self.generator.manual_seed(int(words.generate_state(1)[0]))

    def begin_at(self, step: int) -> None:
        """Let the next iteration, and only that one, begin with this optimizer step."""
        self._first = step

    def __iter__(self) -> Iterator[list[int]]:
        first, self._first = self._first, 0
        records = self._passes.order(self._epoch)
        for number in range(first, self._passes.steps):
            step = self._passes.step(number, self._replicas)
            for micro in range(step.micros):
                share = step.share(micro, self._rank, self._replicas)
                yield records[share.positions].tolist()

    def __len__(self) -> int:
        return self._passes.micro_batches(self._replicas)


class ElasticDataLoader(DataLoader[T]):
    """torch's DataLoader of this replica's records. `arguments` are torch's own.

    Raises UsageError for a dataset without length and index.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batches: Batches,
        place: tuple[int, int],
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        **arguments: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise UsageError(
                "an exact position needs a dataset with a length and an index: a stream has none. "
                "Give a dataset with __len__ and __getitem__."
            )
        self.passes = Passes(len(dataset), batches, seed, shuffle, drop_last)
        self.shares = Shares(self.passes, *place)
        arguments.setdefault("generator", self.shares.generator)
        super().__init__(dataset, batch_sampler=self.shares, **arguments)

    def set_epoch(self, epoch: int) -> None:
        """Give the next iteration the order of this epoch."""
        self.shares.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: whoever saves knows which steps count, a loader only what was read."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next iteration at `step` of `epoch`."""
        self.shares.set_epoch(state["epoch"])
        self.shares.begin_at(state["step"])
