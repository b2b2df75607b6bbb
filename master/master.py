"""The master: one thread that owns the books and decides (see durable/loop.py).

What workers, servers and people say (front.py) and what the runtime says (processes.py) become
events of the pure state machines; each decision about tasks is journaled before its answer leaves.
`_settle` runs after every batch of events and does what the state calls for: processes are started
and given up, the group looked after (group.py), who waits is answered. What the job does from its
start to its end is the script of course.py, and then those of shutdown.py.

`resume` begins where the master before ended: the processes are adopted, and nobody but the user
notices.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..common import cold, faults
from ..common.clock import Clock
from ..common.errors import EdlError, Fenced, JobError, Unreachable
from ..common.identity import Identity
from ..common.listen import own_machine
from ..common.process import is_starved
from ..common.settings import JobSettings
from ..durable.schema import Json, dump_all, load
from ..jobs.claims import Claims
from ..runtime.base import OnReport, Replica, Report, Runtime
from .asking import Asking
from .books.decisions import Forgive, Lost
from .core import EXIT_FAILED, Core
from .course import Course
from .front import Front
from .groups.collective import Collective
from .groups.group import Group
from .groups.hybrid import Hybrid
from .groups.server_group import ServerGroup
from .groups.servers import Servers
from .lookers import Lookers
from .losses import Losses
from .membership import SERVER, WORKER
from .memory import Memory
from .opening import Books
from .processes import TICK_S, Processes
from .servers_change import ServersChange, recall
from .shutdown import Shutdown
from .state import dump_queue
from .told import about

log = logging.getLogger(__name__)

_JUST_AFTER_S = 0.001  # a worker's lease has ended, at the next look
_COMPACT_AT = 20_000  # decisions, or twice what there is to store: less than a second of replay


class Master:
    """The master of one job.

    `front` has what others ask of it; public methods may be called from any thread.
    """

    def __init__(
        self,
        *,
        settings: JobSettings,
        job_dir: Path,
        books: Books,
        connect: Callable[[Sequence[str]], Servers],
        clock: Clock,
        identity: Identity,
        watch: Callable[[dict[str, Json]], None] = lambda _: None,
        claims: Claims | None = None,
    ) -> None:
        """Put the parts together.

        `connect` gives the servers at these addresses. `watch` is shown the status now and then.
        `claims`: to the folders that the job writes to.
        """
        core = self.core = Core(
            settings=settings,
            job_dir=job_dir,
            queue=books.queue,
            journal=books.journal,
            clock=clock,
            memory=self._memory,
            claims=claims,
        )
        self.queue, self.loop, self.status = core.queue, core.loop, core.status
        self.members, self.replicas = core.members, core.replicas
        group = self.group = _group_of(core, connect, books.restore)
        self.course = Course(core, group, books.validation, books.judges)
        losses = Losses(core, group)
        self._processes = Processes(core, group, losses, identity)
        self._shutdown = Shutdown(core, group, self._processes, self.course.checkpoints)
        self._servers_change: ServersChange | None = None
        if isinstance(group, ServerGroup):
            checkpoints = self.course.checkpoints
            self._servers_change = ServersChange(core, group, self._processes, checkpoints)
        self._lookers = Lookers(core, group, watch)
        self._asking = Asking(core, group)
        self.front = Front(
            core,
            group=group,
            course=self.course,
            losses=losses,
            processes=self._processes,
            shutdown=self._shutdown,
            lookers=self._lookers,
            asking=self._asking,
        )
        self.status.began_from = books.restore or None
        self._begin_run(clock.now())
        self._resumed = self._superseded = False

    # -- life

    def run(self, start_runtime: Callable[[OnReport], Runtime]) -> int:
        """Run the whole job; returns its exit code."""
        runtime = start_runtime(self.reported)
        self._processes.use(runtime)
        try:
            self._begin()
            self._run_loop()
        except Fenced:
            self._superseded = True
            runtime.detach()  # all that runs is the other master's
            raise
        except BaseException as error:  # whatever broke, the job has ended so, and that is told
            if is_starved(error):  # but not of this: the next master goes on with all that runs
                self._superseded = True
                runtime.detach()
            elif not self.core.ended:
                why = f"the master broke: {error!r}"
                self.status.end("failed", EXIT_FAILED, why, self.core.resume)
            raise
        finally:
            runtime.close()
            self.loop.close()
            self._dismiss()
            self.group.close()
        assert self.status.exit_code is not None
        return self.status.exit_code

    def resume(self, after: str, told: Json, failed: str | None = None) -> None:
        """Go on where the master before ended.

        `after`: how it did; `told`: what it has journaled as MEMORY.

        Called before `run`. Raises ValueError where no master of this format has written that.
        `failed`: so the job had ended. Nothing runs any more, and what counted against its
        processes and its tasks is forgiven.
        """
        memory = load(Memory, told)
        now = self.core.clock.now()
        self._resumed = True
        self.status.remember(memory.status, now, self.core.journal.epoch)
        self.status.recomputed -= self.queue.standing.recomputed  # counted once more as it was read
        went_on = failed is None and bool(after)  # else who knows how long it did not run
        self.core.machines.restore(memory.machines, now, went_on)
        if not went_on:
            self._begin_run(now)
        else:
            self.core.recorder.forget_changes()
        members = [dataclasses.replace(m, last_heard=now) for m in memory.members]
        if failed is not None:
            self.core.tell(f"goes on; it had ended: {failed}")
            self.status.go_on("running" if memory.connected else "starting")
            self.members.restore([], [*memory.gone, *(m.incarnation for m in members)])
            self.core.decide(Forgive())
            members = []
            self.replicas.forgive(memory.replicas)
        else:
            self.members.restore(members, memory.gone)
            self._shutdown.reason = memory.stop_reason
            self._processes.remember(memory.replicas, memory.processes, members, now)
        if self.core.settings.strategy != "allreduce":
            servers = sum(slot.role == SERVER for slot in memory.replicas.slots)
            recall(self.core, servers, has_failed=failed is not None)
        self.core.evaluations.restore(memory.evaluations)
        self.core.version = memory.version
        self.group.remember(memory.group)
        self.course.remember(memory.course)
        self.front.teachers.remember(memory.teachers)
        there = {self.group.workers.lessee, *(member.incarnation for member in members)}
        for worker in {t.worker for t in self.queue.leases.leased.values()} - there:
            self.core.decide(Lost(worker))  # its loss was half told when the master was killed
        self.core.tell(
            f"the master {after or 'ended'}; started again (epoch {self.core.journal.epoch})",
            **self._about_itself(after),
        )
        self.core.save()

    def _about_itself(self, before: str = "") -> dict[str, Json]:
        """Return whose start an event tells: this master's; `before`: how the last one ended."""
        me = Replica("master", 0, f"master-{self.core.journal.epoch}")
        return about("start", me, machine=own_machine(), before=before)

    def _begin_run(self, now: float) -> None:
        self.status.begin_run(now, self.queue.records_done)
        if self.core.settings.strategy != "allreduce":  # a change of servers is such a start
            self.core.recorder.decided(SERVER, now)

    def _memory(self) -> dict[str, Json]:
        """Return all that a successor must know, and that is not the queue's: what MEMORY is."""
        memory = Memory(
            status=self.status.memory(self.queue.standing.recomputed),
            members=[member.lasting() for member in self.members.all],
            gone=self.members.gone,
            replicas=self.replicas.state(),
            processes=self._processes.all,
            evaluations=self.core.evaluations.state(),
            version=self.core.version,
            connected=self.group.connected,
            stop_reason=self._shutdown.reason,
            group=self.group.memory(),
            course=self.course.memory(),
            machines=self.core.machines.state(),
            teachers=self.front.teachers.memory(),
        )
        return dump_all(memory)

    def _begin(self) -> None:
        self.core.save()
        self.core.know_owner()
        for note in self.core.claims.notes:
            self.core.tell(note)
        self.core.claims.hear(self._lost_folder)
        if self._resumed:
            self._processes.adopt()
            faults.point("master.recover")
        else:
            self.core.tell("starting", **self._about_itself())
            if promise := self.course.checkpoints.promise():
                self.core.tell(promise)
            if self.core.replicas.servers and cold.must_compile():
                self.core.tell(
                    "the servers compile their kernels first, some ten seconds, once for an "
                    "installation: `edl kernels` does it ahead"
                )
        if not self.core.ended:
            self.loop.spawn(self.course.run())
        self._shutdown.go_on()

    def _lost_folder(self, name: str, why: str) -> None:
        """Write there no more: another job does. Without its deltas a job trains on."""

        def lost() -> None:
            self._must_be_newest()  # of the same job, that is
            if name == "delta_dir":
                self.core.tell(f"--{name}: {why}; training goes on")
            else:
                self.core.fail(f"--{name}: {why}; {self.core.how_to_go_on()}")

        self.loop.post(lost)

    def _dismiss(self) -> None:
        """Answer all who wait; where there is another master, that one shall."""
        with suppress(EdlError):  # then they are told
            self.core.commit()
        for parked in (*self._asking.take_parked(), *self._lookers.take_parked()):
            if self._superseded:
                parked.future.set_exception(Unreachable("this master has ended"))
            else:
                parked.future.set_result(parked.answer() or parked.otherwise())

    def _run_loop(self) -> None:
        while True:
            try:
                self.loop.run(self._settle, lambda: self._shutdown.over)
                return
            except Fenced:
                raise
            except EdlError as error:
                with suppress(JobError):  # servers refuse the calls of an older master, too
                    self.core.journal.check()
                # A decision that could not be journaled, or one that the books rule out: nothing
                # may be answered any more. What still runs is ended in order.
                if self.core.ended:
                    raise
                log.exception("job -> failed")
                self.core.fail(str(error))

    def fence(self, why: str) -> None:
        """End, because there is another master, and touch nothing more."""

        def end() -> None:
            raise Fenced(why)

        self.loop.post(end)

    def abort(self) -> None:
        """Kill every process now; the caller ends this one."""
        self._processes.close()

    def reported(self, report: Report) -> None:
        """Hear from the runtime what has become of a process."""
        self.loop.post(lambda: self._processes.reported(report))

    def status_json(self) -> str:
        """Return the status as JSON; from another thread only once `run` has returned."""
        return self._lookers.as_json()

    # -- what the state calls for, after each batch of events

    def _must_be_newest(self) -> None:
        """Raise Fenced where another master has replaced this one, which may have slept.

        Of a job that is over nothing hangs on it, and what ended it may be the journal.
        """
        if not self.core.ended:
            self.core.journal.check()

    def _settle(self) -> float:
        self._must_be_newest()
        now = self.core.clock.now()
        if not self._shutdown.over:
            self._processes.expire(now)
            if self._servers_change is not None:
                self._servers_change.settle()
            self.front.teachers.settle(now)
            self._processes.start(now)
            self.group.settle()
            for index in self.group.workers.overdue():
                self._processes.stop(WORKER, index, 0)
            self._shutdown.check()
            self.course.settle()
            self._shutdown.settle()
            if self.core.journal.length >= max(_COMPACT_AT, 2 * len(self.queue.tasks)):
                self.core.journal.compact({"queue": dump_queue(self.queue)})
        self._asking.settle(now)
        self.core.commit()
        self._lookers.settle(now)
        tick = now + TICK_S
        waiting = self._asking.next_deadline or tick
        silent = self.members.next_expiry()
        expiry = tick if silent is None else max(silent, now) + _JUST_AFTER_S
        return min(tick, expiry, self.replicas.next_start() or tick, waiting)


def _group_of(core: Core, connect: Callable[[Sequence[str]], Servers], restore: str) -> Group:
    """Return what holds the parameters of a job, by its strategy."""
    strategy = core.settings.strategy
    if strategy == "ps":
        return ServerGroup(core, connect, restore)
    if strategy == "allreduce":
        return Collective(core, restore)
    group = Collective(core, restore, alone=False)
    servers = ServerGroup(core, connect, restore, lambda task: [group.standing.position(task)])
    return Hybrid(core, group, servers)
