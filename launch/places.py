"""The places for node agents that a coordinator keeps: which should run, against which do. Pure.

How an agent ended decides what follows. One that was told to go is gone for good; one that
something outside has ended (a signal, a deleted pod) is replaced at once, however often; one that
ended otherwise before it was in a round has failed, and is replaced after a growing pause, up to a
limit. Where agents are not replaced (those of a machine of one's own, which are lost with it), a
place whose agent has ended is empty until somebody asks for more. Scaling down takes those first
that have no agent, then those whose agents are in no round yet, then the highest indexes.

What is kept are `places` and `wanted` of nodes.State.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from ..common.retry import Backoff
from .nodes import Place, State
from .status import TOLD_TO_GO

_BACKOFF = Backoff(1.0, 30.0)  # guesses
_SHORT_LIFE_S = 2.0  # who is ended sooner is not started again without a pause
# How an agent ends that was told to go by somebody else, or was killed. In a cluster an exit code
# above 128 is told as a signal.
_FROM_OUTSIDE = (0, *TOLD_TO_GO, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL)


class Places:
    """The places of a job, in its state.

    `replaces`: an agent that has ended is replaced. `relaunches`: failures in a row that are tried
    again. `name()` makes a fresh incarnation's name.
    """

    def __init__(
        self, state: State, *, replaces: bool, relaunches: int, name: Callable[[], str]
    ) -> None:
        self._state = state
        self._replaces = replaces
        self._relaunches = relaunches
        self._name = name

    def scale(self, number: int) -> int:
        """Want so many agents; return how many were wanted before."""
        state = self._state
        before, state.wanted = state.wanted, number
        staying = [place for place in state.places if not place.leaving]
        for place in sorted(staying, key=self._cost_of_going, reverse=True)[number:]:
            place.leaving = True
        taken = {place.index for place in state.places}
        free = (index for index in range(number + len(taken)) if index not in taken)
        missing = number - len(staying)
        state.places += [Place(index) for index, _ in zip(free, range(missing), strict=False)]
        state.places = [place for place in state.places if place.incarnation or not place.leaving]
        state.places.sort(key=lambda place: place.index)
        return before

    def starts(self, now: float) -> list[Place]:
        """Return the places whose agent is to start now; each has its incarnation by now."""
        due = [place for place in self._empty() if place.not_before <= now]
        for place in due:
            place.incarnation, place.began, place.waits = self._name(), now, ""
            place.pid = place.started = 0
        return due

    def next_start(self) -> float | None:
        """Return when `starts` has something to say again; None: not before something happens."""
        return min((place.not_before for place in self._empty()), default=None)

    def leaving(self) -> list[Place]:
        """Return the places whose agent is to go."""
        return [place for place in self._state.places if place.leaving and place.incarnation]

    def running(self) -> list[Place]:
        """Return the places that have an agent, or are about to."""
        return [place for place in self._state.places if place.incarnation]

    def of(self, incarnation: str) -> Place | None:
        """Return the place of an agent, None where it is of none (any more)."""
        found = (place for place in self._state.places if place.incarnation == incarnation)
        return next(found, None) if incarnation else None

    def worked(self, incarnation: str) -> None:
        """Note that an agent has been in a round."""
        if (place := self.of(incarnation)) is not None:
            place.failures = 0

    def exited(self, incarnation: str, code: int, how: str, now: float) -> str:
        """Note that an agent has ended; return why the job fails by it, "" where it does not."""
        place = self.of(incarnation)
        if place is None:
            return ""
        place.incarnation, place.pid, place.started, place.end = "", 0, 0, how
        if place.leaving or not self._replaces:
            self._state.places.remove(place)
            if not place.leaving:
                self._state.wanted -= 1
            return ""
        place.not_before = now
        if code in _FROM_OUTSIDE:
            if now - place.began < _SHORT_LIFE_S:
                place.not_before = now + _BACKOFF.first_s
            return ""
        place.failures += 1
        place.not_before = now + _BACKOFF.after(place.failures)
        if place.failures <= self._relaunches:
            return ""
        return (
            f"the agent of node {place.index} {how}, {place.failures} times in a row before it had "
            "done anything"
        )

    def _cost_of_going(self, place: Place) -> tuple[bool, bool, int]:
        """Return what a job loses by it: all that its workers know, a start, nothing."""
        name = place.incarnation
        return bool(name) and self._state.is_member(name), bool(name), -place.index

    def _empty(self) -> list[Place]:
        return [p for p in self._state.places if not p.incarnation and not p.leaving]
