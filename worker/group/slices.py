"""A member's slices of its round's minibatches.

All members of a round are given the same tasks, and split them into the same minibatches; of the N
records of a minibatch that are used, rank r of R takes the positions [r * N // R, (r + 1) * N //
R), with R as small as it takes for each slice to have two. So the minibatch is the same whoever
trains, and each record is in one slice. A member whose slice is empty computes on the first records
with the weight 0, since it must take part in the step; so do those of the ranks from R on, and
those whose state is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.order import part_of
from ...data.reader import take
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from .. import batches
from ..batches import Minibatch, user_code
from ..task_reader import Batch, Lease, TaskReader, skipped

_LEAST = 2  # records of a slice, or of a stand-in: batch normalisation needs two


def slice_of(records: int, rank: int, shares: int) -> range:
    """Return a rank's slice of so many records: none, or two at least where there are two."""
    shares = max(1, min(shares, records // _LEAST))
    return part_of(0, records, rank, shares) if rank < shares else range(0)


def passes_of(records: int, most: int) -> int:
    """Return the number of forward and backward passes over a slice of so many records.

    Each is of at most `most` records (0: of all), or of one more where that leaves none alone.
    """
    passes = -(-records // most) if most else 1
    return min(passes, max(1, records // _LEAST)) if most > 1 else passes


@dataclass
class Slice(Batch):
    """A member's part of a minibatch: `used` records of the `total` that are used in all.

    `parts`: features, labels, how many records count, and what `prepare` made of the features, of
    one forward and backward pass each.
    """

    total: int = 0
    parts: Sequence[tuple[Any, Any, int, Any]] = ()


class RoundLeases:
    """The tasks of a round by number, and those that a member does alone."""

    def __init__(self, master: MasterClient, round_: int) -> None:
        self._master = master
        self._round = round_
        self._number = 1

    def get_task(self, wait_s: float, _most: int) -> pb.GetTaskReply:
        reply = self._master.get_task_of_round(self._round, self._number, wait_s)
        if reply.outcome == pb.GetTaskReply.TASK and reply.task.kind == pb.TRAIN:
            self._number += 1
        return reply

    def begins(self, task: int, attempt: int, start: int, end: int) -> None:
        self._master.begins(task, attempt, start, end, self._round)


class SliceReader:
    """The reader of a member's slices of minibatches to train on; other tasks it reads whole."""

    def __init__(self, whole: TaskReader, *, rank: int, shares: int, most: int) -> None:
        """Read slices out of what `whole` reads.

        `shares`: R, the ranks that have slices. `most`: records of one forward and backward pass;
        0: all of the slice.
        """
        self._whole = whole
        self._rank, self._shares, self._most = rank, shares, most
        # What an adaptive minibatch changes before anything is read:
        self.train_minibatch = whole.minibatch
        self.splits: Callable[[int], bool] = lambda _number: False  # a slice into two passes
        self._number = 0  # of the next slice that counts

    def minibatch_of(self, lease: Lease) -> int:
        """Return how many records a minibatch of the task has, of all members together."""
        return self.train_minibatch if lease.task.kind == pb.TRAIN else self._whole.minibatch

    def read(
        self,
        lease: Lease,
        position: int,
        boundaries: Sequence[int] = (),
        until: int | None = None,
    ) -> Iterator[Batch]:
        """Read the slices of a lease from `position` on, as TaskReader.read.

        Raises SpanError.
        """
        if lease.task.kind != pb.TRAIN:
            yield from self._whole.read(lease, position, boundaries, until)
            return
        task = lease.task
        stops = (*task.boundaries, *boundaries)
        unused = np.zeros(lease.size, dtype=bool)
        unused[skipped(lease, until)] = True
        kept = np.zeros(lease.size, dtype=bool)
        pieces = list(batches.split(position, lease.size, self.train_minibatch, stops))
        counts = []
        for start, end in pieces:
            used = start + np.flatnonzero(~unused[start:end])
            mine = slice_of(len(used), self._rank, self._shares)
            # Who has none needs something to stand in.
            kept[used[mine.start : mine.stop] if mine else used[:_LEAST]] = True
            counts.append((len(used), len(mine)))
        spans = batches.spans(
            self._whole.readers[task.kind],
            task.source,
            task.start,
            task.end,
            offsets=self._whole.offsets(lease),
            pieces=pieces,
            skips=np.flatnonzero(~kept),
        )
        for span, (total, count) in zip(spans, counts, strict=True):
            piece = Slice(lease, span.start, span.end, count, total=total)
            with user_code(span.start, span.end, task.source):
                piece.parts = list(self._parts(task, span, bool(count)))
            self._number += bool(total)
            yield piece

    def _parts(
        self, task: pb.Task, span: Minibatch, counts: bool
    ) -> Iterator[tuple[Any, Any, int, Any]]:
        count = span.used
        passes = passes_of(count, self._most)
        if self.splits(self._number):
            passes = max(passes, min(count // _LEAST, 2))
        for number in range(passes if count else 0):
            part = part_of(0, count, number, passes)
            mine = np.arange(part.start, part.stop)
            seen = self._whole.seen(task, span.numbers[mine])
            features, labels, prepared = self._whole.fed(take(span.records, mine), "train", seen)
            yield features, labels, len(part) if counts else 0, prepared
