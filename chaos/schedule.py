"""A reproducible schedule of which process gets which signal when, made of text. Pure.

`worker:every=20s`            exponential gaps with that mean, for ever
`ps:every=60s,count=3`        so many at most
`master:at=30s`, `worker:at=10s,20s`     at these moments
`ps:every=60s,signal=STOP,for=5s`        another signal; STOP is followed by CONT after `for`
`worker:at=5s,index=1`        this replica; without it the one that a drawn number picks
`worker`, `ps:index=1`        at once
"""

from __future__ import annotations

import heapq
import itertools
import random
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..common.errors import UsageError
from ..common.values import seconds

ROLES = ("worker", "ps", "master", "teacher")
SIGNALS = {
    "KILL": signal.SIGKILL,
    "STOP": signal.SIGSTOP,
    "TERM": signal.SIGTERM,
}
_STOP_S = 5.0  # how long a process sleeps where nothing is said


@dataclass(frozen=True, order=True)
class Injection:
    """One signal to one process. `draw`, in [0, 1), picks it where `index` is None."""

    at_s: float
    role: str
    draw: float
    number: signal.Signals
    for_s: float = 0.0  # of a STOP
    index: int | None = None

    def pick(self, indexes: Sequence[int]) -> int | None:
        """Return which of these replicas is hit; None where there is none to hit."""
        if self.index is not None:
            return self.index if self.index in indexes else None
        return sorted(indexes)[int(self.draw * len(indexes))] if indexes else None


@dataclass(frozen=True)
class Rule:
    """The rule of one --kill, --stop or --term."""

    role: str
    number: signal.Signals
    every_s: float = 0.0  # mean of the gaps
    at_s: tuple[float, ...] = ()
    count: int | None = None
    index: int | None = None
    for_s: float = 0.0

    def injections(self, random_: random.Random) -> Iterator[Injection]:
        """Yield the injections in order, for ever where nothing ends them."""
        moments = iter(sorted(self.at_s)) if self.at_s else self._gaps(random_)
        for at_s in itertools.islice(moments, self.count):
            yield Injection(at_s, self.role, random_.random(), self.number, self.for_s, self.index)

    def _gaps(self, random_: random.Random) -> Iterator[float]:
        now = 0.0
        while True:
            now += random_.expovariate(1.0 / self.every_s)
            yield now


def schedule(rules: Iterable[Rule], seed: int) -> Iterator[Injection]:
    """Yield what all rules say, in order of time. The same seed says the same."""
    each = (rule.injections(random.Random(f"{seed} {number}")) for number, rule in enumerate(rules))
    return heapq.merge(*each)


def parse(text: str, number: signal.Signals = signal.SIGKILL) -> Rule:
    """Read a rule as a user writes it; `number` unless it says signal=. Raises UsageError."""
    role, _, rest = text.partition(":")
    role = {"server": "ps"}.get(role, role)
    if role not in ROLES:
        raise _wrong(text, f"{role!r} is none of {', '.join(ROLES)}")
    told: dict[str, list[str]] = {}
    name = ""
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        name = key if equals else name
        if name not in ("every", "at", "count", "index", "signal", "for"):
            raise _wrong(text, f"there is no {key!r}")
        told.setdefault(name, []).append(value if equals else word)
    if "every" in told and "at" in told:
        raise _wrong(text, "say either every= or at=")
    if more := [key for key, values in told.items() if len(values) > 1 and key != "at"]:
        raise _wrong(text, f"{more[0]}= has one value")
    one = {key: values[0] for key, values in told.items()}
    if "signal" in one:
        name = one["signal"].upper().removeprefix("SIG")
        if name not in SIGNALS:
            raise _wrong(text, f"signal= is one of {', '.join(SIGNALS)}")
        number = SIGNALS[name]
    if "for" in one and number != signal.SIGSTOP:
        raise _wrong(text, "for= is how long a stopped process sleeps: it goes with STOP")
    sleep_s = _seconds(one.get("for", f"{_STOP_S}s"), text)
    every_s = _seconds(one["every"], text) if "every" in one else 0.0
    moments = told.get("at", () if "every" in one else ("0s",))
    if "every" in one and not every_s:
        raise _wrong(text, "every= must be more than 0")
    return Rule(
        role,
        number,
        every_s=every_s,
        at_s=tuple(_seconds(value, text) for value in moments),
        count=_whole(one["count"], text) if "count" in one else None,
        index=_whole(one["index"], text) if "index" in one else None,
        for_s=sleep_s if number == signal.SIGSTOP else 0.0,
    )


def _seconds(text: str, whole: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise _wrong(whole, str(error)) from error


def _whole(text: str, whole: str) -> int:
    if not text.isdecimal():
        raise _wrong(whole, f"{text!r} is no whole number")
    return int(text)


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(
        f"{text!r} is no fault: {why}. Write worker:every=20s, ps:at=10s,20s or "
        "master:every=60s,count=3,signal=STOP,for=5s."
    )
