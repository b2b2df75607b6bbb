"""The course of a job: epochs, evaluations, the end of training; when checkpoints are written.

Scripts (loop.py) that read from top to bottom; between two of their yields nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..common import faults
from ..common.settings import ANALYZE
from ..durable.loop import Script
from ..durable.schema import Json
from .books.decisions import Add, Cancel, Close, OpenEpoch
from .books.plan import Kind, Piece
from .books.quarantine import by_record, count, data_of
from .books.task import UNPLANNED_IDS
from .checkpoints import Checkpoints
from .core import EXIT_DONE, EXIT_FAILED, EXIT_QUARANTINED, Core
from .deltas import Deltas
from .evaluation import Evaluation, metrics_of, pack
from .groups.group import Group
from .groups.server_cuts import ServerCuts
from .groups.servers import Cut
from .judge import Judges
from .membership import WORKER
from .requested import Requested

_END: list[Piece] = [("", 0, 0)]  # the one piece of a task that has no records
_TRAIN_END = "train-end"
_ANALYSIS_END = "analysis-end"
_EVALUATION_END = "-end"  # of the group of an evaluation's last task


@dataclass(frozen=True)
class CourseMemory:
    """The part of the journal that a course has.

    `due`: the epochs of evaluations that are under way.
    """

    epochs_ended: int
    due: list[int]
    judged: Json
    unkept: str


class Course:
    """The course of a job from its start to the end of training.

    `validation`: the pieces of evaluations while training.
    """

    def __init__(
        self,
        core: Core,
        group: Group,
        validation: Sequence[Piece],
        judges: Judges,
    ) -> None:
        self._core = core
        self._group = group
        self._settings, self._queue, self._loop = core.settings, core.queue, core.loop
        self._validation = list(validation)
        self._epochs_ended = max(0, core.queue.opened - 1)
        self._due: list[int] = []  # epochs of the evaluations that run, their cuts included
        self._judges = judges
        self.checkpoints = Checkpoints(core, group, judges)
        self.requested = Requested(core, group, self.checkpoints)
        self._deltas = _deltas_of(core, group)

    @property
    def evaluating(self) -> bool:
        """Tell whether an evaluation while training is under way."""
        return bool(self._due)

    def memory(self) -> CourseMemory:
        """Return what a successor must know of the course."""
        judged, unkept = self._judges.memory(), self.checkpoints.unkept
        return CourseMemory(self._epochs_ended, self._due, judged, unkept)

    def remember(self, memory: CourseMemory) -> None:
        """Go on where the master before ended.

        Evaluations that ran, and the end of training, are begun anew: their cuts are gone.
        """
        self._epochs_ended, self._due = memory.epochs_ended, memory.due
        self._judges.remember(memory.judged)
        self.checkpoints.unkept = memory.unkept
        groups = {t.group for t in self._queue.tasks.values() if t.id >= UNPLANNED_IDS}
        for group in sorted(groups):
            self._core.decide(Cancel(group))
        running = self._core.evaluations.running
        for name in [*running]:
            if name.endswith(_EVALUATION_END) or self._settings.command != "evaluate":
                del running[name]

    def run(self) -> Script[None]:
        """Run the job, from the first epoch or the one where the master before ended."""
        yield lambda: self._group.connected
        if self._settings.command == "train":
            yield from self._train()
        elif self._settings.command == "evaluate":
            yield from self._evaluate_plan()
        else:
            yield from self._whole_plan()
            if self._settings.command == ANALYZE:
                self._core.decide(Add(Kind.ANALYZE_END, _END, group=_ANALYSIS_END))
                yield lambda: self._queue.group_done(_ANALYSIS_END)
        if self._settings.command == "train" and self._settings.has_teachers:
            yield from self._close_lessons()
        self._succeed()

    def _close_lessons(self) -> Script[None]:
        """Hear from each worker how many of its last records were taught.

        A worker that says nothing for the length of a lease is not waited for.
        """
        core = self._core
        core.lessons.close()
        until = core.clock.now() + self._settings.lease_s
        self._loop.wake_at(until)
        yield (
            lambda: (
                core.lessons.is_whole(m.incarnation for m in core.members.of(WORKER))
                or core.clock.now() >= until
            )
        )

    def _whole_plan(self) -> Script[None]:
        if not self._queue.opened:
            self._core.decide(OpenEpoch())
        yield lambda: self._queue.plan_done

    def _train(self) -> Script[None]:
        queue, plan = self._queue, self._queue.plan
        self._core.version = yield from self._group.steps()
        self._loop.spawn(
            self._periodically(self._settings.evaluation_steps, self._evaluate_between)
        )
        self._loop.spawn(
            self._periodically(self._settings.checkpoint_steps, self.checkpoints.write)
        )
        if self._deltas is not None:
            self._loop.spawn(self._deltas.run())
        due, self._due = self._due, []
        yield from self.checkpoints.adopt_best()
        for ended in due:  # their cuts went with the master that took them
            if self._judges:
                yield from self._evaluate_now(ended)
            else:
                self._loop.spawn(self._evaluate_now(ended))
        epoch = self._epochs_ended
        whole = 0
        while not queue.closed and (plan.epochs is None or epoch < plan.epochs):
            if queue.opened == epoch:
                # Of the one before, a server that was replaced since may lack something again.
                yield lambda: plan.overlap_epochs or queue.epochs_done(epoch)  # noqa: B023
                self._core.decide(OpenEpoch())
            last = epoch + 1 == plan.epochs
            step = not self._settings.use_async and (last or not plan.overlap_epochs)
            whole = yield from self._epochs_done(epoch + 1, step)
            if not queue.closed:
                self._core.tell(f"epoch {epoch + 1} is done")  # as people count
            self._epochs_ended = epoch + 1
            if self._judges:  # in their order, and of this very state
                yield lambda: not self._due
            if self._validation:
                self._due.append(epoch)
            self._core.save()
            faults.point("master.epoch_end", epoch=epoch)
            if self._validation:
                self._loop.spawn(self._evaluate(epoch, *(yield from self._group.cuts.now())))
            if self._judges:  # the next epoch is begun, or not, by what it says
                yield lambda: not self._due
            epoch += 1
        yield lambda: not self._due
        if queue.closed:
            whole = 0  # the rest of what had begun
        while True:
            if whole != self._group.version or not queue.epochs_done(queue.opened):
                whole = yield from self._epochs_done(queue.opened, not self._settings.use_async)
            if self.checkpoints.keeps_last:  # first: the end runs the user's code, which may fail
                yield from self.checkpoints.write(last=True)
            if self._deltas is not None:
                yield from self._deltas.write_last()
            if not queue.epochs_done(queue.opened):
                continue  # what was reported as done was not on all servers, and came back
            self._core.decide(Add(Kind.TRAIN_END, _END, group=_TRAIN_END))
            yield lambda: queue.group_done(_TRAIN_END)
            if whole == self._group.version:
                return
            # What it saw may have been a server that lacked something yet: once more.

    def _epochs_done(self, epochs: int, step: bool) -> Script[int]:
        """Wait until so many epochs are done.

        Returns the version of the group that says so.

        step: they have made a step of all of it.
        """
        while True:
            yield lambda: self._queue.epochs_done(epochs)
            version = self._group.version
            if step:
                yield from self._group.flush()
            if version == self._group.version and self._queue.epochs_done(epochs):
                return version

    def _periodically(self, steps: int, action: Callable[[], Script[object]]) -> Script[None]:
        """Run `action` whenever the version passes a multiple of `steps`, until training ends."""
        if not steps:
            return
        passed = self._core.version // steps
        while True:
            yield lambda: self._core.version // steps > passed or self._queue.plan_done  # noqa: B023
            if self._queue.plan_done or self._core.ended:
                return
            passed = self._core.version // steps
            if self._core.status.state == "running":
                yield from action()

    def _evaluate_between(self) -> Script[None]:
        if self._validation and not self._due:
            yield from self._evaluate_now(self._queue.opened - 1)

    def _evaluate_now(self, epoch: int) -> Script[None]:
        self._due.append(epoch)
        self._core.save()
        yield from self._evaluate(epoch, *(yield from self._group.cuts.now()))

    def _evaluate_plan(self) -> Script[None]:
        """Run the whole of an evaluation job."""
        if self._core.evaluations.finished:
            return
        evaluation = next(iter(self._core.evaluations.running.values()), None)
        if evaluation is None:
            self._core.version = yield from self._group.steps()
            evaluation = self._core.evaluations.begin(self._core.version, 0, "")
            self._core.save()
        if not self._queue.opened:
            self._core.decide(OpenEpoch(evaluation.name))
        yield from self._evaluation(evaluation, self._group.version)

    def _evaluate(self, epoch: int, cut: Cut, books: dict[str, Any] | None) -> Script[None]:
        """Evaluate the cut; anew, on another one, where a server that holds it was replaced."""
        while True:
            version = self._group.version
            evaluation = self._core.evaluations.begin(cut.version, epoch, cut.name)
            self._core.decide(
                Add(Kind.EVALUATE, self._validation, epoch, cut.name, group=evaluation.name)
            )
            faults.point("master.evaluate", round=evaluation.name)
            whole = yield from self._evaluation(evaluation, version, cut, books)
            if whole:
                self._due.remove(epoch)
                self._core.save()
            yield from self._core.insist(lambda: self._group.cuts.unpin(cut.name))  # noqa: B023
            if whole:
                return
            if self._judges and self._queue.uneven:  # what trains levels it, and then it is kept
                self._due.remove(epoch)
                yield lambda: not self._queue.uneven
                self._due.append(epoch)
            cut, books = yield from self._group.cuts.now()

    def _evaluation(
        self,
        evaluation: Evaluation,
        version: int,
        cut: Cut | None = None,
        books: dict[str, Any] | None = None,
    ) -> Script[bool]:
        """Have the tasks of an evaluation done to their end.

        False: it is given up, with the servers of `version` gone.

        `cut`, `books`: of an evaluation while training, the state that it reads.
        """
        queue = self._queue
        yield lambda: queue.group_done(evaluation.name) or self._cut_is_gone(evaluation, version)
        if not queue.group_done(evaluation.name):
            self._core.decide(Cancel(evaluation.name))
            del self._core.evaluations.running[evaluation.name]
            return False
        results = [
            queue.tasks[n].result
            for n in queue.done_results
            if queue.tasks[n].group == evaluation.name
        ]
        end = f"{evaluation.name}{_EVALUATION_END}"
        # So that its result is kept until it is read.
        self._core.evaluations.running[end] = evaluation
        (number,) = self._core.decide(
            Add(Kind.EVALUATE_END, _END, evaluation.epoch, evaluation.cut, pack(results), end)
        )
        yield lambda: queue.group_done(end)
        result = queue.tasks[number].result
        evaluation.metrics = metrics_of(evaluation.name, result)
        if cut is not None and self._judges:
            even = books is not None or not queue.uneven
            if not even or not (yield from self.checkpoints.keep_best(evaluation, cut, books)):
                for name in (evaluation.name, end):
                    del self._core.evaluations.running[name]
                return False
            self._judge(evaluation)
        self._core.evaluations.end(evaluation.name, result)
        del self._core.evaluations.running[end]
        if self._settings.command == "evaluate":
            self._core.save()
        values = " ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in (evaluation.metrics or {}).items()
        )
        self._core.tell(f"evaluation of version {evaluation.version}: {values or 'no metrics'}")
        return True

    def _judge(self, evaluation: Evaluation) -> None:
        """End training where there was no better evaluation for so long."""
        judge = self._judges.stopper
        if judge is None or not judge.is_new(evaluation.version):
            return
        judge.count(judge.of(evaluation.metrics or {}), evaluation.version, evaluation.epoch)
        if judge.exhausted and not self._queue.closed:
            self._core.decide(Close())

    def _cut_is_gone(self, evaluation: Evaluation, version: int) -> bool:
        return bool(evaluation.cut) and version != self._group.version

    def settle(self) -> None:
        """Open the next epoch where epochs overlap and nothing is left to lease.

        After each batch of events, so that nobody waits at the end of an epoch.
        """
        queue = self._queue
        if (
            queue.plan.overlap_epochs
            and self._core.status.state == "running"
            and queue.opened > 0
            and not queue.all_epochs_opened
            and not queue.todo
            and queue.epochs_done(queue.opened - 1)  # at most one epoch ahead
        ):
            self._core.decide(OpenEpoch())

    def _succeed(self) -> None:
        core = self._core
        if core.ended or core.status.state == "stopping":
            return
        stopper = self._judges.stopper
        early = stopper.verdict if self._queue.closed and stopper is not None else ""
        found = by_record(self._queue.quarantined, data_of(self._settings))
        skipped = count(found)
        if self.checkpoints.unkept:
            core.end("failed", EXIT_FAILED, f"finished, but {self.checkpoints.unkept}")
        elif skipped > self._settings.skip_records:
            core.end(
                "done",
                EXIT_QUARANTINED,
                f"finished, but {skipped} record{'s were' if skipped > 1 else ' was'} quarantined "
                f"(the budget, --skip_records, is {self._settings.skip_records}): see quarantined",
            )
        else:
            core.end("done", EXIT_DONE, early or "done")


def _deltas_of(core: Core, group: Group) -> Deltas | None:
    """Return the writer of deltas of a group that has servers alone."""
    return Deltas(core, group, group.cuts) if isinstance(group.cuts, ServerCuts) else None
