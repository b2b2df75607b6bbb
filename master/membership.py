"""The members of a job: each incarnation of a replica, and when it was last heard. Pure.

An incarnation is registered, heard, and lost for good: whoever was lost, or never registered, is
`fenced` whatever it says. A new incarnation of the same role and index replaces the old one, which
is lost by it. Roles never touch each other: worker 3 and server 3 are strangers.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WORKER = "worker"
SERVER = "server"
TEACHER = "teacher"
ROLES = (WORKER, SERVER, TEACHER)
DRAINING = "draining"  # the state of a worker that leaves in order


@dataclass
class Member:
    """An incarnation that lives, as it described itself."""

    role: str
    index: int
    incarnation: str
    last_heard: float
    address: str = ""
    metrics_address: str = ""
    pid: int = 0
    host: str = ""
    version: int = 0
    state: str = "starting"
    scalars: dict[str, float] = field(default_factory=dict)

    def lasting(self) -> Member:
        """Return the member without what changes with each heartbeat."""
        return dataclasses.replace(self, last_heard=0.0, version=0, scalars={}, state="")


class Membership:
    """The members of a job.

    `lease_s`: a worker or teacher silent for longer is lost. Servers are lost only when they exit.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._members: dict[str, Member] = {}  # by incarnation
        self._places: dict[str, dict[int, Member]] = {role: {} for role in ROLES}
        self._lost: set[str] = set()
        # Of each that has a lease, when it was heard once; it may have been since. Looked at when
        # that is old.
        self._heard: list[tuple[float, str]] = []  # heap

    def register(self, member: Member) -> tuple[bool, list[Member]]:
        """Let a member in.

        Returns whether it is in, and who is lost by that. A repeat changes nothing.
        """
        if member.incarnation in self._lost:
            return False, []
        known = self._members.get(member.incarnation)
        if known is not None:
            known.last_heard = member.last_heard
            return True, []
        replaced = self.lose_index(member.role, member.index)
        self._put(member)
        return True, replaced

    def _put(self, member: Member) -> None:
        self._members[member.incarnation] = member
        self._places[member.role][member.index] = member
        if member.role != SERVER:
            heapq.heappush(self._heard, (member.last_heard, member.incarnation))

    def heard(
        self,
        incarnation: str,
        now: float,
        *,
        version: int | None = None,
        state: str = "",
        scalars: Mapping[str, float] | None = None,
    ) -> bool:
        """Note a sign of life. False: fenced."""
        member = self._members.get(incarnation)
        if member is None:
            return False
        member.last_heard = now
        member.version = max(member.version, version or 0)
        if member.state != DRAINING:  # a heartbeat that was overtaken takes nothing back
            member.state = state or member.state
        member.scalars.update(scalars or {})
        return True

    def lose(self, incarnation: str) -> Member | None:
        """Take out an incarnation for good, and return it; None where it was not there."""
        self._lost.add(incarnation)
        member = self._members.pop(incarnation, None)
        if member is not None:
            del self._places[member.role][member.index]
        return member

    def lose_index(self, role: str, index: int) -> list[Member]:
        """Take out whoever has this place, for good, and return who that was."""
        member = self._places[role].get(index)
        if member is None:
            return []
        self.lose(member.incarnation)
        return [member]

    def expire(self, now: float) -> list[Member]:
        """Take out workers and teachers that are silent for too long, and return them."""
        gone = []
        while self._heard and now - self._heard[0][0] > self._lease_s:
            _, incarnation = heapq.heappop(self._heard)
            member = self._members.get(incarnation)
            if member is None:
                continue
            if now - member.last_heard > self._lease_s:
                self.lose(incarnation)
                gone.append(member)
            else:
                heapq.heappush(self._heard, (member.last_heard, incarnation))
        return gone

    def next_expiry(self) -> float | None:
        """Return when `expire` may have somebody; it must be asked then to know more."""
        return self._heard[0][0] + self._lease_s if self._heard else None

    def hung_servers(self, now: float, patience_s: float) -> list[Member]:
        """Return the servers silent for longer than `patience_s`; named again after as long."""
        hung = [m for m in self._places[SERVER].values() if now - m.last_heard > patience_s]
        for member in hung:
            member.last_heard = now
        return hung

    def excuse(self, seconds: float) -> None:
        """Count nobody as silent for these seconds, in which the master heard nobody."""
        for member in self._members.values():
            member.last_heard += seconds

    @property
    def all(self) -> list[Member]:
        return list(self._members.values())

    @property
    def gone(self) -> list[str]:
        """The incarnations that are lost for good."""
        return sorted(self._lost)

    def restore(self, members: Iterable[Member], gone: Iterable[str]) -> None:
        """Become as the Membership whose `all` and `gone` these are."""
        self._lost = set(gone)
        self._members.clear()
        self._heard.clear()
        self._places = {role: {} for role in ROLES}
        for member in members:
            self._put(member)

    def get(self, incarnation: str) -> Member | None:
        return self._members.get(incarnation)

    def count(self, role: str) -> int:
        """Return how many there are of a role."""
        return len(self._places[role])

    def of(self, role: str) -> list[Member]:
        """Return the members of a role, by index."""
        return [member for _, member in sorted(self._places[role].items())]
