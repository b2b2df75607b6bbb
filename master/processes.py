"""The processes of a job: started where they are wanted, watched, given up, told to end.

What should run is decided in replicas.py, and what the end of a process means in losses.py; here
this becomes calls of the runtime, and the reports of the runtime become losses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ..common import faults
from ..common.errors import EdlError
from ..common.identity import Identity
from ..common.settings import ANALYZE
from ..runtime.base import Exit, Note, Replica, Report, Runtime
from .books.decisions import Lost
from .core import EXIT_FAILED, Core
from .groups.group import Group
from .losses import Losses
from .membership import ROLES, SERVER, WORKER, Member
from .replicas import LONGEST_PAUSE_S, ReplicasState, Start
from .told import about, end_of

log = logging.getLogger(__name__)

_SILENT_LEASES = 3  # a process silent for so many leases is killed
TICK_S = 0.5  # how late a silent server may be noticed
_AWAY_S = 4 * TICK_S  # a longer pause between two looks is no ordinary one


class Processes:
    """The processes of a job. `use` gives it the runtime, before anything is started."""

    def __init__(self, core: Core, group: Group, losses: Losses, identity: Identity) -> None:
        self._core = core
        self._group = group
        self._losses = losses
        self._identity = identity
        self._runtime: Runtime | None = None
        self._running: dict[tuple[str, int], Replica] = {}
        self._looked = core.clock.now()  # for who is silent
        self._silent: dict[tuple[str, int], float] = {}  # role, index: last heard
        self.servers_may_leave = False  # the last worker has gone

    def use(self, runtime: Runtime) -> None:
        """Start and stop processes by this runtime from now on."""
        self._runtime = runtime

    def close(self) -> None:
        """Kill every process now."""
        if self._runtime is not None:
            self._runtime.close()

    def detach(self) -> None:
        """Let go of all processes: they are another master's."""
        if self._runtime is not None:
            self._runtime.detach()

    @property
    def all(self) -> list[Replica]:
        """The processes that run, as far as is known."""
        return list(self._running.values())

    def remember(
        self,
        replicas: ReplicasState,
        processes: Iterable[Replica],
        members: Sequence[Member],
        now: float,
    ) -> None:
        """Take over what ran when the master before ended; `adopt` finds out what still does."""
        self._core.replicas.restore(replicas)
        for slot in self._core.replicas.slots.values():  # later where the machine was booted since
            slot.started = min(slot.started, now)
            slot.not_before = min(slot.not_before, now + LONGEST_PAUSE_S)
        started = {process.incarnation: process for process in processes}
        for slot in (s for role in ROLES for s in self._core.replicas.running(role)):
            # One whose start was not finished is not known by its pid: it is given up, and refused
            # where it exists.
            unknown = Replica(slot.role, slot.index, slot.incarnation)
            replica = started.get(slot.incarnation, unknown)
            self._running[slot.role, slot.index] = replica
            if replica.pid:
                self._await_registration(replica)
        for member in members:
            self._silent.pop((member.role, member.index), None)

    def adopt(self) -> None:
        """Watch the processes that were taken over."""
        assert self._runtime is not None
        for replica in self.all:
            self._runtime.adopt(replica)

    # -- starts

    def start(self, now: float) -> None:
        """Start what is wanted and does not run."""
        starts = self._core.replicas.starts(now)
        if starts:
            self._core.save()  # that they may run from now on
        for start in starts:
            try:
                if not self._core.ended:
                    self._start(start)
                    continue
            except EdlError as error:
                self._core.fail(str(error))
            # It never was: nobody is to wait for its end.
            self._core.replicas.exited(start.role, start.index, start.incarnation, EXIT_FAILED, now)
        if starts:
            self._core.save()  # by which pids they are known

    def _start(self, start: Start) -> None:
        assert self._runtime is not None
        env = {
            **self._core.settings.envs,
            **self._identity.variables(),
            "EDL_JOB_DIR": str(self._core.job_dir),
            "EDL_JOB_NAME": self._core.settings.job_name,
            "EDL_ROLE": start.role,
            "EDL_INDEX": str(start.index),
            "EDL_INCARNATION": start.incarnation,
        }
        arguments: tuple[str, ...] = ()
        if start.role == SERVER:
            arguments = self._group.server_map.arguments(start.index)
        elif start.role == WORKER and self._core.settings.command == ANALYZE:
            arguments = ("--analyze",)
        replica = self._runtime.start(start.role, start.index, start.incarnation, env, arguments)
        self._running[start.role, start.index] = replica
        if replica.pid:
            self._await_registration(replica)

    def renew_servers(self, servers: int) -> list[Replica]:
        """Want so many servers, all new; return the processes of before, which are no more ours."""
        for member in self._core.members.of(SERVER):
            self._core.members.lose(member.incarnation)
        before = [place for place in self._running if place[0] == SERVER]
        for place in before:
            self._silent.pop(place, None)
        self._core.replicas.renew_servers(servers)
        return [self._running.pop(place) for place in before]

    def kill(self, replicas: Iterable[Replica]) -> None:
        """Kill processes, also such as are no more ours."""
        assert self._runtime is not None
        for replica in replicas:
            self._runtime.stop(replica, 0)

    # -- what becomes of them

    def reported(self, report: Report) -> None:
        """Hear from the runtime what has become of a process."""
        if isinstance(report, Exit):
            self._exited(report)
        elif isinstance(report, Note):
            if report.replica is not None:
                self._slot_waits(report.replica, report.text)
            who = f"{report.replica.role} {report.replica.index} " if report.replica else ""
            self._core.tell(f"{who}{report.text}")
        elif self._core.members.get(report.replica.incarnation) is None:
            self._slot_waits(report.replica, "")
            self._await_registration(report.replica)

    def _slot_waits(self, replica: Replica, why: str) -> None:
        slot = self._core.replicas.slots.get((replica.role, replica.index))
        if slot is not None and slot.incarnation == replica.incarnation:
            slot.waits = why

    def _await_registration(self, replica: Replica) -> None:
        if self._running.get((replica.role, replica.index)) != replica:
            return  # another has taken its place
        until = self._core.clock.now() + self._core.settings.master_timeout_s
        self._silent[replica.role, replica.index] = until

    def registered(self, role: str, index: int) -> None:
        """Note that a process has said hello: it is not silent."""
        self._silent.pop((role, index), None)

    def incarnation(self, role: str, index: int) -> str:
        """Return the name that a place's process was started by. It may have had others since."""
        process = self._running.get((role, index))
        return process.incarnation if process is not None else ""

    def find(self, role: str, index: int) -> Replica | None:
        """Return the process of this place, where one runs."""
        return self._running.get((role, index))

    def _exited(self, exit: Exit) -> None:
        replica = exit.replica
        if self._running.get((replica.role, replica.index)) != replica:
            return
        del self._running[replica.role, replica.index]
        slot, verdict = self._losses.exited(exit)
        self._core.tell(
            f"{replica.role} {replica.index} {slot.last_end} ({verdict})",
            **about("death", replica, end=end_of(verdict, exit.code), why=slot.last_end),
        )
        for member in self._core.members.lose_index(replica.role, replica.index):
            self.lost(member, slot.last_end)
        self._core.members.lose(replica.incarnation)  # also where it never registered
        self._silent.pop((replica.role, replica.index), None)
        self._core.save_soon()

    def lost(self, member: Member, why: str) -> None:
        """End the leases of a member that is gone.

        Only a worker holds leases: the loss of server i moves no task of worker i.
        """
        if member.role != WORKER or self._core.ended:
            return
        fences = self._core.decide(Lost(member.incarnation))
        self._group.workers.lost(member.incarnation)
        log.info("worker=%d -> lost reason=%r tasks=%d", member.index, why, len(fences))
        faults.point("master.requeue", tasks=len(fences))

    def expire(self, now: float) -> None:
        """Give up who has been silent for too long, or did not come back to the group."""
        away_s, self._looked = now - self._looked, now
        if away_s > max(_AWAY_S, self._core.settings.lease_s / 2):
            # This process itself was stopped, or its disk was slow: who spoke meanwhile is not
            # heard yet.
            self._core.members.excuse(away_s)
        for member in self._core.members.expire(now):
            whose = ", which this job has not started,"
            if (member.role, member.index) in self._running:
                self._silent[member.role, member.index] = member.last_heard
                whose = ""
            self._core.tell(
                f"{member.role} {member.index}{whose} was silent for "
                f"{self._core.settings.lease_s:g} s: lost",
                **about("death", member, end="failed", why="silent for too long"),
            )
            self.lost(member, "silent")
            self._core.save_soon()
        for (role, index), last_heard in list(self._silent.items()):
            if now - last_heard > _SILENT_LEASES * self._core.settings.lease_s:
                del self._silent[role, index]
                self._core.tell(f"{role} {index} stays silent: killed")
                self.stop(role, index, 0)
        for member in self._core.members.hung_servers(now, self._core.settings.server_timeout_s):
            self._core.tell(f"server {member.index} stays silent: killed")
            self.stop(SERVER, member.index, 0)

    # -- ends

    def scale(self, workers: int) -> int:
        """Want so many workers; returns how many were wanted before."""
        if self._core.status.state not in ("starting", "running"):
            self._core.tell(
                f"not scaled to {workers} workers: the job is {self._core.status.state}"
            )
            return self._core.replicas.wanted
        if (changing := self._core.changing) is not None:  # then
            previous, changing.workers = changing.workers, workers
            return previous
        previous = self.want_workers(workers)
        if previous == workers:
            return previous
        if not self._group.workers.trains_in_rounds:  # else their pauses are measured
            self._core.recorder.decided(WORKER, self._core.clock.now())
        self._core.tell(f"workers wanted: {workers} (were {previous})", kind="scale")
        self._core.save_soon()
        return previous

    def want_workers(self, workers: int) -> int:
        """Want so many workers, and drain the others; returns how many were wanted before."""
        previous = self._core.replicas.scale(workers)
        if workers < previous:
            for slot in self._core.replicas.running(WORKER):
                if slot.leaving:
                    self.stop(WORKER, slot.index, self._core.settings.drain_grace_s)
        return previous

    def must_leave(self, role: str, index: int) -> bool:
        """Tell whether the process of this place is to leave in order."""
        if role == SERVER:
            return self.servers_may_leave  # the runtime stops them
        if self._group.workers.trains_in_rounds and (role, index) not in self._core.replicas.slots:
            return True  # rounds have places for those alone that the master starts
        over = self._core.status.state in ("failed", "stopped")
        return over or self._core.replicas.is_leaving(role, index)

    def stop_all(self, role: str, grace_s: float) -> None:
        """Tell all of a role to leave; kill them after `grace_s`."""
        for slot in self._core.replicas.running(role):
            self.stop(role, slot.index, grace_s)

    def stop(self, role: str, index: int, grace_s: float) -> None:
        """Tell a process to leave; kill it after `grace_s`."""
        replica = self._running.get((role, index))
        if replica is not None and self._runtime is not None:
            self._losses.asked(replica)
            self._runtime.stop(replica, grace_s)
