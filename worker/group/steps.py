"""The steps of one round: trained with all members, and between them what this one does alone."""

from __future__ import annotations

from typing import Generic

from ...common import faults
from ...common.errors import EdlError
from ...master.client import MasterClient
from ...proto import master_pb2 as pb
from .. import pulse, reports
from ..batches import SpanError, user_code
from ..phases import DATA
from ..reports import Status
from ..task_reader import Batch, Lease
from ..task_stream import BadSpan, EndOfTask, Woken
from ..trainer import GroupTrainer, StepT, Tasks
from .catch_up import CatchUp
from .round import Broken, Round, is_of_group
from .slices import Slice
from .state_keeper import StateKeeper

_IDLE_S = 1.0  # without a task, before a worker that is to leave does so without a step


class Steps(Generic[StepT]):
    """The loop over what the round's stream brings, one item after the other."""

    def __init__(
        self,
        master: MasterClient,
        round_: Round,
        trainer: GroupTrainer[StepT],
        keeper: StateKeeper,
        tasks: Tasks,
        status: Status,
    ) -> None:
        self._master = master
        self._round, self._stream = round_, round_.stream
        self._trainer, self._keeper = trainer, keeper
        self._catch_up = CatchUp(round_, trainer, keeper)
        self._tasks, self._status = tasks, status
        status.waits.measure(DATA)
        self._settled = True  # no push of this round is under way, of any member

    def run(self) -> None:
        """Step until the round ends in order.

        Raises Broken.
        """
        try:
            while self._step():
                if self._round.is_broken:
                    raise Broken
        finally:
            self._catch_up.close()
        self._catch_up.wait()
        self._trainer.finish()

    def _step(self) -> bool:
        """Handle one item of the round's stream.

        False: the round ends here.
        """
        self._do_orders()
        item = self._stream.next(timeout_s=0.0)
        if item is None and not self._stream.ended:
            cause = self._status.cause_of_wait(bool(self._stream.held()))
            if cause != DATA:
                self._status.state = "waiting"
            leaves = self._round.draining.is_set()
            with self._status.waits.on(cause):
                # Who trains leaves with a step, for the others may be in the midst of one.
                item = self._stream.next(timeout_s=_IDLE_S if leaves else None)
        match item:
            case None:
                return False
            case Woken():
                return True
            case BadSpan(lease, error):
                self._fail(lease, error)
            case EndOfTask(lease):
                self._end(lease)
            case Slice():
                return self._train(item)
            case Batch():
                self._evaluate(item)
        return True

    def _do_orders(self) -> None:
        while (order := self._keeper.next_order(self._settled, self._is_idle)) is not None:
            self._catch_up.wait()
            self._keeper.carry_out(order)

    def _is_idle(self) -> bool:
        return not any(lease.task.kind == pb.TRAIN for lease in self._stream.held())

    # -- train

    def _train(self, piece: Slice) -> bool:
        """Make one step, together with all members.

        False: the last of this round.
        """
        lease, task = piece.lease, piece.lease.task
        self._status.state = "training"
        self._settled = False
        ends, step = False, None
        if piece.total:
            wish = self._round.is_to_change or self._round.draining.is_set()
            faults.point("worker.compute", task=task.id, start=piece.start)
            step = self._reduce(piece, wish)
            self._trainer.look_ahead(self._stream.peek())
            faults.point("worker.commit", task=task.id, start=piece.start)
            self._catch_up.apply(step)
            ends = step.ends_round
            self._count(step.loss, piece)
        else:  # none of its records is used: all members pass over it
            self._catch_up.wait()
            self._trainer.pass_over(piece)
        lease.position = piece.end
        lease.used += piece.total
        if step is not None:
            self._tell(step.loss, lease)
        return not ends

    def _tell(self, loss: float, lease: Lease) -> None:
        """Log a step that all have made, and tell the definition.

        Raises Broken where its code fails.
        """
        version = self._keeper.version
        try:
            reports.step_end(lease, self._tasks, self._status, version, version, loss)
        except SpanError as failure:
            self._fail(lease, failure)

    def _reduce(self, piece: Slice, wish: bool) -> StepT:
        """Compute a step, together with all members.

        What fails is the content, unless it is the group.
        """
        lease, task = piece.lease, piece.lease.task
        try:
            with (
                pulse.section(pulse.STEP, task.id, task.attempt, piece.start, piece.end),
                user_code(piece.start, piece.end, task.source),
            ):
                if self._tasks.follows_steps:
                    self._tasks.step_begin(task.epoch, self._keeper.version)
                step = self._trainer.reduce(piece, wish)
                self._round.confirm()
                return step
        except SpanError as failure:
            if self._round.is_broken or is_of_group(failure.error):
                raise Broken from failure.error
            self._fail(lease, failure)
            raise
        except EdlError as error:
            if self._round.is_broken:
                raise Broken from error
            raise

    def _count(self, loss: float, piece: Slice) -> None:
        self._round.has_stepped = True
        self._status.rate.add(piece.used)
        self._status.step(loss, piece.used)

    def _fail(self, lease: Lease, error: SpanError) -> None:
        """Report content that failed: the master decides.

        Raises Broken, where all train on it.
        """
        train = lease.task.kind == pb.TRAIN
        report = pb.ReportTaskRequest(
            task=lease.task.id,
            attempt=lease.task.attempt,
            failed=reports.failure(lease, error, self._tasks.definition_file),
            records=lease.used,
            round=self._round.number if train else 0,
        )
        self._master.report_task(report)
        self._stream.forget(lease)
        if train:
            raise Broken

    # -- what is done alone, on the state of now

    def _evaluate(self, batch: Batch) -> None:
        self._catch_up.wait()
        self._status.state = "evaluating"
        lease, task = batch.lease, batch.lease.task
        try:
            if batch.used:
                faults.point("worker.evaluate", task=task.id)
                with (
                    pulse.section(pulse.EVALUATE, task.id, task.attempt, batch.start, batch.end),
                    user_code(batch.start, batch.end, task.source),
                ):
                    outputs = self._trainer.outputs(batch.features)
                    self._tasks.evaluate(lease, outputs, batch.labels, batch.features)
        except SpanError as error:
            self._fail(lease, error)
            return
        lease.position = batch.end
        lease.used += batch.used

    def _end(self, lease: Lease) -> None:
        """End a task: the first of the group says so, where all had it."""
        servers_version, round_ = 0, 0
        if lease.task.kind == pb.TRAIN:
            servers_version, round_ = self._trainer.settle(), self._round.number
            self._settled = True
            if self._round.rank:
                self._stream.forget(lease)
                return
        self._catch_up.wait()
        if lease.void:
            return
        try:
            result = reports.end_task(lease, self._tasks, self._trainer)
        except SpanError as error:
            self._fail(lease, error)
            return
        version = self._keeper.version
        self._master.report_task(
            reports.done(lease, result, servers_version, round_=round_, version=version)
        )
        self._do_orders()
        self._stream.forget(lease)
