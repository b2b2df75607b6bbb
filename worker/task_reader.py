"""The reader of a leased task's minibatches, with the definition's reader and `feed`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.order import order
from ..data.reader import RecordReader, Records, take
from ..data.views import Seen, showing
from ..proto import master_pb2 as pb
from . import batches
from .batches import user_code
from .id_columns import of_records

_MODES = {pb.TRAIN: "train", pb.EVALUATE: "evaluate", pb.PREDICT: "predict"}


@dataclass
class Lease:
    """A task that this worker holds.

    `position`: applied on all servers up to here.
    """

    task: pb.Task
    position: int = 0
    void: bool = False
    used: int = 0  # records used under this lease
    servers_version: int = 0  # of the servers that have acknowledged the last span

    @property
    def size(self) -> int:
        return int(self.task.end - self.task.start)


@dataclass
class Batch:
    """A minibatch, ready for the model."""

    lease: Lease
    start: int
    end: int
    used: int
    features: Any = None
    labels: Any = None
    prepared: Any = None  # what the trainer's `prepare` made of the features, off the critical path
    pulled: Any = None  # a pull that the trainer started ahead
    ids: Mapping[str, Any] | None = None  # columns of the records that predictions carry


class TaskReader:
    """A reader of whole minibatches.

    `readers` by task kind; `feed(records, mode)` as the definition's.

    `ask(features, labels, seen)` asks the teachers, and returns what stands for the labels.

    `views`: of a record, one after the other by epoch.

    `least`: records that a forward pass of training needs; a minibatch of one has it so many times.
    """

    def __init__(
        self,
        readers: Mapping[int, RecordReader],
        feed: Callable[[Any, str], tuple[Any, Any]],
        *,
        minibatch: int,
        seed: int,
        shuffle: bool,
        prepare: Callable[[Any], Any] = lambda _features: None,
        least: int = 1,
        ask: Callable[[Any, Any, Seen], Any] | None = None,
    ) -> None:
        self.readers = readers
        self.minibatch = minibatch
        self._feed = feed
        self._seed = seed
        self._shuffle = shuffle
        self._prepare = prepare
        self._least = least
        self._ask = ask
        self.views = 1  # may be set before anything is read, as may
        self.id_columns: Sequence[str] = ()  # columns that predictions carry

    def minibatch_of(self, _lease: Lease) -> int:
        """Return how many records a minibatch of the task has."""
        return self.minibatch

    def read(
        self,
        lease: Lease,
        position: int,
        boundaries: Sequence[int] = (),
        until: int | None = None,
    ) -> Iterator[Batch]:
        """Read the minibatches of a lease from `position` on.

        Raises SpanError. until: no record from this position on is touched; what comes is empty.
        """
        task = lease.task
        stops = (*task.boundaries, *boundaries)
        pieces = list(batches.split(position, lease.size, self.minibatch, stops))
        mode = _MODES[task.kind]
        for span in batches.spans(
            self.readers[task.kind],
            task.source,
            task.start,
            task.end,
            offsets=self.offsets(lease),
            pieces=pieces,
            skips=skipped(lease, until),
        ):
            batch = Batch(lease, span.start, span.end, span.used)
            if span.used:
                with user_code(span.start, span.end, task.source):
                    seen = self.seen(task, span.numbers)
                    fed = self.fed(span.records, mode, seen)
                    batch.features, batch.labels, batch.prepared = fed
                    if mode == "predict" and self.id_columns:
                        batch.ids = of_records(span.records, self.id_columns)
            yield batch

    def offsets(self, lease: Lease) -> NDArray[np.int64]:
        """Return the order of the task's records: int64[lease.size]."""
        task = lease.task
        shuffled = self._shuffle and task.kind == pb.TRAIN
        return order(self._seed, task.epoch, task.id, lease.size, shuffled)

    def seen(self, task: pb.Task, numbers: NDArray[np.int64]) -> Seen:
        """Return which records these of a task are, and in which view they are seen."""
        return Seen(task.source, numbers, task.epoch % self.views)

    def fed(self, records: Records, mode: str, seen: Seen) -> tuple[Any, Any, Any]:
        """Return features, labels and what `prepare` makes of the features.

        In training a single record is given `least` times, for a mean over one that batch
        normalisation can compute: where it is all that a source or a quarantine has left.
        """
        if mode == "train" and len(records) == 1 < self._least:
            records = take(records, np.zeros(self._least, np.int64))
            seen = replace(seen, records=np.repeat(seen.records, self._least))
        with showing(seen):
            features, labels = self._feed(records, mode)
        if self._ask is not None and mode == "train":
            labels = self._ask(features, labels, seen)
        return features, labels, self._prepare(features)


def skipped(lease: Lease, until: int | None) -> Sequence[int]:
    """Return the positions that are not read."""
    beyond = range(lease.size if until is None else until, lease.size)
    return [*lease.task.skips, *beyond]
