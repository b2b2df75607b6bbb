"""The core that a master's parts share: the books, the loop, how to decide, remember and tell.

Decisions about tasks are journaled (`decide`), those of a batch of events together (`commit`); all
else that a successor must know is small and is journaled as a whole (`save`). Both before anybody
is told.
"""

from __future__ import annotations

import json
import logging
import secrets
import shlex
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from ..common import faults
from ..common.clock import Clock
from ..common.errors import EdlError, Fenced, JobError, Unreachable
from ..common.listen import own_machine
from ..common.settings import JobSettings
from ..durable.journal import Journal
from ..durable.loop import Loop, Script
from ..durable.schema import Json
from ..jobs.claims import Claims
from .books.decisions import Durable, Lease, LeaseSome, Prove, written
from .books.queue_view import QueueView
from .books.task import Task
from .books.task_queue import Decision, TaskQueue
from .evaluation import Evaluations
from .lessons import Lessons
from .machines import Machines
from .membership import Membership
from .owning import remembered
from .recorder import Recorder
from .replicas import Replicas, ServersWanted
from .status import Status

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

EXIT_DONE, EXIT_FAILED, EXIT_QUARANTINED, EXIT_INTERRUPTED = 0, 1, 3, 130
MEMORY = "job"  # the name in the journal of what `save` writes: see memory.py
RETRY_S = 0.5  # pause before an unreachable server is asked again
TELL_S = 10.0  # how often the user is told what a script waits for


class Core:
    """The core of a master. `memory` says what a successor must know that is not the queue's."""

    def __init__(
        self,
        *,
        settings: JobSettings,
        job_dir: Path,
        queue: TaskQueue,
        journal: Journal,
        clock: Clock,
        memory: Callable[[], dict[str, Any]],
        claims: Claims | None = None,
    ) -> None:
        self.settings = settings
        self.job_dir = job_dir
        self.queue: QueueView = queue  # it changes by what follows here, and by nothing else
        self._queue = queue
        self.journal = journal
        self.clock = clock
        self.loop = Loop(clock)
        self.members = Membership(settings.lease_s)
        self.evaluations = Evaluations()
        self.replicas = Replicas(
            settings.num_workers,
            0 if settings.strategy == "allreduce" else settings.num_ps,
            relaunches=settings.relaunch_on_worker_failure,
            teachers=settings.num_teachers,
            name=lambda: uuid.uuid4().hex[:12],
        )
        self.status = Status(clock.now())
        self.recorder = Recorder()
        self.lessons = Lessons()
        self.changing: ServersWanted | None = None  # a change of the servers that is under way
        self.machines = Machines(clock.now(), own_machine())
        self.version = 0  # of the parameters, as the servers' heartbeats tell it
        self.claims = claims or Claims()
        self.owner = ""  # this job's name as the owner of folders; known once the job begins
        self._memory = memory
        self._answers: list[tuple[Future[Any], Any]] = []
        self._saved = ""
        self._unsaved = False
        self.saves = 0  # changes with whatever a successor must know beside the queue

    def know_owner(self) -> None:
        """Have `owner` be what the journal says, and all later masters of the job the same one."""
        name = self.settings.job_name
        self.owner = remembered(self.journal, lambda: f"{name}-{secrets.token_hex(4)}")

    def decide(self, decision: Decision[Answer]) -> Answer:
        """Make a decision about tasks, which nobody is told of before it is on disk (`commit`)."""
        redone = self.queue.standing.recomputed
        answer = self._queue.decide(decision)
        self.journal.append(*written(decision))
        if self.queue.standing.recomputed != redone:  # which no decision says
            self.save_soon()
        return answer

    def hear_progress(self, lessee: str, progress: Iterable[tuple[int, int, int]]) -> None:
        """Note how far a worker, or a round, says that it is in its leases.

        `progress`: (task, attempt, position).

        That some record of a kind of task was used is a decision, and is journaled.
        """
        proven = set(self.queue.proven)
        for task, attempt, position in progress:
            self._queue.progress(lessee, task, attempt, position)
        for kind in self.queue.proven - proven:
            self.journal.append(*written(Prove(kind)))

    def lease(self, terms: Lease | LeaseSome) -> list[Task]:
        """Return the tasks that a request gets, if any.

        To ask in vain is no decision, and is not journaled.
        """
        found = self._queue.decide(terms)
        tasks = found if isinstance(found, list) else [found] if found is not None else []
        if tasks:
            self.journal.append(*written(terms))
        return tasks

    def retire(self, durable: Sequence[int]) -> None:
        """Forget what is done: these train tasks, and results that no evaluation waits for."""
        queue, running = self.queue, self.evaluations.running
        gone = [n for n in queue.done_results if queue.tasks[n].group not in running]
        gone += durable
        if gone:
            self.decide(Durable(gone))

    def answer(self, future: Future[Answer], reply: Answer) -> None:
        """Give the answer, once what it may tell of is on disk."""
        self._answers.append((future, reply))

    def commit(self) -> None:
        """Write the decisions of a batch of events, then give its answers.

        Raises JobError, Fenced.
        """
        answers, self._answers = self._answers, []
        try:
            if self.journal.waiting or self._unsaved:
                faults.point("master.commit", decisions=self.journal.waiting)
                if self._unsaved:
                    self.save()
                self.journal.commit()  # where that has not
                faults.point("master.answer", answers=len(answers))
            elif answers and not self.ended:
                self.journal.check()
        except (Fenced, JobError) as error:
            if isinstance(error, Fenced) or not self.ended:  # what ended it may be the journal
                for future, _ in answers:
                    future.set_exception(as_told(error))
                raise
        for future, reply in answers:
            future.set_result(reply)

    def save_soon(self) -> None:
        """Have the memory journaled with the decisions of this batch of events."""
        self._unsaved = True
        self.saves += 1

    def save(self) -> None:
        """Journal what a successor must know, where that has changed: before this returns."""
        self._unsaved = False
        self.saves += 1
        memory = self._memory()
        text = json.dumps({**memory, "version": 0})
        if text != self._saved:
            try:
                self.journal.put(MEMORY, memory)
            except JobError:
                if self.status.exit_code is None:
                    raise
                return  # what has ended the job may be the journal itself; the message tells of it
            self._saved = text

    def tell(self, text: str, **about: Json) -> None:
        """Tell the log, and whoever looks at the status. `about`: see Status.tell."""
        self.status.tell(self.clock.now(), text, **about)
        log.info("%s", text)

    def insist(self, call: Callable[[], Answer]) -> Script[Answer]:
        """Return the result of a call to the servers, asked again until they answer.

        Says so now and then.
        """
        told = self.clock.now()
        while True:
            try:
                return (yield self.loop.background(call))  # type: ignore[no-any-return]
            except Unreachable as error:
                log.warning("servers -> unreachable error=%r", str(error))
                if self.clock.now() - told >= TELL_S:
                    told = self.clock.now()
                    self.tell(f"waiting for the parameter servers: {error}")
            yield from self.loop.sleep(RETRY_S)

    def until(self, over: Callable[[], bool], what: Callable[[], str]) -> Script[None]:
        """Wait until `over()` is true.

        Says every now and then `what` is waited for ("": nothing to say).
        """
        while not over():
            until = self.clock.now() + TELL_S
            self.loop.wake_at(until)
            yield lambda: over() or self.clock.now() >= until  # noqa: B023
            if not over() and (text := what()):
                self.tell(f"waiting for {text}")

    # -- the end

    @property
    def ended(self) -> bool:
        """Tell whether the job's end is decided; its processes may still run."""
        return self.status.exit_code is not None

    def end(self, state: str, code: int, message: str, resume: str | None = None) -> None:
        """Decide the end of the job. `resume`: what goes on, of a job that has failed."""
        self.status.end(state, code, message, resume)
        self.tell(message)
        log.info("job -> %s exit_code=%d message=%r", state, code, message)
        self.replicas.end()
        self.save()

    def fail(self, message: str) -> None:
        if not self.ended:
            self.end("failed", EXIT_FAILED, message, self.resume)

    @property
    def resume(self) -> str | None:
        """The folder that a training job goes on from if it fails now.

        None where its journal has no work in it.
        """
        there = self.settings.command == "train" and self.queue.records_done
        return str(self.job_dir.absolute()) if there else None

    def how_to_go_on(self) -> str:
        """Return what a user can do after a job that has failed, for a message."""
        text = go_on_with(self.resume)
        newest = self.status.newest_checkpoint
        if self.resume is not None and newest is not None:
            text += f", or from its last checkpoint, {newest}"
        return text


def as_told(error: EdlError) -> EdlError:
    """Return the error for whoever asked: another master will answer, where there is one."""
    return Unreachable(str(error)) if isinstance(error, Fenced) else error


def go_on_with(resume: str | None) -> str:
    """Return what to do after a failure.

    `resume`: what `edl train --resume` takes, if there is anything to go on from.
    """
    return f"go on with: edl train --resume {shlex.quote(resume)}" if resume else "start it again"
