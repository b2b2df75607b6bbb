"""The rounds of a group: who trains together in elastic all-reduce. Pure.

    gathering --form--> running --a step after which all stop--> gathering
                           |------- a member is lost ------------^

Each member holds the whole state. All apply the same step or none: a step is applied by whoever got
its gradients complete, so two members of a round are at most one step apart when it ends, and what
the furthest of them has applied counts. Whoever is behind gets that state from a member that has it
while the round trains on. Where no member of the last round is left, all begin from a snapshot.

A round ends in order when somebody waits to come in, or is to leave: its members are told, agree by
the all-reduce itself on the step after which they stop, and come back here. It breaks when one of
them is lost, or says that it failed: the others are told to give up the step under way. Either way
the next one is formed once all who are left are here, so that nobody is left behind in the old one;
whoever does not come back within `patience_s` is `overdue`.

A sharded state (worker/group/sharded_state.py) is held in parts, named (world, rank) after the
round that cut it: a member has its own and a mirror of its neighbour's. Two parts of one version
and name are equal, whoever has them. The next round goes on from the newest version of which all
parts are here: a death leaves one, two neighbours that die at once do not, and all begin from a
snapshot. Whoever leaves stays until the next round has taken what it holds (`settle`), or, where
all leave, until one of them has saved the state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class Peer:
    """A worker that trains, or waits to.

    `version`: steps that its state has, -1 without one; `applied`: its ledger, the position by
    task; `address`: where its state can be fetched.

    `parts`: those of a sharded state that it has, each (world, rank); `pending`: it has all that it
    needs for the next step, and makes it where somebody has.
    """

    incarnation: str
    index: int
    address: str
    version: int = -1
    applied: Mapping[int, int] = field(default_factory=dict)
    parts: frozenset[tuple[int, int]] = frozenset()
    pending: bool = False

    def lasting(self) -> Peer:
        """Return the member as the journal keeps it.

        Its ledger is known only while it waits for a round.
        """
        return dataclasses.replace(self, applied={}, pending=False)

    def can_be(self, version: int) -> bool:
        return self.version == version or (self.pending and self.version == version - 1)


@dataclass(frozen=True)
class Formed:
    """A round: its members by rank, the first of which has what the furthest has.

    `afresh`: nobody brought the state of the round before. `version` and `applied`: what it begins
    with (not where afresh).
    """

    number: int
    members: tuple[Peer, ...]
    afresh: bool
    version: int = -1
    applied: Mapping[int, int] = field(default_factory=dict)

    @property
    def top(self) -> Peer:
        return self.members[0]


class Farewell(Enum):
    """The duty of one who leaves with parts of a sharded state."""

    GO = "nobody needs it"
    STAY = "somebody may"
    SAVE = "all leave: write the state"


class Rounds:
    """The rounds of a group.

    `last_call_s`: how long a round that nobody continues waits for workers that are still to come.
    `sharded`: the state is held in parts.
    """

    def __init__(self, *, last_call_s: float, patience_s: float, sharded: bool = False) -> None:
        self._last_call_s = last_call_s
        self._patience_s = patience_s
        self.number = 0
        self.members: tuple[Peer, ...] = ()  # of the newest round, by rank
        self.running = False
        self.broken = False
        self._missing: dict[str, Peer] = {}  # of a round that is over: not back, not lost
        self._here: dict[str, Peer] = {}
        self._since = 0.0  # when the round ended, or the first one came
        self._sharded = sharded
        self.world = 0  # parts of the sharded state that the newest round began with
        self._leaving: dict[str, Peer] = {}  # with parts that may be needed
        self._settled = False  # all of the newest round have their parts

    def remember(
        self, number: int, members: tuple[Peer, ...], world: int = 0, givers: tuple[Peer, ...] = ()
    ) -> None:
        """Become as after that round was formed: nobody knows yet whether it still runs."""
        self.number, self.members, self.running = number, members, bool(members)
        self.world, self._leaving = world, {giver.incarnation: giver for giver in givers}

    def join(self, member: Peer, round_: int, broken: bool, now: float) -> None:
        """Take in a member that is out of round `round_` (0: of none) and wants the next.

        May come twice.
        """
        if self.is_running(member.incarnation):
            if round_ != self.number:
                return  # a repeat: it is in already, and has not heard so
            self._end(broken, now)
        if not self.running and not self._here and not self._missing:
            self._since = now
        self._missing.pop(member.incarnation, None)
        self._here[member.incarnation] = member

    def lost(self, incarnation: str, now: float) -> None:
        """Forget a member that is gone for good."""
        self._here.pop(incarnation, None)
        if self.is_running(incarnation):
            self._end(True, now)
        self._missing.pop(incarnation, None)
        self._leaving.pop(incarnation, None)

    @property
    def givers(self) -> tuple[Peer, ...]:
        """The members that leave, and have parts that the newest round, or the next, may need."""
        return tuple(self._leaving.values())

    def owes(self, incarnation: str) -> bool:
        """Tell whether a worker is in the running round, or has not said that it left the last."""
        return self.is_running(incarnation) or incarnation in self._missing

    def settle(self) -> None:
        """Let go of those who leave: all of the running round have what it begins with."""
        self._settled = True
        self._leaving.clear()

    def farewell(self, member: Peer, now: float) -> Farewell:
        """Let a member that has a part of a sharded state leave its round, in order.

        It wants no other, and asks again until it may go.
        """
        me = member.incarnation
        if self.is_running(me):
            self._end(False, now)
        self._here.pop(me, None)
        self._missing.pop(me, None)
        if not member.parts or (self.running and self._settled):
            self._leaving.pop(me, None)
            return Farewell.GO
        self._leaving[me] = member
        if self.running or self._here or self._missing:
            return Farewell.STAY
        if self._whole is None:
            return Farewell.GO
        return Farewell.SAVE if me == min(self._leaving) else Farewell.STAY

    @property
    def wanted(self) -> tuple[int, int]:
        """The version and number of parts of what those who leave are asked for."""
        if self.running:
            return self.members[0].version, self.world
        return self._whole or (-1, 0)

    def leave(self, incarnation: str, now: float) -> bool:
        """Let a member leave, in order, for good. Returns whether nobody else has the state."""
        if self.is_running(incarnation):
            self._end(False, now)
        had = self._here.pop(incarnation, None), self._missing.pop(incarnation, None)
        others = {*self._here, *self._missing} & {m.incarnation for m in self.members}
        return any(had) and not others

    def break_(self, now: float) -> None:
        """End the round: the step under way cannot be finished."""
        if self.running:
            self._end(True, now)

    def is_running(self, incarnation: str) -> bool:
        """Tell whether a worker is a member of the newest round, and that is not over."""
        return self.running and incarnation in (m.incarnation for m in self.members)

    @property
    def newcomers(self) -> bool:
        """Tell whether somebody waits while the round is running."""
        return self.running and bool(self._here)

    @property
    def all_train(self) -> bool:
        """Tell whether a round runs, nobody waits for the next, and nobody in it is a latecomer."""
        return self.running and not self._here and len({m.version for m in self.members}) == 1

    @property
    def ended_at(self) -> float:
        """When the newest round ended, or the first one came."""
        return self._since

    def ready(self, expected: int, now: float) -> bool:
        """Tell whether the next round can be formed. `expected`: workers that are wanted."""
        if self.running or self._missing or not self._here:
            return False
        return self._goes_on or len(self._here) >= expected or now >= self.last_call

    @property
    def last_call(self) -> float:
        return self._since + self._last_call_s

    def form(self) -> Formed:
        """Form the next round of all who are here.

        Ranks: who has the newest state first, then by index.
        """
        if self._sharded:
            return self._form_sharded()
        afresh = not self._goes_on
        newest = max(member.version for member in self._here.values())
        members = sorted(self._here.values(), key=lambda m: (m.version < newest, m.index))
        self.number += 1
        self.members = tuple(members)
        self.running, self.broken = True, False
        self._here.clear()
        top = members[0]
        return Formed(self.number, self.members, afresh, top.version, top.applied)

    def _form_sharded(self) -> Formed:
        """Form the next round by index alone.

        Whoever replaces a lost member has its rank, and the others keep their parts.

        The members' version is from now on that of the round.
        """
        there = [*self._here.values(), *self._leaving.values()]
        whole = self._whole
        version, self.world = whole or (-1, 0)
        applied: Mapping[int, int] = {}
        if whole is None:
            self._leaving.clear()
        else:
            applied = next(m.applied for m in there if m.version == version)
        members = sorted(self._here.values(), key=lambda m: m.index)
        self.number += 1
        self.members = tuple(
            dataclasses.replace(
                m,
                version=version,
                parts=m.parts if m.can_be(version) else frozenset(),
                pending=False,
            )
            for m in members
        )
        self.running, self.broken, self._settled = True, False, False
        self._here.clear()
        return Formed(self.number, self.members, whole is None, version, applied)

    def overdue(self, now: float) -> list[Peer]:
        """Return the members that did not come back in time; named once."""
        if now - self._since <= self._patience_s:
            return []
        overdue = list(self._missing.values())
        self._missing.clear()
        return overdue

    @property
    def _goes_on(self) -> bool:
        """Tell whether somebody is here who has what the last round began with."""
        if self._sharded:
            return self._whole is not None
        began = self.members[0].version if self.members else 0
        known = {member.incarnation for member in self.members}
        there = [m for m in self._here.values() if m.incarnation in known]
        return any(m.version >= max(began, 0) for m in there)

    @property
    def _whole(self) -> tuple[int, int] | None:
        """The newest version of a sharded state of which all parts are here, and their number."""
        there = [*self._here.values(), *self._leaving.values()]
        for version in sorted({m.version for m in there if m.parts}, reverse=True):
            found = {part for m in there if m.can_be(version) for part in m.parts}
            for world in sorted({world for world, _ in found}):
                if all((world, rank) in found for rank in range(world)):
                    return version, world
        return None

    def _end(self, broken: bool, now: float) -> None:
        self.running, self.broken = False, broken
        self._since = now
        self._missing = {m.incarnation: m for m in self.members}
        for incarnation in self._here:
            self._missing.pop(incarnation, None)
