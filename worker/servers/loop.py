"""The loop of a worker whose model is on servers: take a minibatch, compute, push, report.

One incarnation of a worker is one `Worker`. Its account is the leases' positions: a position moves
only when all servers have acknowledged the span, and reports carry nothing else. Pipeline: the
stream reads ahead in its thread, the next pull and the last pushes run in others while this thread
computes. At most `push_window` pushes are sent and not yet acknowledged; acknowledgements are taken
in the order of the spans, and each is followed to its end before the next is looked at.

What ends a lease early, or sends it back:
  fenced      a server or the master knows a newer attempt: drop the lease, say nothing. What was
              sent behind it is of no account: no server applies it.
  gap         a server lacks earlier spans, or has a part of this one (it was replaced, and stands
              where its snapshot does): compute again from where it stands, then go on. The
              exception is a push that was sent while others were under way: it may only have met
              the refusal, or outrun the arrival, of one of those. They are applied by the time that
              it is looked at, so the same gradients are sent once more, now alone.
  stale       the gradients are beyond the staleness bound: pull, compute again.
  failure     the content fails (exception, NaN, broken record): report span, file and record.
  drain       hand every lease back at its exact position.
  not pinned  a server that held the cut of an evaluation was replaced: hand the lease back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ...common import faults
from ...common.errors import EdlError, Fenced, NotPinned
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from ...ps.worker_client import PushOutcome, PushResult
from .. import pulse, reports
from ..batches import SpanError, user_code
from ..phases import COMPUTE, DATA, SERVERS
from ..reports import Status
from ..task_reader import Batch, Lease
from ..task_stream import BadSpan, EndOfTask, Item, TaskStream
from ..trainer import Beat, Gradients, ServerTrainer, Tasks

log = logging.getLogger(__name__)
Result = TypeVar("Result")

_SECTIONS = {pb.TRAIN: pulse.STEP, pb.EVALUATE: pulse.EVALUATE, pb.PREDICT: pulse.PREDICT}
_SOON_S = 0.02  # what is read within this is not waited for
_ASK_S = 5.0  # for one question to the master before an error ends this worker


@dataclass
class _Pending:
    """A push that was sent; `alone`: all before it had been acknowledged by then."""

    batch: Batch
    gradients: Gradients
    result: Future[PushResult]
    alone: bool


class Worker:
    """One incarnation of a worker: leases, computes, pushes and reports until all is done.

    `run` returns when all is done or the worker was drained, and raises Fenced when the master has
    declared it lost. A Member (trainer.py).
    """

    def __init__(
        self,
        master: MasterClient,
        stream: TaskStream,
        trainer: ServerTrainer,
        tasks: Tasks,
        status: Status,
        *,
        pull_ahead: int,
        push_window: int = 1,
        on_gradients: Callable[[Batch, float | None], None] = lambda _batch, _loss: None,
    ) -> None:
        """Work with these parts, once `run` is called.

        `pull_ahead`: pulls under way while a minibatch computes, 0 or 1. `push_window`: pushes that
        may lack their acknowledgement. `on_gradients(batch, loss)` before each push.
        """
        self.status = status
        status.waits.measure(DATA, SERVERS)
        self._master = master
        self._stream = stream
        self._trainer = trainer
        self._tasks = tasks
        self._pull_ahead = pull_ahead
        self._on_gradients = on_gradients
        self._push_window = push_window
        self._pool = ThreadPoolExecutor(1 + push_window, thread_name_prefix="pull-push")
        self._pending: deque[_Pending] = deque()
        self._draining = threading.Event()
        self._fenced = threading.Event()
        self._steps = 0

    # -- for the heartbeat thread and signal handlers

    def drain(self) -> None:
        """Finish the current minibatch, hand the leases back, leave."""
        self._draining.set()
        self._stream.close()

    def fence(self) -> None:
        """End at once: the master has declared this incarnation lost."""
        self._fenced.set()
        self._stream.close()

    def beat(self) -> Beat:
        """Return what the heartbeat tells."""
        progress = [
            pb.Progress(task=h.task.id, attempt=h.task.attempt, position=h.position)
            for h in self._stream.held()
            if h.position > h.task.position
        ]
        return Beat(progress, self._trainer.version, self.status.scalars())

    # -- the loop

    def run(self) -> None:
        """Work until done or drained.

        Raises Fenced, Unreachable, or EdlError of a broken job.
        """
        self._stream.start()
        try:
            while (item := self._next()) is not None:
                match item:
                    case BadSpan(lease, error):
                        self._settle()
                        self._fail(lease, error)
                    case EndOfTask(lease):
                        self._end(lease)
                    case Batch() if not item.lease.void:
                        self._batch(item)
            if self._fenced.is_set():
                raise Fenced("the master has declared this worker lost")
            self._settle()
            if self._draining.is_set():
                self._hand_back()
            else:
                reports.epochs_end(self._tasks)
            self._master.send_reports(self.status.state)
        except Fenced:
            raise
        except EdlError as error:
            lost = self._is_lost()
            if lost:  # what it worked on may be gone: no failure of this worker
                raise Fenced(f"the master has declared this worker lost ({error})") from error
            if lost is not None:
                with contextlib.suppress(EdlError):
                    self._hand_back()  # an error of ours is no doing of what it had in hand
            raise
        finally:
            self._stream.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_lost(self) -> bool | None:
        """Ask the master whether this worker is lost; None: it does not say."""
        try:
            reply = self._master.heartbeat(state=self.status.state, patience_s=_ASK_S)
        except EdlError:
            return None
        return self._fenced.is_set() or bool(reply.fenced)

    def _next(self) -> Item | None:
        item = self._stream.next(timeout_s=0.0)
        if item is None and not self._stream.ended:
            # Nothing is ready: settle all pushes now, so that their task can be reported and the
            # master is not left waiting for it while we wait for the master.
            self._settle()
            cause = self.status.cause_of_wait(bool(self._stream.held()))
            with self.status.phases.of(DATA), self.status.waits.on(cause):
                item = self._stream.next(_SOON_S)
            if item is None and not self._stream.ended:
                self.status.state = self.status.state if cause == DATA else "waiting"
                with self.status.phases.of(DATA), self.status.waits.on(cause):
                    self._master.send_reports(self.status.state)
                    item = self._stream.next()
        return item

    def _batch(self, batch: Batch) -> None:
        lease, tasks = batch.lease, self._tasks
        try:
            match lease.task.kind:
                case pb.TRAIN:
                    self.status.state = "training"
                    self._train(batch)
                case pb.EVALUATE:
                    self.status.state = "evaluating"
                    self._settle()
                    if batch.used:
                        faults.point("worker.evaluate", task=lease.task.id)
                        outputs = self._outputs(batch)
                        truth = batch.labels, batch.features
                        self._guard(batch, lambda: tasks.evaluate(lease, outputs, *truth))
                    self._used(batch)
                case pb.PREDICT:
                    self.status.state = "predicting"
                    self._settle()
                    if batch.used:
                        outputs = self._outputs(batch)
                        predicted = batch.used, batch.ids
                        self._guard(batch, lambda: tasks.predict(lease, outputs, *predicted))
                    self._used(batch)
        except SpanError as error:
            self._settle()  # what is before it counts
            self._fail(lease, error)
        except NotPinned as error:
            log.info("task=%d -> handed back reason=%r", lease.task.id, str(error))
            self._give_back(lease)
            self._master.send_reports(self.status.state)

    def _outputs(self, batch: Batch) -> Any:
        return self._guard(
            batch,
            lambda: self._trainer.outputs(
                batch.features, batch.prepared or {}, batch.lease.task.cut
            ),
        )

    def _end(self, lease: Lease) -> None:
        """Settle and report a lease of which all minibatches were handed out."""
        self._settle()
        if lease.void:
            return
        try:
            result = reports.end_task(lease, self._tasks, self._trainer)
        except SpanError as error:
            self._fail(lease, error)
            return
        report = reports.done(lease, result, lease.servers_version)
        self._master.report_later(report, lambda accepted: reports.log_end(lease, accepted))
        self._stream.forget(lease)
        if lease.task.kind != pb.TRAIN:  # its result is waited for
            self._master.send_reports(self.status.state)

    # -- training

    def _train(self, batch: Batch) -> None:
        if not self._pull_ahead:
            self._settle()  # the pull must see our own last push
            if batch.lease.void:
                return
        gradients = self._gradients(batch)
        self._settle(self._push_window - 1)
        if batch.lease.void:
            self._trainer.withdraw(gradients)
            return
        result = self._pool.submit(self._push, batch, gradients)
        self._pending.append(_Pending(batch, gradients, result, alone=not self._pending))

    def _gradients(self, batch: Batch) -> Gradients:
        """Pull (unless that was done ahead), start the next pull, compute."""
        ahead, batch.pulled = batch.pulled, None  # a second try of the span must pull afresh
        unique = batch.prepared or {}
        faults.point("worker.pull")
        with self.status.waits.on(SERVERS) if ahead is None else contextlib.nullcontext():
            pulled = self._trainer.begin(unique, ahead and self.status.waits.answer(ahead))
        if self._pull_ahead:
            following = self._stream.peek()
            if isinstance(following, Batch) and following.lease.task.kind == pb.TRAIN:
                # It shall see these pushes, or its gradient is one step staler than need be.
                seen = max(0, len(self._pending) - self._push_window + 1)
                following.pulled = self._trainer.start_pull(
                    following.prepared or {},
                    self._pool,
                    [push.result for push in self._pending][:seen],
                )
        if not batch.used:
            gradients = self._trainer.empty()
        else:
            task = batch.lease.task
            stream = (task.epoch, task.id, batch.start)
            faults.point("worker.compute", task=task.id, start=batch.start)
            reports.step_begin(batch.lease, self._tasks, self._trainer.version)
            with self.status.phases.of(COMPUTE):
                gradients = self._guard(
                    batch,
                    lambda: self._trainer.gradients(
                        batch.features, batch.labels, unique, pulled, stream
                    ),
                )
        self._on_gradients(batch, gradients.loss)
        return gradients

    def _push(self, batch: Batch, gradients: Gradients) -> PushResult:
        task = batch.lease.task
        faults.point("worker.push", task=task.id, start=batch.start)
        return self._trainer.push(task.id, task.attempt, batch.start, batch.end, gradients)

    def _settle(self, window: int = 0) -> None:
        """Wait until at most `window` pushes lack an acknowledgement; do what those ask for."""
        while len(self._pending) > window:
            push = self._pending.popleft()
            try:
                result = self.status.waits.answer(push.result)
                self._acknowledge(push.batch, push.gradients, result, push.alone)
            except SpanError as error:
                self._fail(push.batch.lease, error)

    def _acknowledge(
        self, batch: Batch, gradients: Gradients, result: PushResult, alone: bool = True
    ) -> None:
        """Follow one span until it is applied everywhere or its lease is void.

        All spans of the lease before it are applied; `alone`: they were when it was sent.
        """
        while not batch.lease.void:
            if result.outcome == PushOutcome.GAP and not alone:
                alone, result = True, self._push(batch, gradients)
                continue
            if result.outcome == PushOutcome.APPLIED:
                batch.lease.servers_version = result.servers_version
                self._applied(batch, gradients)
                return
            self._trainer.withdraw(gradients)
            match result.outcome:
                case PushOutcome.FENCED:
                    log.info("task=%d -> fenced", batch.lease.task.id)
                    self._stream.forget(batch.lease)
                    return
                case PushOutcome.GAP:
                    self._rewind(batch, result.position or 0)
                    return
                case PushOutcome.STALE | PushOutcome.UNINITIALIZED:
                    self._trainer.outdated()
            if batch.lease.void or self._fenced.is_set():
                return
            gradients = self._gradients(batch)
            alone, result = True, self._push(batch, gradients)
        self._trainer.withdraw(gradients)

    def _rewind(self, batch: Batch, position: int) -> None:
        """Compute again from `position`, where a server stands, to the end of the batch."""
        start = min(position, batch.start)
        log.info("task=%d -> rewind from=%d to=%d", batch.lease.task.id, batch.start, start)
        stops = (batch.start, batch.end, position)
        for again in self._stream.reader.read(batch.lease, start, stops):
            if again.start >= batch.end or batch.lease.void or self._fenced.is_set():
                return
            gradients = self._gradients(again)
            self._acknowledge(again, gradients, self._push(again, gradients))

    def _applied(self, batch: Batch, gradients: Gradients) -> None:
        self._used(batch)
        if gradients.loss is None:
            return
        self._steps += 1
        self.status.step(gradients.loss, batch.used)
        version, loss = self._trainer.version, gradients.loss
        reports.step_end(batch.lease, self._tasks, self.status, self._steps, version, loss)

    def _used(self, batch: Batch) -> None:
        if batch.end > batch.lease.position:
            batch.lease.position = batch.end
            batch.lease.used += batch.used
            self.status.rate.add(batch.used)

    # -- ends of leases

    def _guard(self, batch: Batch, compute: Callable[[], Result]) -> Result:
        """Run the user's code on one minibatch; what it raises becomes a SpanError."""
        task, start, end = batch.lease.task, batch.start, batch.end
        with (
            pulse.section(_SECTIONS[task.kind], task.id, task.attempt, start, end),
            user_code(start, end, task.source),
        ):
            return compute()

    def _fail(self, lease: Lease, error: SpanError) -> None:
        """Report a failed span; the master decides whether to try again or to quarantine."""
        if lease.void:
            return
        failure = reports.failure(lease, error, self._tasks.definition_file)
        self._master.report_failed(lease.task.id, lease.task.attempt, failure, records=lease.used)
        self._stream.forget(lease)

    def _hand_back(self) -> None:
        self.status.state = "draining"
        # The master may have leased what no reply has brought yet: that this end is in order it
        # must know before it sees the process end.
        self._master.heartbeat(state=self.status.state)
        for lease in self._stream.held():
            self._give_back(lease)
            log.info("task=%d position=%d -> handed back", lease.task.id, lease.position)
        self._master.send_reports(self.status.state)

    def _give_back(self, lease: Lease) -> None:
        self._master.report_later(reports.handed_back(lease))
        self._stream.forget(lease)
