"""Data loaders whose batch follows the replicas and the goodput, at exact positions.

A loop over an AdaptiveDataLoader is one pass over the records (positions.py): over the replicas
each is read exactly once, whatever their number, and however often the job is restarted with
another one meanwhile.

Without autoscale the total batch is always `batch_size`. With it, a loop begins with the batch of
the best goodput, and asks again every RETUNE_STEPS optimizer steps; another one is adopted if it
promises more than 5 % more. Epochs are then measured by statistical progress (Pollux, OSDI '21,
section 3.1): epoch e ends when the optimizer has progressed as far as e + 1 passes at the initial
batch would bring it, wherever in a pass that is; the next loop goes on there.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sized
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ..common.order import order
from . import collective
from .batch_size import Batch
from .epoch import epochs
from .loop import AdaptiveDataLoaderHelper, AdaptiveDataLoaderMixin, current_dataloader
from .positions import Step, steps

__all__ = [
    "AdaptiveDataLoader",
    "AdaptiveDataLoaderHelper",
    "AdaptiveDataLoaderMixin",
    "Batch",
    "ElasticSampler",
    "current_dataloader",
]

T = TypeVar("T")

RETUNE_STEPS = 100  # optimizer steps; a guess: asking costs a broadcast, and a fit each 30 s


class ElasticSampler(Sampler[int]):
    """The records of this replica from a position on, in an order that all replicas share.

    By itself: `for record in sampler` gives every num_replicas-th record of the rest of the pass.
    The shares of the replicas differ by at most one record; none is repeated.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self._size = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int, index: int = 0) -> None:
        """Stand at a record of an epoch; from len(dataset) on, `index` is in its later passes."""
        self.epoch = epoch
        self.index = index

    @property
    def num_replicas(self) -> int:
        """The number of replicas that share the records."""
        return collective.place()[1]

    @property
    def rank(self) -> int:
        """The rank of this replica."""
        return collective.place()[0]

    @property
    def position(self) -> int:
        """The position within the pass."""
        return self.index % max(1, self._size)

    def order(self) -> NDArray[np.int64]:
        """Return the records by position, int64[len(dataset)]: the whole pass, of all replicas."""
        number = self.index // max(1, self._size)
        return order(self._seed, self.epoch, number, self._size, self._shuffle)

    def end_of_pass(self, index: int) -> int:
        """Return where the pass ends that this index is in."""
        return (index // self._size + 1) * self._size

    def steps(self, batch: Batch, start: int | None = None) -> Iterator[Step]:
        """Return the optimizer steps of the rest of the pass."""
        return steps(
            self.position if start is None else start,
            self._size,
            replicas=batch.replicas,
            batch_size=batch.total,
            micros=batch.accumulation + 1,
        )

    def __iter__(self) -> Iterator[int]:
        yield from map(int, self.order()[self.position + self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return len(range(self.position + self.rank, self._size, self.num_replicas))


class AdaptiveDataLoader(DataLoader[T], AdaptiveDataLoaderMixin):
    """torch's DataLoader over the records of this replica, elastic.

    `batch_size` is the total of an optimizer step over all replicas; `seed` that of the shuffling,
    the same on all of them. All else are torch's arguments. `drop_last` changes nothing: it is
    there so that no step has a tiny batch, and none has (positions.py), without a record that is
    not read. Raises ValueError for a sampler of one's own, TypeError for an IterableDataset.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        **dataloader_kwargs: Any,
    ) -> None:
        dataloader_kwargs.pop("drop_last", None)
        for name in ("sampler", "batch_sampler"):
            if dataloader_kwargs.pop(name, None) is not None:
                raise ValueError(
                    f"{name} cannot be given to an AdaptiveDataLoader, which itself decides who "
                    "reads which records, each once: leave it out"
                )
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise TypeError("an AdaptiveDataLoader needs a dataset with a length and an index")
        self._size = len(dataset)
        AdaptiveDataLoaderMixin.__init__(self, batch_size, True, pass_records=self._size)
        self._epoch_of_birth = epochs().current or 0
        self._order = ElasticSampler(dataset, shuffle, seed)
        # Out of it come the seeds of the workers: of the same user's seed, others on each replica,
        # whose rank is known when the first loop begins.
        self._unseeded: int | None = None
        if dataloader_kwargs.get("generator") is None:
            dataloader_kwargs["generator"] = torch.Generator()
            self._unseeded = torch.initial_seed()
        shares = _Shares(self._order, self._elastic)
        super().__init__(dataset, batch_sampler=shares, **dataloader_kwargs)
        # torch has None here with a batch_sampler, and lets nobody set it.
        self.__dict__["batch_size"] = batch_size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        elastic = self._elastic
        with elastic.context():
            if elastic.skipdone() or not self._size:
                return
            elastic._sync_local_bsz()
            self._seed()
            over = collective.control().broadcast(self._left()[0])
            try:
                while not over:
                    over = yield from self._pass()
            except GeneratorExit:  # broken off: the next loop begins a pass of its own
                elastic.current_index = self._order.end_of_pass(elastic.current_index)
                raise

    def _pass(self) -> Generator[Any, None, bool]:
        """Yield the rest of the pass.

        Gives (as a generator does) whether the loop is over with it.
        """
        elastic = self._elastic
        end = self._order.end_of_pass(elastic.current_index)
        while elastic.current_index < end:
            batch = elastic.batch
            self._order.set_epoch(self._epoch_of_birth, elastic.current_index)
            batches = super().__iter__()
            for step in self._order.steps(batch):
                done, surely = self._left()
                if elastic.boundary(done, surely):
                    return True
                whole = step.stop - step.start == batch.total
                for micro in range(step.micros):
                    elastic.begin(step, micro)
                    data = next(batches)
                    with elastic.micro_batch(commit=whole):
                        yield data
                elastic.current_index += step.stop - step.start
                if elastic.steps_of_loop % RETUNE_STEPS == 0:
                    elastic._sync_local_bsz()
                    if elastic.batch != batch:
                        break
        by_progress = epochs().current is not None and elastic.max_batch_size is not None
        return not by_progress or elastic.models.trained() is None

    def _seed(self) -> None:
        if self._unseeded is not None and self.generator is not None:
            seed = self._unseeded + self._order.rank * max(1, self.num_workers)
            self.generator.manual_seed(seed & (2**63 - 1))
            self._unseeded = None

    def _left(self) -> tuple[bool, float]:
        """Return whether progress has ended the epoch, and in how many steps it surely will not.

        One step's progress is <= M / M0. Before a model has made one in this loop nobody knows.
        """
        epoch, elastic = epochs().current, self._elastic
        if epoch is None or elastic.max_batch_size is None:
            return False, math.inf
        model = elastic.models.trained()
        if model is None:
            return False, 0.0
        progress = self._size * (epoch + 1) / elastic.batch_size - model.progress
        left = math.ceil(progress / (elastic.max_batch_size / elastic.batch_size))
        return left <= 0, left


class _Shares(Sampler[list[int]]):
    """The records that this replica reads in the rest of the pass, by micro-batch."""

    def __init__(self, order: ElasticSampler, elastic: AdaptiveDataLoaderHelper) -> None:
        self._order = order
        self._elastic = elastic

    def __iter__(self) -> Iterator[list[int]]:
        rank, replicas = collective.place()
        records = self._order.order()
        for step in self._order.steps(self._elastic.batch):
            for micro in range(step.micros):
                yield records[step.share(micro, rank, replicas).positions].tolist()

    def __len__(self) -> int:
        """Return the micro-batches of a whole pass with the batch in use."""
        return sum(step.micros for step in self._order.steps(self._elastic.batch, start=0))
