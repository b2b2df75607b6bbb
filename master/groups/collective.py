"""The group of an all-reduce job: its rounds, and its state as the one shard that it is.

To the books the group is one shard, whose ledger each member carries beside the parameters. A round
holds the leases of train tasks: its members ask for them by number and all get the same ones. When
a round ends they come back and are fenced at once, at the positions of the state that the next
round begins with, so the same queue as with parameter servers keeps every record's count.

Cuts are copies that members take of their state between two steps (group_cuts.py), snapshots are
such cuts (group_snapshots.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...durable.loop import Script
from ...durable.schema import Json, dump, load
from ..core import Core
from ..membership import WORKER
from .group_cuts import GroupCuts
from .group_snapshots import GroupSnapshots
from .meeting import Meeting
from .orders import Orders
from .round_workers import RoundWorkers
from .rounds import Peer, Rounds
from .server_map import ServerMap
from .standing import Base, Standing

_LAST_CALL_S = 10.0  # for workers that are to come, when a job or all of its group starts; a guess


@dataclass(frozen=True)
class CollectiveMemory:
    """The part of the journal that a group has.

    `members`: of the newest round, by rank; `world`: the parts of its state; `givers`: who leaves,
    with parts that may be needed.
    """

    base: Base
    afresh: bool
    round: int
    members: list[Peer]
    world: int
    givers: list[Peer]


class Collective:
    """The workers of an all-reduce job as its Group (group.py).

    `restore`: the checkpoint that it begins from, whose books the queue goes on with. `alone`:
    there are no servers beside it. `standing`: where its books stand.
    """

    def __init__(self, core: Core, restore: str, *, alone: bool = True) -> None:
        self._core = core
        sharded = core.settings.fully_shard
        self._rounds = rounds = Rounds(
            last_call_s=_LAST_CALL_S, patience_s=3 * core.settings.lease_s, sharded=sharded
        )
        self._orders = orders = Orders(rounds, sharded=sharded, epoch=core.journal.epoch)
        self.standing = Standing(core, restore, alone=alone)
        self._meeting = Meeting(core, rounds, orders, self.standing, sharded=sharded)
        self.cuts = GroupCuts(core, rounds, orders, self._meeting, self.standing)
        self.server_map = ServerMap(core)
        self.workers = RoundWorkers(core, rounds, self._meeting)
        self._snapshots = GroupSnapshots(core, self.cuts, self.standing, self._meeting.folder)

    def memory(self) -> Json:
        rounds = self._rounds
        memory = CollectiveMemory(
            base=self.standing.base,
            afresh=self._meeting.afresh,
            round=rounds.number,
            members=[member.lasting() for member in rounds.members],
            world=rounds.world,
            givers=[giver.lasting() for giver in rounds.givers],
        )
        return dump(CollectiveMemory, memory)

    def remember(self, memory: Json) -> None:
        known = load(CollectiveMemory, memory)
        self.standing.remember(known.base)
        self._meeting.afresh = known.afresh
        members, givers = tuple(known.members), tuple(known.givers)
        there = {member.incarnation for member in self._core.members.of(WORKER)}
        self._rounds.remember(known.round, members, known.world, givers)
        for member in (*members, *givers):
            if member.incarnation not in there:
                self.workers.lost(member.incarnation)

    @property
    def version(self) -> int:
        return self._rounds.number

    @property
    def connected(self) -> bool:
        return self._rounds.number > 0

    def settle(self) -> None:
        if self._core.ended:
            return
        self.tend(may_form=True)
        self._core.retire(self.standing.durable_tasks() if self.standing.newly_durable else [])
        self.standing.newly_durable = False

    def tend(self, *, may_form: bool) -> None:
        """Form a round, where it may be, and begin snapshots; retire nothing."""
        self._meeting.settle(may_form=may_form)
        if self.connected:
            self._snapshots.begin()

    def close(self) -> None:
        self._orders.close()

    def steps(self) -> Script[int]:
        yield lambda: self.connected
        return self._core.version

    def flush(self) -> Script[None]:
        """Do nothing: a step has all members, and nothing waits for others."""
        yield lambda: True
