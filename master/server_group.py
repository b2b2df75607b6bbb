"""The parameter servers of a job as one: who serves which shard, fences, cuts, recovery, retirement.

A server that replaces a lost one is made ready before anybody learns its address; `version` counts
the maps of addresses, and whatever was asked of servers of an older one is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import JobError, PeerError, Unreachable, UsageError
from ..durable.loop import Script
from ..durable.schema import Json, dump, load
from ..proto import master_pb2 as pb
from .core import RETRY_S, Core
from .decisions import Fenced, LeaseSome, Recovered
from .meeting import Meeting
from .membership import SERVER, WORKER, Member
from .plan import Kind
from .server_cuts import ServerCuts
from .servers import NUM_SLOTS, Cut, Servers, Snapshot
from .task import Fence, Task

log = logging.getLogger(__name__)

_MOST_TASKS = 32  # of one lease: half of what the books remember of a worker (task_queue.py)


@dataclass(frozen=True)
class ServersMemory:
    """The part of the journal that the servers have. `version`: of the map; `snapshots`: by shard."""

    restore: str
    version: int
    serving: list[Member]
    snapshots: dict[int, int]


class ServerGroup:
    """The servers as the Group of a job (group.py). See the module.

    `restore`: the checkpoint that they begin from. `beside(task)`: the positions at which those stand
    who keep books of the same task beside the servers.
    """

    trains_in_rounds = False
    lessee = ""
    left: Cut | None = None

    def __init__(
        self,
        core: Core,
        connect: Callable[[Sequence[str]], Servers],
        restore: str,
        beside: Callable[[int], list[int]] = lambda task: [],
    ) -> None:
        self.version = 0  # of the map of servers; 0: not all have been there yet
        self._beside = beside
        self._core = core
        self._connect = connect
        self._restore = restore
        self._servers: Servers | None = None
        self._serving: dict[int, Member] = {}  # by shard: where the map says that it is
        self._recovering: set[str] = set()  # incarnations that are being made ready
        self._coverage: dict[int, pb.Coverage] = {}  # by shard
        self.newly_covered = False
        self._fences_sent: set[tuple[int, int]] = set()
        self._cuts = ServerCuts(core, self)
        # Tasks that a checkpoint left in the midst come first: the order is that of its job.
        self._awaits_fences = bool(core.queue.fencing)

    def memory(self) -> Json:
        memory = ServersMemory(
            restore=self._restore,
            version=self.version,
            serving=[member.lasting() for member in self._serving.values()],
            snapshots={index: c.snapshot for index, c in self._coverage.items()},
        )
        return dump(ServersMemory, memory)

    def remember(self, memory: Json) -> None:
        known = load(ServersMemory, memory)
        self._restore, self.version = known.restore, known.version
        self._serving = {member.index: member for member in known.serving}
        self._coverage = {
            index: pb.Coverage(snapshot=number) for index, number in known.snapshots.items()
        }
        if self._serving:
            self._servers = self._connect(self._addresses())

    @property
    def connected(self) -> bool:
        return self._servers is not None

    @property
    def map_version(self) -> int:
        return self.version

    @property
    def shards(self) -> Servers:
        """The client that calls all of them, for the background."""
        assert self._servers is not None
        return self._servers

    def snapshot(self, cut: str, directory: Path) -> Snapshot:
        return self.shards.snapshot(cut, directory)

    def unpin(self, cut: str) -> None:
        self.shards.unpin(cut)

    def kept(self, left: Cut, directory: Path) -> Snapshot:
        raise JobError("workers that train with servers leave no state of their own")

    def servers(self) -> pb.GetServersReply:
        if not self.version:
            return pb.GetServersReply()
        return pb.GetServersReply(
            slot_map_version=self.version, addresses=self._addresses(), num_slots=NUM_SLOTS
        )

    def arguments(self, index: int) -> tuple[str, ...]:
        """A server begins with the job's checkpoint, or with what its forerunner has left."""
        arguments: tuple[str, ...] = ("--restore", self._restore) if self._restore else ()
        if index in self._serving:
            coverage = self._coverage.get(index, pb.Coverage())
            left = f"{self._serving[index].incarnation}:{coverage.snapshot}"
            arguments += ("--recover", left)
        return arguments

    def settle(self) -> None:
        """Do what the state calls for: connect, make replacements ready, send fences, retire."""
        self.tend()
        if self._cuts.busy:
            return  # its books need the tasks that the frozen ledgers name
        durable: list[int] = []
        if self.newly_covered:
            self.newly_covered = False
            durable = self.durable_tasks()
        self._core.retire(durable)

    def tend(self) -> None:
        """Connect, make replacements ready and send fences; retire nothing."""
        core = self._core
        members = core.members.of(SERVER)
        if self._servers is None and len(members) == core.settings.num_ps:
            self._servers = self._connect([member.address for member in members])
            self._serving = {member.index: member for member in members}
            self.version = 1
            if core.status.state == "starting":
                core.status.state = "running"
            core.save()
        if self._servers is not None and not core.ended:
            for member in members:
                known = member.incarnation in self._recovering
                if not known and self._serving[member.index].incarnation != member.incarnation:
                    self._recovering.add(member.incarnation)
                    core.loop.spawn(self._recover(member))
        if self._servers is not None:
            self._send_fences()

    def close(self) -> None:
        if self._servers is not None:
            self._servers.close()

    def _addresses(self) -> list[str]:
        return [self._serving[index].address for index in sorted(self._serving)]

    # -- fences

    def _send_fences(self) -> None:
        waiting = self._core.queue.fencing
        fences = [f for f in waiting if (f.task, f.attempt) not in self._fences_sent]
        if fences:
            self._fences_sent.update((f.task, f.attempt) for f in fences)
            self._core.loop.spawn(self._fence(fences))

    def _fence(self, fences: Sequence[Fence]) -> Script[None]:
        attempts = {fence.task: fence.attempt for fence in fences}
        version = self.version
        answer = yield from self._core.insist(lambda: self.shards.fence(attempts))
        self._fences_sent.difference_update(attempts.items())
        if version != self.version:
            return  # one of the answers may be that of a server which is gone: asked again
        for task, attempt in attempts.items():
            applied = [*answer[task], *self._beside(task)]
            self._core.decide(Fenced(task, attempt, applied))
            log.info("task=%d attempt=%d -> requeued applied=%s", task, attempt, applied)

    # -- a lost server is replaced

    def _recover(self, member: Member) -> Script[None]:
        """Rule 5: a server that replaces a lost one stands where its snapshot does.

        Nobody knows its address yet. It learns the attempts first, so that no zombie finds it open;
        what it lacks of done tasks is leased again, and the others drop the duplicates.
        """
        core = self._core
        asked: dict[int, int] = {}
        applied: dict[int, int] = {}
        answered = False
        while True:
            attempts = dict(core.queue.unretired.items() - asked.items())
            if answered and not attempts:
                break
            try:
                applied |= yield core.loop.background(
                    lambda: self.shards.fence_one(member.index, member.address, attempts)  # noqa: B023
                )
                asked |= attempts
                answered = True
            except Unreachable as error:  # it may still be restoring
                log.debug("server=%d -> not ready error=%r", member.index, str(error))
                yield from core.loop.sleep(RETRY_S)
            if core.members.get(member.incarnation) is None or core.ended:
                return  # lost again
        there = core.queue.unretired
        if missing := sorted(there.keys() - applied.keys()):
            raise PeerError(f"server {member.index} has retired tasks {missing}, which are not")
        before = core.queue.records_done
        core.decide(Recovered({t: p for t, p in applied.items() if t in there}))
        self._serving[member.index] = member
        self.version += 1
        core.tell(
            f"server {member.index} is back; {before - core.queue.records_done} records are "
            "computed again for it"
        )
        core.save()
        self.shards.replace(self._addresses(), self.version)

    # -- what every shard's snapshots hold is forgotten

    def covered(self, index: int, coverage: pb.Coverage) -> None:
        """A server says what its snapshots hold."""
        known = self._coverage.get(index, pb.Coverage()).snapshot
        if coverage.snapshot >= known:
            self._coverage[index] = coverage
            if coverage.snapshot > known:
                # a replacement must never begin with less than what was relied on
                self._core.save_soon()
            self.newly_covered = True

    def durable_tasks(self) -> list[int]:
        """Train tasks that every shard would have after the worst that can happen to it."""
        if len(self._coverage) < self._core.settings.num_ps:
            return []
        by_shard = [
            (c.low_water, {t.task: t.position for t in c.tasks}) for c in self._coverage.values()
        ]
        queue = self._core.queue
        return [
            task.id
            for task in (queue.tasks[n] for n in queue.done_tasks)
            if task.kind == Kind.TRAIN
            and all(task.id < low or at.get(task.id) == task.size for low, at in by_shard)
        ]

    # -- cuts

    def take_cut(self) -> Script[tuple[Cut, dict[str, Any]]]:
        return (yield from self._cuts.take())

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        return (yield from self.take_cut())

    def steps(self) -> Script[int]:
        return (yield from self._core.insist(lambda: self.shards.version()))

    def flush(self) -> Script[None]:
        yield from self._cuts.flush()

    # -- workers, each of which trains by itself

    def lessee_of(self, incarnation: str, round: int) -> str:
        return incarnation

    def owes(self, incarnation: str) -> str:
        return ""

    def lease(self, request: pb.GetTaskRequest, *, evaluating: bool) -> list[Task] | None:
        """Near the end of an epoch everybody gets a share of what is left."""
        core = self._core
        self._awaits_fences = self._awaits_fences and bool(core.queue.fencing)
        if self._awaits_fences:
            return []
        share = core.queue.todo // (2 * max(1, core.members.count(WORKER)))
        most = max(1, min(request.most, _MOST_TASKS, share))
        return core.lease(LeaseSome(request.replica.incarnation, request.request_id, most))

    def failed(self) -> None:
        """Nobody waits for the worker that has failed."""

    def lost(self, incarnation: str) -> None:
        """Nobody waits for the worker that is gone."""

    def overdue(self) -> list[int]:
        return []

    def members(self) -> Meeting:
        raise UsageError("this job keeps its parameters on servers: there are no rounds")

    def stand(self) -> None:
        """They stand where they are."""
