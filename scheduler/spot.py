"""Spot machines and a deadline: how many workers on which market now, at the least cost. Pure.

Uniform Progress ("Can't Be Late", NSDI '24) keeps to the line from start to deadline with one
machine that is on or off. Here the time that can be lost until the deadline, the slack, is spent
where it saves most. Three ways to pass a spell with spot machines and one without:

- wait: nobody works while there are none, which costs the most slack;
- return: on-demand machines take over while there are none, which costs two changeovers;
- stay: on-demand machines all the time, which costs no slack and the most money.

If returning beats a mixture of the other two, slack for the changeovers of all spells to come is
kept, and only what is above it is waited away, by as many on-demand workers fewer than all. If not,
all slack is for waiting. What must hold whatever the weather (Uniform Progress' rule 4): with less
slack than two changeovers, on-demand until the end.

All numbers but those of `Terms` may be arrays, of many jobs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

_HOUR_S = 3600.0
_MEMORY_S = 48 * _HOUR_S  # what was seen so long ago counts a third
_RESERVE = 1.6  # of the changeovers that are expected: those that come are more or fewer
_MOST_SHARE = 0.999  # of the time in which spot machines are there: no weather is sure

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """The spells with and without spot machines to expect, as those of the past were.

    Older ones count less and less. It begins as if six hours had been seen already: a guess, on the
    side of many changeovers, since slack that was kept can still be waited away later.
    """

    up_s: ArrayLike = 0.6 * 6 * _HOUR_S
    seen_s: ArrayLike = 6 * _HOUR_S
    ends: ArrayLike = 0.6 * 6  # of spells with spot machines: one an hour of them

    def after(self, seconds: float, is_up: ArrayLike, has_ended: ArrayLike) -> Forecast:
        """Return the forecast once the weather has been seen for so long more.

        `is_up`: whether there were spot machines; `has_ended`: whether they went just then.
        """
        kept = np.exp(-seconds / _MEMORY_S)
        return Forecast(
            np.asarray(self.up_s) * kept + np.asarray(is_up) * seconds,
            np.asarray(self.seen_s) * kept + seconds,
            np.asarray(self.ends) * kept + np.asarray(has_ended),
        )

    @property
    def availability(self) -> Floats:
        """The share of the time with spot machines, 0-1."""
        return np.minimum(np.asarray(self.up_s) / self.seen_s, _MOST_SHARE)

    @property
    def spell_s(self) -> Floats:
        """The mean length of a spell with spot machines, s."""
        return np.asarray(self.up_s) / np.maximum(self.ends, 1e-9)


@dataclass(frozen=True)
class Terms:
    """What does not change while a job runs: prices, speeds, and what a changeover takes."""

    on_demand: float  # $/h of a worker
    spot: float
    speeds: tuple[float, ...]  # records/s of 0, 1, 2, ... workers, up to the most there may be
    changeover_s: float  # from the begin of a machine's time until its worker is of use
    stops_all: bool = False  # nobody works meanwhile: else those that are there go on
    look_s: float = 60.0  # from one question to the next

    def __post_init__(self) -> None:
        if not max(self.speeds, default=0.0) > 0:
            raise ValueError("a job is faster than 0 with some number of workers")

    @cached_property
    def most(self) -> int:
        """The workers beyond which the job gets no faster."""
        return int(np.argmax(self.speeds))

    @cached_property
    def guard_s(self) -> float:
        """The slack below which on-demand machines must work until the end, s."""
        return 2 * self.changeover_s + self.look_s

    @cached_property
    def rising(self) -> Floats:
        """The speeds, where one worker more never makes it slower."""
        return np.maximum.accumulate(np.asarray(self.speeds[: self.most + 1], float))


@dataclass(frozen=True)
class Moment:
    """Where a job stands, and what it has."""

    left: ArrayLike  # records
    time_left_s: ArrayLike  # until the deadline
    offered: ArrayLike  # spot workers that it could have now, those that it has included
    spot: ArrayLike = 0  # those that it has
    working: ArrayLike = 0  # of these: the others are on their way
    on_demand: ArrayLike = 0  # workers that it has on on-demand machines


@dataclass(frozen=True)
class Choice:
    """The workers that a job should have now on each market, and the figures that say why."""

    spot: NDArray[np.int64]
    on_demand: NDArray[np.int64]
    slack_s: Floats  # what may be lost until the deadline if on-demand machines do the rest
    reserve_s: Floats  # what of it is kept for changeovers
    is_last_call: NDArray[np.bool_]  # less slack than two changeovers
    pays: NDArray[np.bool_]  # whether a spell with spot machines is worth its changeovers


@dataclass(frozen=True)
class _Cycle:
    """A spell with spot machines and one without, as they are to be expected."""

    share: Floats  # of the time in which spot workers are of use
    changeovers_a_s: Floats  # slack that returning costs, s/s
    pays: NDArray[np.bool_]
    returns: NDArray[np.bool_]  # whether returning beats a mixture of waiting and staying


def _cycle(terms: Terms, forecast: Forecast) -> _Cycle:
    up = forecast.spell_s
    down = up * (1 - forecast.availability) / np.maximum(forecast.availability, 1e-9)
    both = up + down
    lost = terms.changeover_s * (2 if terms.stops_all else 1)
    twice_paid = 0 if terms.stops_all else terms.changeover_s  # they work until spot ones do
    wait, wait_cost = np.maximum(up - terms.changeover_s, 0) / both, terms.spot * up / both
    back = (both - lost) / both
    back_cost = (terms.spot * up + terms.on_demand * (down + twice_paid)) / both
    return _Cycle(
        share=wait,
        changeovers_a_s=lost / both,
        pays=np.asarray(wait_cost < terms.on_demand * wait),
        returns=(back_cost - wait_cost) * (1 - wait)
        < (terms.on_demand - wait_cost) * (back - wait),
    )


def choose(terms: Terms, forecast: Forecast, now: Moment) -> Choice:
    """Return the workers to have now.

    A job that can end in time on on-demand machines alone, their changeover included, when it is
    asked about first, and is asked about every `look_s`, ends in time: if on-demand machines can be
    had at any time, and it is as fast as `speeds` says.
    """
    most, top = terms.most, terms.rising[-1]
    left, time_left = np.asarray(now.left, float), np.asarray(now.time_left_s, float)
    offered, spot, held = np.minimum(now.offered, most), np.asarray(now.spot), now.on_demand
    cycle = _cycle(terms, forecast)
    slack = time_left - left / top
    reserve = np.where(cycle.returns & cycle.pays, _RESERVE * cycle.changeovers_a_s * time_left, 0)

    last_call = slack < terms.guard_s
    # on-demand workers while there are no spot ones: so many that all is done just in time, or,
    # as all slack is for waiting, nobody; with only the reserve left, all
    share = np.where(cycle.pays, cycle.share, 0)
    speed = (left / np.maximum(time_left - reserve, 1) - share * top) / (1 - share)
    fewest = cycle.returns * _rounded_down(terms, speed)
    needed = np.where(cycle.pays, fewest, np.searchsorted(terms.rising, speed))
    waits_until = np.maximum(terms.guard_s, reserve + terms.changeover_s + terms.look_s)
    needed = np.where(slack < waits_until + terms.look_s, most, needed)
    # those at work go on until there is spot: to start them again costs a changeover
    fits = np.where(needed + 1 == held, held, needed)
    needed = np.where(cycle.pays, np.maximum(needed, held), fits)

    may_leave = cycle.returns | (slack > reserve + terms.guard_s)
    takes = cycle.pays & ~last_call & (may_leave | (np.asarray(held) == 0) | (not terms.stops_all))
    wanted = np.where(takes, offered, np.minimum(spot, offered))
    coming = np.asarray(now.working) < wanted
    bridge = np.where(coming & (not terms.stops_all), held, 0)
    on_demand = np.maximum(np.minimum(needed, most - wanted), bridge)
    return Choice(
        spot=wanted,
        on_demand=np.minimum(on_demand, most - np.minimum(now.working, wanted)),
        slack_s=slack,
        reserve_s=reserve,
        is_last_call=np.asarray(last_call),
        pays=cycle.pays,
    )


def _rounded_down(terms: Terms, speed: Floats) -> NDArray[np.int64]:
    """Return the fewest workers of those that are at most so fast."""
    known = np.searchsorted(terms.rising, speed, side="right") - 1
    return np.asarray(np.searchsorted(terms.rising, terms.rising[np.maximum(known, 0)]))
