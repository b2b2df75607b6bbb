"""The teachers that have registered, by name, each until its time to live is over. Pure.

A roll is told the time with each event, and at least every TICK_S. Where it was not for longer than
ASLEEP_S, its process stood still: nobody was heard meanwhile, and that time counts for nobody. A
name's list has a version, which no other list of this registry, nor of the one before it, has had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..common.teacher_address import served_at, why_no_name

LEAST_TTL_S, MOST_TTL_S = 1.0, 3600.0
TICK_S, ASLEEP_S = 0.25, 2.0
MOST_TEACHERS = 5_000  # of a registry: what it holds is bounded, whoever asks
EPOCH_BITS = 31  # of a registry's number, above the 32 of a version
_MOST_TEXT = 256  # characters of an address, a fingerprint, an incarnation


@dataclass(frozen=True)
class Entry:
    """A teacher, as it says itself. `incarnation`: of its process."""

    address: str
    fingerprint: str
    incarnation: str
    ttl_s: float


def why_no_ttl(ttl_s: float) -> str:
    """Return what is wrong with a time to live; "": nothing."""
    if LEAST_TTL_S <= ttl_s <= MOST_TTL_S:
        return ""
    return f"is no time to live: seconds from {LEAST_TTL_S:g} to {MOST_TTL_S:g}"


class Roll:
    """The teachers of a registry. `epoch`: its number, of EPOCH_BITS, which no other one has."""

    def __init__(self, epoch: int) -> None:
        self._names: dict[str, dict[str, Entry]] = {}  # by address; no name is empty
        self._until: dict[tuple[str, str], float] = {}
        self._versions: dict[str, int] = {}
        self._none = self._newest = epoch << 32
        self._soonest = math.inf  # nobody goes before
        self._told_at: float | None = None
        self.changes = 0  # of all lists

    def register(self, name: str, entry: Entry, now: float) -> str:
        """Have a teacher on the list for its time to live. Return why not; "": it is there."""
        self.pass_time(now)
        if why := _unfit(name, entry):
            return why
        there = self._names.get(name, {})
        mine = there.get(entry.address)
        if mine is not None and mine.incarnation != entry.incarnation:
            self._remove(name, entry.address)  # another process listens there by now
            mine = None
        others = {each.fingerprint for at, each in there.items() if at != entry.address}
        if others - {entry.fingerprint}:
            return (
                f"the teachers of {name!r} are others than this one: their fingerprint is "
                f"{others.pop()}, and its own {entry.fingerprint}. Give it another --name, or stop "
                "those first"
            )
        if mine is None and len(self._until) >= MOST_TEACHERS:
            return f"the registry has {MOST_TEACHERS} teachers, and no room for more"
        self._names.setdefault(name, {})[entry.address] = entry
        self._until[name, entry.address] = until = now + entry.ttl_s
        self._soonest = min(self._soonest, until)
        if mine != entry:
            self._changed(name)
        return ""

    def leave(self, name: str, address: str, incarnation: str) -> None:
        """Take a teacher from the list, if it is that process that stands there."""
        entry = self._names.get(name, {}).get(address)
        if entry is not None and entry.incarnation == incarnation:
            self._remove(name, address)

    def pass_time(self, now: float) -> None:
        """Let those go whose time is over."""
        slept_s = now - (now if self._told_at is None else self._told_at)
        self._told_at = now
        if slept_s > ASLEEP_S:
            self._until = {key: until + slept_s for key, until in self._until.items()}
            self._soonest += slept_s
        if now < self._soonest:
            return
        for name, address in [key for key, until in self._until.items() if until <= now]:
            self._remove(name, address)
        self._soonest = min(self._until.values(), default=math.inf)

    def listed(self, name: str) -> tuple[int, list[Entry]]:
        """Return the version of a name's list, and who is on it, in the order of their coming."""
        return self._versions.get(name, self._none), [*self._names.get(name, {}).values()]

    @property
    def names(self) -> list[str]:
        """The names under which somebody teaches."""
        return sorted(self._names)

    def _remove(self, name: str, address: str) -> None:
        del self._names[name][address], self._until[name, address]
        if self._names[name]:
            self._changed(name)
        else:  # nothing is held of a name that nobody has
            del self._names[name], self._versions[name]
            self.changes += 1

    def _changed(self, name: str) -> None:
        self._newest, self.changes = self._newest + 1, self.changes + 1
        self._versions[name] = self._newest


def _unfit(name: str, entry: Entry) -> str:
    """Return what is wrong with what a teacher says; "": nothing."""
    if why := why_no_name(name):
        return f"{name[:_MOST_TEXT]!r} {why}"
    if why := why_no_ttl(entry.ttl_s):
        return f"{entry.ttl_s:g} {why}"
    texts = entry.address, entry.fingerprint, entry.incarnation
    if not all(0 < len(text) <= _MOST_TEXT for text in texts):
        return f"address, fingerprint and incarnation have 1 to {_MOST_TEXT} characters"
    try:
        foreign = served_at(entry.address) is not None
    except ValueError as error:
        return f"the address {entry.address!r} {error}"
    return f"the address {entry.address!r} is no HOST:PORT" if foreign else ""


def epoch_of(version: int) -> int:
    """Return the number of the registry whose list has this version."""
    return version >> 32


class Known:
    """The list of a name as one student knows it, over registries that begin anew.

    A registry that was started again knows nobody at first, and each teacher again before its time
    to live is over. For so long whoever was known before is known beside its list.
    """

    def __init__(self) -> None:
        self.version = 0
        self._listed: dict[str, float] = {}  # time to live by address
        self._kept: dict[str, tuple[float, float]] = {}  # until when, and time to live

    def heard(self, version: int, teachers: Mapping[str, float], now: float) -> None:
        """Hear a registry's list: the time to live of each address."""
        if epoch_of(version) != epoch_of(self.version):
            before = {address: ttl_s for address, (_, ttl_s) in self._kept.items()} | self._listed
            self._kept = {address: (now + ttl_s, ttl_s) for address, ttl_s in before.items()}
        self.version, self._listed = version, dict(teachers)
        self._kept = {
            address: (until, ttl_s)
            for address, (until, ttl_s) in self._kept.items()
            if until > now and address not in teachers
        }

    @property
    def addresses(self) -> list[str]:
        """Whom to ask."""
        return [*self._listed, *self._kept]

    @property
    def until(self) -> float:
        """The time at which the registry is to be heard again; inf: at its next change."""
        return min((until for until, _ in self._kept.values()), default=math.inf)
