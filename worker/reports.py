"""The reports of both loops: how a task ended, what failed, and how fast they are."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator

from ..common.clock import Clock
from ..proto import master_pb2 as pb
from . import pulse
from .batches import SpanError, user_code
from .phases import DATA, WORK, Phases, Waits
from .task_reader import Lease
from .trainer import Tasks, Trainer

log = logging.getLogger(__name__)

_WORKING = ("training", "evaluating", "predicting")


def end_task(lease: Lease, tasks: Tasks, trainer: Trainer) -> bytes:
    """Let the definition end a task whose minibatches are done, and return the result.

    The result is as the master wants it. Raises SpanError, about no record, where the user's code
    fails.
    """
    task, result = lease.task, b""
    with (
        pulse.section(pulse.END, task.id, task.attempt, lease.size, lease.size),
        user_code(lease.size, lease.size, task.source),
    ):
        match task.kind:
            case pb.EVALUATE:
                result = tasks.evaluated(lease)
            case pb.PREDICT:
                tasks.predicted(lease)
            case pb.EVALUATE_END:
                result = json.dumps(tasks.merge(task.payload)).encode()
            case pb.TRAIN_END:
                tasks.train_end(trainer)
        tasks.task_end(lease)
    return result


def step_begin(lease: Lease, tasks: Tasks, version: int) -> None:
    """Tell the definition that a step begins.

    Raises SpanError, about no record, where the user's code fails.
    """
    if tasks.follows_steps:
        with _callback(lease):
            tasks.step_begin(lease.task.epoch, version)


def step_end(
    lease: Lease, tasks: Tasks, status: Status, step: int, version: int, loss: float
) -> None:
    """Log a step that was applied, now and then, and tell the definition. Raises SpanError."""
    logs = None
    if status.is_logged(step):
        rate = status.rate.per_s()
        text = "step=%d version=%d loss=%.5g records_per_s=%.0f"
        log.info(text, step, version, loss, rate)
        logs = {"step": step, "version": version, "loss": loss, "records_per_s": rate}
    if tasks.follows_steps:
        with _callback(lease):
            tasks.step_end(version, loss, logs)


def epochs_end(tasks: Tasks) -> None:
    """Tell the definition that this worker has done its last step. Its failure is logged."""
    try:
        with pulse.section(pulse.CALLBACK):
            tasks.epochs_end()
    except Exception:  # all records are applied: there is no task left to blame
        log.warning("on_epoch_end -> failed", exc_info=True)


@contextlib.contextmanager
def _callback(lease: Lease) -> Iterator[None]:
    """Have what the user's code raises be about no record of the lease."""
    task = lease.task
    with (
        pulse.section(pulse.CALLBACK, task.id, task.attempt, lease.size, lease.size),
        user_code(lease.size, lease.size, task.source),
    ):
        yield


def done(
    lease: Lease, result: bytes, servers_version: int, *, round_: int = 0, version: int = 0
) -> pb.ReportTaskRequest:
    """Return the report of a task that has ended.

    `servers_version`: of those that have it.
    """
    return pb.ReportTaskRequest(
        task=lease.task.id,
        attempt=lease.task.attempt,
        done=True,
        records=lease.used,
        result=result,
        round=round_,
        version=version,
        slot_map_version=servers_version,
    )


def handed_back(lease: Lease) -> pb.ReportTaskRequest:
    """Return the report of a task that this worker does no further."""
    task = lease.task
    return pb.ReportTaskRequest(
        task=task.id, attempt=task.attempt, handed_back=lease.position, records=lease.used
    )


def log_end(lease: Lease, accepted: bool) -> None:
    """Log that a task has ended, and whether the master has taken that report."""
    task = lease.task
    log.info(
        "task=%d attempt=%d kind=%s records=%d -> %s",
        task.id,
        task.attempt,
        pb.TaskKind.Name(task.kind).lower(),
        lease.used,
        "done" if accepted else "refused",
    )


def failure(lease: Lease, error: SpanError, definition_file: str) -> pb.Failure:
    """Log a span whose content failed, and return what the master is told of it."""
    cause = error.error
    text = f"{type(cause).__name__}: {cause}{_place(cause, definition_file)}"
    log.warning(
        "task=%d source=%s positions=%d-%d -> failed error=%r",
        lease.task.id,
        error.source,
        error.start,
        error.end,
        text,
    )
    return pb.Failure(
        start=error.start,
        end=error.end,
        source=error.source,
        error=text,
        traceback="".join(traceback.format_exception(cause)),
        record=error.record,
    )


def _place(error: BaseException, definition_file: str) -> str:
    """Return where in the definition, or a file beside it, it was raised: " (file:line)" or ""."""
    folder = os.path.dirname(definition_file)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if folder and f.filename.startswith(folder + os.sep)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


class Rate:
    """Records per second over the last few seconds."""

    def __init__(self, clock: Clock, window_s: float = 5.0) -> None:
        self._clock = clock
        self._window_s = window_s
        self._since = clock.now()
        self._records = 0
        self._last = 0.0

    def add(self, records: int) -> None:
        """Count records that were used just now."""
        self._records += records

    def per_s(self) -> float:
        """Return the rate, and close the window when it is full.

        Called by the heartbeat.
        """
        passed = self._clock.now() - self._since
        if passed >= self._window_s:
            self._last = self._records / passed
            self._since, self._records = self._clock.now(), 0
        elif not self._last and passed > 0.5:
            return self._records / passed
        return self._last


class Status:
    """The state of a member in a word, its last loss and its rate, to be shown."""

    def __init__(
        self,
        clock: Clock,
        *,
        log_loss_steps: int = 0,
        on_step: Callable[[float, int], None] = lambda _loss, _records: None,
    ) -> None:
        """Show a member that starts.

        `log_loss_steps`: 0: never. `on_step(loss, records)` after each step.
        """
        self.state = "starting"
        self.loss: float | None = None
        self.rate = Rate(clock)
        self.phases = Phases()  # of a worker whose model is on servers
        self.waits = Waits()
        self.more: Callable[[], dict[str, float]] = dict  # scalars of whatever stands beside
        self._log_loss_steps = log_loss_steps
        self._on_step = on_step

    def cause_of_wait(self, leased: bool) -> str:
        """Return what a worker that is given nothing to compute waits for: for DATA, or for WORK.

        `leased`: it holds a task. One that has not computed yet starts.
        """
        return DATA if leased and self.state in _WORKING else WORK

    def step(self, loss: float, records: int) -> None:
        """Count a step on so many records."""
        self.loss = loss
        self._on_step(loss, records)

    def is_logged(self, step: int) -> bool:
        """Tell whether the loss of this step goes to the log."""
        return bool(self._log_loss_steps) and step % self._log_loss_steps == 0

    def scalars(self) -> dict[str, float]:
        """Return the loss, where there is one, records_per_s, phases and waits where measured."""
        measured = self.phases.scalars() | self.waits.scalars()
        values = {"records_per_s": self.rate.per_s(), **measured, **self.more()}
        if self.loss is not None:
            values["loss"] = self.loss
        return values
