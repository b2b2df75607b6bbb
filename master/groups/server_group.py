"""The parameter servers of a job as one: fences, the recovery of lost ones, retirement.

A server that replaces a lost one is made ready before anybody learns its address; `version` counts
the maps of addresses, and whatever was asked of servers of an older one is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ...common.errors import PeerError, Unreachable
from ...durable.loop import Script
from ...durable.schema import Json
from ..books.decisions import Fenced, Recovered
from ..books.task import Fence
from ..core import RETRY_S, Core
from ..membership import SERVER, Member
from .server_cuts import ServerCuts
from .server_map import ServerMap
from .servers import Servers
from .single_workers import SingleWorkers

log = logging.getLogger(__name__)


class ServerGroup:
    """The servers as the Group of a job (group.py).

    `restore`: the checkpoint that they begin from. `beside(task)`: the positions at which those
    stand who keep books of the same task beside the servers. Without any servers (an analysis) the
    group is there at once, and no task is ever fenced.
    """

    def __init__(
        self,
        core: Core,
        connect: Callable[[Sequence[str]], Servers],
        restore: str,
        beside: Callable[[int], list[int]] = lambda _task: [],
    ) -> None:
        self._core = core
        self._connect = connect
        self._beside = beside
        self._servers: Servers | None = None
        self._recovering: set[str] = set()  # incarnations that are being made ready
        self._fences_sent: set[tuple[int, int]] = set()
        self._begins = False  # servers that come after others are being made ready
        self.server_map = ServerMap(core, restore)
        self.cuts = ServerCuts(core, self)
        self.workers = SingleWorkers(core)

    def memory(self) -> Json:
        return self.server_map.memory()

    def remember(self, memory: Json) -> None:
        self.server_map.remember(memory)
        if addresses := self.server_map.addresses:
            self._servers = self._connect(addresses)

    @property
    def version(self) -> int:
        return self.server_map.version

    @property
    def connected(self) -> bool:
        return self._servers is not None

    @property
    def shards(self) -> Servers:
        """The client that calls all of them, for the background.

        Raises Unreachable while they are changed for others.
        """
        if self._servers is None:
            raise Unreachable("the servers are being changed for others")
        return self._servers

    def settle(self) -> None:
        """Do what the state calls for: connect, make replacements ready, send fences, retire."""
        self.tend()
        if self.cuts.busy:
            return  # its books need the tasks that the frozen ledgers name
        durable: list[int] = []
        if self.server_map.newly_covered:
            self.server_map.newly_covered = False
            durable = self.server_map.durable_tasks()
        self._core.retire(durable)

    def tend(self) -> None:
        """Connect, make replacements ready and send fences; retire nothing."""
        core = self._core
        members = core.members.of(SERVER)
        if self._servers is None and len(members) == core.settings.num_ps:
            if not self.server_map.version:
                self._serve(self._connect([member.address for member in members]), members)
            elif not self._begins:
                self._begins = True
                core.loop.spawn(self._begin_others())
        if self._servers is not None and not core.ended:
            for member in members:
                known = member.incarnation in self._recovering
                if not known and not self.server_map.serves(member):
                    self._recovering.add(member.incarnation)
                    core.loop.spawn(self._recover(member))
        if self._servers is not None:
            self._send_fences()

    def _serve(self, servers: Servers, members: Sequence[Member]) -> None:
        """Call these servers, and tell everybody of them."""
        core = self._core
        self._servers = servers
        self.server_map.begin(members)
        if core.status.state == "starting":
            core.status.state = "running"
        core.save()

    def close(self) -> None:
        if self._servers is not None:
            self._servers.close()

    # -- all servers are changed for others

    def forget(self, restore: str) -> None:
        """Know of no server any more: others are to begin from this checkpoint.

        Nobody may lease or push before they have.
        """
        self.close()
        self._servers = None
        self._recovering.clear()
        self._fences_sent.clear()
        self.server_map.forget(restore)

    def _begin_others(self) -> Script[None]:
        """Make servers ready that have come in the place of all others, then serve by them.

        As for one that replaces another (`_recover`): nobody knows their addresses yet, and they
        learn the attempts first. They stand at one state, that of the checkpoint.
        """
        core = self._core
        members, attempts = core.members.of(SERVER), core.queue.unretired
        servers = self._connect([member.address for member in members])
        try:
            answer = yield core.loop.background(lambda: servers.fence(attempts))
        except Unreachable as error:  # they may still be restoring
            log.debug("servers -> not ready error=%r", str(error))
            answer = None
            yield from core.loop.sleep(RETRY_S)
        self._begins = False
        there = [member.incarnation for member in core.members.of(SERVER)]
        if answer is None or there != [member.incarnation for member in members] or core.ended:
            servers.close()
            return  # `tend` begins again
        if apart := {task: applied for task, applied in answer.items() if len(set(applied)) > 1}:
            raise PeerError(f"servers of one checkpoint stand apart: {apart}")
        core.decide(Recovered({task: applied[0] for task, applied in answer.items()}))
        self._serve(servers, members)

    def steps(self) -> Script[int]:
        return (yield from self._core.insist(lambda: self.shards.version()))

    def flush(self) -> Script[None]:
        yield from self.cuts.flush()

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
        """Make a server ready that replaces a lost one: it stands where its snapshot does (rule 5).

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
        self.server_map.replace(member)
        core.tell(
            f"server {member.index} is back; {before - core.queue.records_done} records are "
            "computed again for it"
        )
        core.save()
        self.shards.replace(self.server_map.addresses, self.version)
