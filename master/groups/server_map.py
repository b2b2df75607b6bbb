"""The map of servers: who serves which shard, by which version, and what its snapshots cover.

A server that is replaced begins with what its forerunner's snapshots hold, so the master keeps what
is known of both beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...durable.schema import Json, dump, load
from ...proto import master_pb2 as pb
from ..books.plan import Kind
from ..core import Core
from ..membership import Member
from .servers import NUM_SLOTS


@dataclass(frozen=True)
class ServersMemory:
    """The part of the journal that the servers have.

    `version`: of the map; `snapshots`: by shard.
    """

    restore: str
    version: int
    serving: list[Member]
    snapshots: dict[int, int]


class ServerMap:
    """A map of servers; empty (version 0) before all have been there, and where there are none.

    `restore`: the checkpoint that they begin from. `newly_covered`: some server's snapshots hold
    more than when this was set to False.
    """

    def __init__(self, core: Core, restore: str = "") -> None:
        self.version = 0
        self.newly_covered = False
        self._core = core
        self._restore = restore
        self._serving: dict[int, Member] = {}  # by shard
        self._coverage: dict[int, pb.Coverage] = {}  # by shard

    def memory(self) -> Json:
        """Return all that a successor of the master must know of it, as JSON values."""
        memory = ServersMemory(
            restore=self._restore,
            version=self.version,
            serving=[member.lasting() for member in self._serving.values()],
            snapshots={index: c.snapshot for index, c in self._coverage.items()},
        )
        return dump(ServersMemory, memory)

    def remember(self, memory: Json) -> None:
        """Go on where the master before ended.

        Raises ValueError where it wrote something else.
        """
        known = load(ServersMemory, memory)
        self._restore, self.version = known.restore, known.version
        self._serving = {member.index: member for member in known.serving}
        self._coverage = {
            index: pb.Coverage(snapshot=number) for index, number in known.snapshots.items()
        }

    @property
    def addresses(self) -> list[str]:
        """The addresses of the shards, by shard; none before all servers have been there."""
        return [self._serving[index].address for index in sorted(self._serving)]

    def reply(self) -> pb.GetServersReply:
        """Return the answer to who asks where the servers are."""
        if not self._serving:
            return pb.GetServersReply()
        return pb.GetServersReply(
            slot_map_version=self.version, addresses=self.addresses, num_slots=NUM_SLOTS
        )

    def arguments(self, index: int) -> tuple[str, ...]:
        """Return the arguments that server `index` is started with.

        They name the job's checkpoint, and what its forerunner has left.
        """
        arguments: tuple[str, ...] = ("--restore", self._restore) if self._restore else ()
        if index in self._serving:
            coverage = self._coverage.get(index, pb.Coverage())
            left = f"{self._serving[index].incarnation}:{coverage.snapshot}"
            arguments += ("--recover", left)
        return arguments

    def begin(self, members: Sequence[Member]) -> None:
        """Make the first map, or the first one after `forget`, of these servers."""
        self._serving = {member.index: member for member in members}
        self.version += 1

    def forget(self, restore: str) -> None:
        """Know of no server any more: others are to begin from this checkpoint."""
        self._restore = restore
        self._serving.clear()
        self._coverage.clear()

    def serves(self, member: Member) -> bool:
        """Tell whether this server is the one in the map."""
        return self._serving[member.index].incarnation == member.incarnation

    def replace(self, member: Member) -> None:
        """Make the next map, in which this server has the place of the one before it."""
        self._serving[member.index] = member
        self.version += 1

    # -- what every shard's snapshots hold is forgotten

    def covered(self, index: int, coverage: pb.Coverage) -> None:
        """Hear from server `index` what its snapshots hold."""
        known = self._coverage.get(index, pb.Coverage()).snapshot
        if coverage.snapshot >= known:
            self._coverage[index] = coverage
            if coverage.snapshot > known:
                # a replacement must never begin with less than what was relied on
                self._core.save_soon()
            self.newly_covered = True

    def durable_tasks(self) -> list[int]:
        """Return the train tasks that every shard would have whatever became of it."""
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
