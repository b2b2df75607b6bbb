"""The state of the job for people: what the Status RPC answers, as JSON values.

Never the token.

The revision rises every few tenths of a second, so that somebody who waits for a newer one is not
woken by every heartbeat, and with each event, unless that would cost too much.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.settings import JobSettings
from ..durable.schema import Json
from .books import audit
from .books.plan import Kind
from .books.quarantine import by_record, data_of
from .books.queue_view import QueueView
from .evaluation import Evaluation, Evaluations
from .membership import ROLES, SERVER, TEACHER, WORKER, Member, Membership
from .replicas import Phase, Replicas, Slot

SERVER_SCALARS = ("rows", "nbytes", "pulls", "pushes")  # of its heartbeats
TEACHER_SCALARS = ("rows", "rows_per_s", "queued", "busy_share")  # of its heartbeats
_EVENTS_KEPT = 50
_EVENTS_OF_A_MASTER = 1 << 20  # so that no two of a job's masters give out one id
_DECISIONS_KEPT = 20
_REVISION_S = 0.25
_RESTS = 20  # times as long as a revision takes; so all who look cost a twentieth of a core
_LONGEST_REST_S = 2.0
_PHASES = {
    Phase.WAITING: "waiting to start",
    Phase.RUNNING: "starting",
    Phase.FINISHED: "left",
    Phase.FAILED: "failed",
}


@dataclass(frozen=True)
class StatusMemory:
    """The part of the journal that a status has.

    Times are those of the machine's monotonic clock.
    """

    state: str
    exit_code: int | None
    message: str
    checkpoint: str | None
    resume: str | None
    began_from: str | None
    best: Json
    before: int
    started: float
    run_began: float
    events: list[Json]
    decisions: list[Json] = field(default_factory=list)
    recomputed: int = 0
    requested: list[Json] = field(default_factory=list)


class Status:
    """The state, message, events and checkpoints of a job, which nobody else keeps."""

    def __init__(self, started: float) -> None:
        self.revision = 1
        self.state = "starting"
        self.exit_code: int | None = None
        self.message = ""
        self.checkpoint: str | None = None  # the newest that this job has written
        self.began_from: str | None = None  # the checkpoint, of another one, that it goes on with
        self.best: dict[str, Any] | None = None  # what --keep_best keeps
        self.requested: list[Json] = []  # how the last questions for a checkpoint ended
        self.before = 0  # records that were done when this run began
        self.resume: str | None = None  # what `edl train --resume` takes, of a job that failed
        self._masters = 1  # that this job has had
        self._started = self._run_began = started
        self._next_revision = started + _REVISION_S
        self._soonest = started  # when there may be another revision, at the earliest
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_KEPT)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=_DECISIONS_KEPT)  # of teachers
        self._event_id = 0
        self.recomputed = 0  # records, before the queue of now began to count
        self.hear: Callable[[dict[str, Any]], None] = lambda _event: None  # is told each event

    @property
    def newest_checkpoint(self) -> str | None:
        """The checkpoint that the job could be begun from anew: its own, or where it began."""
        return self.checkpoint or self.began_from

    def tell(self, now: float, text: str, **about: Json) -> None:
        """Add an event, of which whoever looks is told as soon as may be.

        `about`: its `kind`, and of a process's start or end whose it was.
        """
        self._event_id += 1
        t = round(now - self._started, 3)
        event = {"id": self._event_id, "t": t, "text": text, **about}
        self._events.append(event)
        self._next_revision = min(self._next_revision, max(now, self._soonest))
        self.hear(event)

    def decide(self, now: float, wanted: int, before: int, why: str) -> None:
        """Keep a decision about the number of teachers."""
        t = round(now - self._started, 3)
        self._decisions.append({"t": t, "wanted": wanted, "before": before, "why": why})

    def end(self, state: str, exit_code: int, message: str, resume: str | None = None) -> None:
        self.state, self.exit_code, self.message = state, exit_code, message
        self.resume = resume
        self.revision += 1

    def begin_run(self, now: float, records_done: int) -> None:
        """Begin to count for this run.

        What was done before, and the time until now, are not its own.
        """
        self._run_began, self.before = now, records_done

    def go_on(self, state: str) -> None:
        """Take back the end, which was a failure."""
        self.state, self.exit_code, self.message, self.resume = state, None, "", None

    def memory(self, recomputed: int = 0) -> StatusMemory:
        """Return what a restarted master must know. `recomputed`: records, by the queue of now."""
        return StatusMemory(
            state=self.state,
            exit_code=self.exit_code,
            message=self.message,
            checkpoint=self.checkpoint,
            resume=self.resume,
            began_from=self.began_from,
            best=self.best,
            before=self.before,
            started=self._started,
            run_began=self._run_began,
            events=list(self._events),
            decisions=list(self._decisions),
            recomputed=self.recomputed + recomputed,
            requested=self.requested,
        )

    def remember(self, memory: StatusMemory, now: float, epoch: int) -> None:
        """Go on where the master before ended; revisions are higher than any of its."""
        self.state, self.exit_code = memory.state, memory.exit_code
        self.message, self.resume = memory.message, memory.resume
        self.checkpoint, self.began_from = memory.checkpoint, memory.began_from
        self.best, self.before = memory.best, memory.before
        self._started = min(now, memory.started)  # later where the machine was booted since
        self._run_began = min(now, memory.run_began)
        self._events.extend(memory.events)
        self._decisions.extend(memory.decisions)
        self.recomputed = memory.recomputed
        self.requested = list(memory.requested)
        self._event_id = epoch * _EVENTS_OF_A_MASTER
        self.revision = epoch << 32
        self._masters = epoch

    def tick(self, now: float) -> bool:
        """Tell whether it is time for another revision, and begin it."""
        if now < self._next_revision:
            return False
        self._next_revision = now + _REVISION_S
        self.revision += 1
        return True

    def took(self, now: float, seconds: float) -> None:
        """Note how long it took to render and to show it.

        With thousands of workers, it is done seldomer.
        """
        self._soonest = now + min(_RESTS * seconds, _LONGEST_REST_S)
        self._next_revision = max(self._next_revision, self._soonest)

    def render(
        self,
        *,
        now: float,
        settings: JobSettings,
        queue: QueueView,
        members: Membership,
        replicas: Replicas,
        evaluations: Evaluations,
        version: int,
        lessee: str = "",
    ) -> dict[str, Any]:
        """Return the whole status, as documented in docs/architecture.md.

        `lessee`: who holds a group's leases.
        """
        workers = members.of(WORKER)
        losses = [m.scalars["loss"] for m in workers if "loss" in m.scalars]
        newest = max(workers, key=lambda m: m.version).scalars if workers else {}
        return {
            "revision": self.revision,
            "job_name": settings.job_name,
            "state": self.state,
            "exit_code": self.exit_code,
            "message": self.message or _waits(replicas, members),
            "command": settings.command,
            "started_s_ago": round(now - self._started, 3),
            "run_s": round(now - self._run_began, 3),
            "records_before": self.before,
            "records_done": queue.records_done,
            "records_total": queue.plan.records,
            "epoch": max(0, queue.opened - 1),
            "num_epochs": queue.plan.epochs,
            "records_per_s": round(sum(m.scalars.get("records_per_s", 0.0) for m in workers), 1),
            "loss": sum(losses) / len(losses) if losses else None,
            "version": version,
            "minibatch": int(newest["minibatch"]) if "minibatch" in newest else None,
            "gain": newest.get("gain"),
            "records": audit.records(queue, self.recomputed + queue.standing.recomputed),
            "tasks": queue.counts(),
            "task_runs": audit.tasks(queue),
            "workers": _rows(WORKER, now, members, replicas, queue, lessee),
            "servers": _rows(SERVER, now, members, replicas, queue, lessee),
            "teachers": _rows(TEACHER, now, members, replicas, queue, lessee),
            "teaching": self._teaching(workers),
            "metrics": evaluations.latest,
            "evaluations": [_evaluated(each) for each in evaluations.finished],
            "quarantined": by_record(queue.quarantined, data_of(settings)),
            "wanted": {role: replicas.wanted_of(role) for role in ROLES},
            "restarts": {**_restarts(replicas), "master": self._masters - 1},
            "predictions": _predictions(settings),
            "checkpoint": self.checkpoint,
            "requested": self.requested,
            "best": self.best,
            "began_from": self.began_from,
            "resume": self.resume,
            "events": list(self._events),
        }

    def _teaching(self, workers: Sequence[Member]) -> dict[str, Any]:
        """Return the share of time in which the workers of now wait for teachers, and decisions."""
        told = [
            m.scalars["teacher_wait_share"] for m in workers if "teacher_wait_share" in m.scalars
        ]
        share = round(sum(told) / len(told), 4) if told else 0.0
        return {"wait_share": share, "decisions": list(self._decisions)}


def _evaluated(found: Evaluation) -> dict[str, Any]:
    return {"version": found.version, "epoch": found.epoch, "metrics": found.metrics}


def _restarts(replicas: Replicas) -> dict[str, int]:
    return {
        "worker": replicas.total("failures", WORKER),
        "server": replicas.total("failures", SERVER),
        "preemptions": replicas.total("preemptions", WORKER),
        "server_preemptions": replicas.total("preemptions", SERVER),
        "teacher": replicas.total("failures", TEACHER),
        "teacher_preemptions": replicas.total("preemptions", TEACHER),
    }


def _predictions(settings: JobSettings) -> str | None:
    """Return the folder that predictions are written to."""
    if settings.command != "predict" or not settings.output:
        return None
    return os.path.join(settings.output, "predictions")


def _waits(replicas: Replicas, members: Membership) -> str:
    """Return why there is less than is wanted, of the first that waits; "" where nothing waits."""
    here = {member.incarnation for role in ROLES for member in members.of(role)}
    waiting = [s for s in replicas.slots.values() if s.waits and s.incarnation not in here]
    if not waiting:
        return ""
    more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return f"{waiting[0].role} {waiting[0].index}{more} {waiting[0].waits}"


def _rows(
    role: str,
    now: float,
    members: Membership,
    replicas: Replicas,
    queue: QueueView,
    lessee: str,
) -> list[dict[str, Any]]:
    here = {member.index: member for member in members.of(role)}
    slots = sorted((s for s in replicas.slots.values() if s.role == role), key=lambda s: s.index)
    return [_row(slot, here.get(slot.index), now, queue, lessee) for slot in slots]


def _row(
    slot: Slot, member: Member | None, now: float, queue: QueueView, lessee: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": slot.index,
        "incarnation": member.incarnation if member else slot.incarnation,
        "pid": member.pid if member else None,
        "state": member.state if member else _PHASES[slot.phase],
        "heartbeat_age_s": round(now - member.last_heard, 3) if member else None,
        "address": member.address if member else "",
        "metrics_address": member.metrics_address if member else "",
    }
    if slot.role == SERVER:
        told = member.scalars if member else {}
        figures = {name: told[name] for name in SERVER_SCALARS if name in told}
        return {**row, "version": member.version if member else None, **figures}
    if slot.role == TEACHER:
        told = member.scalars if member else {}
        return {**row, **{name: told.get(name, 0.0) for name in TEACHER_SCALARS}}
    held = (
        queue.leases.held_by(member.incarnation) or queue.leases.held_by(lessee) if member else []
    )
    task = next((t for t in held if t.kind != Kind.TRAIN), held[0] if held else None)
    rate = member.scalars.get("records_per_s", 0.0) if member else 0.0
    return {**row, "task": task.id if task else None, "records_per_s": round(rate, 1)}
