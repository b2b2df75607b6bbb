"""The callers who wait for an answer of the master, by what they wait for. Pure.

Nobody is asked about in vain: who has just come is looked at once, those of a topic again when what
they wait for may have come, and each when its time is up. A thousand that wait cost nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass
class Parked:
    """A caller who waits until `deadline`: for what `answer` gives, or `otherwise` then."""

    answer: Callable[[], Any | None]
    otherwise: Callable[[], Any]
    deadline: float
    future: Future[Any]
    request: Hashable = None  # the same where one asks again; None: nobody does


class Parking:
    """The callers who wait, by topic. Topics are whatever the caller names them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[str, dict[int, Parked]] = {}  # in the order of their coming
        self._new: dict[str, dict[int, Parked]] = {}
        self._deadlines: list[tuple[float, int, str]] = []  # heap

    def park(self, topic: str, parked: Parked) -> None:
        number = next(self._numbers)
        self._new.setdefault(topic, {})[number] = parked
        heapq.heappush(self._deadlines, (parked.deadline, number, topic))

    def settle(
        self, topic: str, may_have_come: Callable[[], bool], ask: Callable[[Parked], bool]
    ) -> None:
        """Ask for answers to those who wait, oldest first, while they may come, and to new ones.

        `ask` says whether it has answered. A request that has come twice, whose first caller may be
        gone, is answered twice.
        """
        waiting, new = self._waiting.setdefault(topic, {}), self._new.pop(topic, {})
        answered: set[Hashable] = set()
        has_come = may_have_come()
        for number, parked in list(waiting.items()) if has_come else ():
            if (has_come or parked.request in answered) and ask(parked):
                del waiting[number]
                answered |= {parked.request} - {None}
                has_come = may_have_come()
        for number, parked in new.items():
            if not ask(parked):
                waiting[number] = parked

    def overdue(self, now: float) -> list[Parked]:
        """Return those whose time is up; they wait no more."""
        over = []
        while (soonest := self.next_deadline()) is not None and soonest <= now:
            _, number, topic = heapq.heappop(self._deadlines)
            over.append(self._waiting[topic].pop(number))
        return over

    def next_deadline(self) -> float | None:
        """Return the time at which somebody has waited for long enough; None where nobody waits."""
        while self._deadlines:
            deadline, number, topic = self._deadlines[0]
            if number in self._waiting.get(topic, ()):
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def take_all(self) -> list[Parked]:
        """Return all who wait; nobody waits any more."""
        places = [*self._waiting.values(), *self._new.values()]
        self._waiting, self._new, self._deadlines = {}, {}, []
        return [parked for place in places for parked in place.values()]
