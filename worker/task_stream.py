"""The stream of tasks that are leased, and of their minibatches, read ahead of the trainer.

All in one thread.

The thread runs at most `depth()` minibatches ahead; the next task is leased while the last
minibatches of this one compute. A lease's `position` is what all servers have acknowledged: only
the trainer moves it, so a task is reported by what was applied and never by what was read. A lease
that is void (fenced, failed, drained) is passed over by both sides. Of a `careful` task, over which
workers have ended, nothing is read ahead: each span is told to the master before it is read, once
all that was before is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from ..common import background
from ..common.clock import Clock, MonotonicClock
from ..common.errors import Fenced
from ..proto import master_pb2 as pb
from . import batches, pulse
from .batches import SpanError
from .task_reader import Batch, Lease

_GET_TASK_WAIT_S = 10.0  # how long the master may hold a request for a task
# Tasks that are leased at once last about so long: less is all calls, more is all waste.
_LEASE_S = 2.0
_MOST_AT_ONCE = 32


@dataclass
class EndOfTask:
    """The end of a task: all minibatches of the lease have been handed out."""

    lease: Lease


@dataclass
class BadSpan:
    """A minibatch that could not be read or fed."""

    lease: Lease
    error: SpanError


class Woken:
    """A sign that `wake` was called: there is something else to do."""


Item = Batch | EndOfTask | BadSpan | Woken


class LeaseSource(Protocol):
    """The master, as far as the stream needs it (master/client.py)."""

    def get_task(self, wait_s: float, most: int) -> pb.GetTaskReply: ...

    def begins(self, task: int, attempt: int, start: int, end: int) -> None: ...


class MinibatchReader(Protocol):
    """A reader of the minibatches of a task: whole (task_reader.py) or in slices."""

    def minibatch_of(self, lease: Lease) -> int: ...

    def read(
        self,
        lease: Lease,
        position: int,
        boundaries: Sequence[int] = (),
        until: int | None = None,
    ) -> Iterator[Batch]: ...


class TaskStream:
    """The minibatches and ends of tasks, until the master says that all is done.

    `reader` runs in the stream's thread. `several`: lease as many tasks at once as last for two
    seconds, by the rate of the last ones.
    """

    def __init__(
        self,
        master: LeaseSource,
        reader: MinibatchReader,
        *,
        depth: Callable[[], int] = lambda: 2,
        several: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.reader = reader
        self._master = master
        self._depth = depth
        self._several = several
        self._clock = clock or MonotonicClock()
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._ended = False
        self._hungry = False  # the consumer waits: it has done all that it was given
        self._error: BaseException | None = None
        self.leases: dict[int, Lease] = {}

    def start(self) -> None:
        background.begin("task-stream", self._run).add_done_callback(self._end)

    def close(self) -> None:
        """Lease nothing more, read nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def held(self) -> list[Lease]:
        """Return the leases that are not void, oldest first."""
        with self._changed:
            return [lease for lease in self.leases.values() if not lease.void]

    def forget(self, lease: Lease) -> None:
        """Forget a lease that has ended: reported, fenced or handed back."""
        with self._changed:
            lease.void = True
            if self.leases.get(lease.task.id) is lease:  # not one of the same task that came after
                del self.leases[lease.task.id]
            self._changed.notify_all()

    def next(self, timeout_s: float | None = None) -> Item | None:
        """Return the next item; None at the end of everything, after close, or after `timeout_s`.

        Raises what the thread died of (Fenced, Unreachable).
        """
        with self._changed:
            self._hungry = timeout_s != 0 and not self._items
            if self._hungry:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._items or self._ended or self._closed, timeout_s)
            self._hungry = False
            if self._closed:
                return None
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def wake(self) -> None:
        """Have `next` return at once."""
        with self._changed:
            self._items.append(Woken())
            self._hungry = False
            self._changed.notify_all()

    def peek(self) -> Item | None:
        """Return the item that `next` would return, if there is one now."""
        with self._changed:
            return self._items[0] if self._items else None

    @property
    def ended(self) -> bool:
        """Tell whether everything was handed out and the master has nothing more."""
        with self._changed:
            return self._ended and not self._items

    def _run(self) -> None:
        most = 1
        while not self._closed:
            reply = self._master.get_task(_GET_TASK_WAIT_S, most)
            if reply.outcome == pb.GetTaskReply.TASK:
                began = self._clock.now()
                tasks = [reply.task, *reply.more]
                leases = [Lease(task, position=task.position) for task in tasks]
                with self._changed:
                    self.leases.update((lease.task.id, lease) for lease in leases)
                for lease in leases:
                    if not lease.void:
                        self._produce(lease)
                if self._several:
                    took_s = max(self._clock.now() - began, 1e-6) / len(leases)
                    most = max(1, min(_MOST_AT_ONCE, int(_LEASE_S / took_s)))
            elif reply.outcome == pb.GetTaskReply.FENCED:
                raise Fenced("the master has declared this worker lost")
            elif reply.outcome != pb.GetTaskReply.WAIT:
                return  # finished, or drain: the heartbeat says so too

    def _end(self, run: Future[None]) -> None:
        """Have `next` end, or raise what the thread died of."""
        with self._changed:
            self._ended, self._error = True, run.exception(0)
            self._changed.notify_all()

    def _produce(self, lease: Lease) -> None:
        if lease.task.kind in (pb.TRAIN, pb.EVALUATE, pb.PREDICT):
            try:
                for batch in self._watched(lease):
                    if not self._put(batch):
                        return
            except SpanError as error:
                self._put(BadSpan(lease, error))
                return
        if lease.task.careful and not self._begin(lease, lease.size, lease.size):
            return
        if self._put(EndOfTask(lease)) and lease.task.careful:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or lease.void)

    def _watched(self, lease: Lease) -> Iterator[Batch]:
        """Yield the minibatches of a lease, the reading of each under the eye of the keeper."""
        task, position = lease.task, lease.position
        reading = None if task.careful else self.reader.read(lease, position)
        while position < lease.size:
            end = self._end_of_span(lease, position)
            if task.careful:
                if not self._begin(lease, position, end):
                    return
                reading = self.reader.read(lease, position, until=end)
            with pulse.section(pulse.FEED, task.id, task.attempt, position, end):
                batch = next(reading)  # type: ignore[arg-type]
            position = batch.end
            yield batch

    def _end_of_span(self, lease: Lease, position: int) -> int:
        size = self.reader.minibatch_of(lease)
        return next(batches.split(position, lease.size, size, lease.task.boundaries))[1]

    def _begin(self, lease: Lease, start: int, end: int) -> bool:
        """Tell the master what comes, once nothing else is under way here; False: it need not."""
        with self._changed:
            self._changed.wait_for(lambda: self._hungry or self._closed or lease.void)
            if self._closed or lease.void:
                return False
        self._master.begins(lease.task.id, lease.task.attempt, start, end)
        return True

    def _put(self, item: Batch | EndOfTask | BadSpan) -> bool:
        """Wait for room and put the item there; False: the lease is void or the stream closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._items) < self._depth() or self._closed or item.lease.void
            )
            if self._closed or item.lease.void:
                return False
            self._items.append(item)
            self._hungry = False  # it may not have woken yet
            self._changed.notify_all()
            return True
