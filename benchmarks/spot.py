"""The cost of a job with a deadline on spot machines: our rule beside Uniform Progress (NSDI '24).

A job of 48 hours, on weather with the availabilities that its authors published, in their world:
one machine, which makes no progress for a changeover after each start. Then ours in its own: eight
machines of an eighth each, of which those that work go on meanwhile, and the changeover of edl.

    python -m benchmarks.spot [--seeds N] [--bathtub]     from the repository root
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edl.scheduler.simulator.weather import AVAILABILITIES, Weather
from edl.scheduler.spot import Forecast, Moment, Terms, choose

HOUR_S = 3600.0
TICK_S = 60.0
WORK_H = 48.0
DEADLINES_H = (52.0, 70.0)
CHANGEOVERS_H = (0.05, 0.20)
OURS_S = 1.0  # a worker of edl joins in so long
ON_DEMAND, SPOT = 3.06, 0.97  # $/h
PARTS = 8
SEED = 1126  # the rule was made on others

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Policy(Protocol):
    """Chooses how many spot and on-demand workers each of many runs should have now."""

    def __call__(self, now: Moment) -> tuple[Ints, Ints]: ...


@dataclass(frozen=True)
class Played:
    """The outcome of the runs: $, whether the deadline was missed, machines that were started."""

    cost: Floats
    is_missed: Bools
    starts: Ints


class Fleet:
    """The machines of many runs, on one market."""

    def __init__(self, runs: int, changeover_s: float) -> None:
        self.working = np.zeros(runs, int)
        # by the ticks until they work
        self._coming = np.zeros((int(changeover_s // TICK_S) + 1, runs), int)
        self.starts = np.zeros(runs, int)

    @property
    def held(self) -> Ints:
        return np.asarray(self.working + self._coming.sum(axis=0))

    def become(self, wanted: Ints) -> None:
        """Start machines, or give some back: those that came last first."""
        change = wanted - self.held
        more, less = np.maximum(change, 0), np.maximum(-change, 0)
        self.starts += more
        self._coming[-1] += more
        if less.any():
            for some in (*self._coming[::-1], self.working):
                gone = np.minimum(less, some)
                some -= gone
                less -= gone

    def pass_tick(self) -> tuple[Ints, Ints]:
        """Return how many work from the tick's begin, and from the end of their changeover."""
        before, ready = self.working, self._coming[0]
        self.working = before + ready
        self._coming = np.concatenate([self._coming[1:], np.zeros_like(self._coming[:1])])
        return before, self.working


def play(
    policy: Policy, up: Bools | Floats, terms: Terms, deadline_s: float, records: float
) -> Played:
    """Play runs of a job, a column of `up` each: the shares of spot machines there are by tick."""
    speeds, most, runs = np.asarray(terms.speeds), terms.most, up.shape[1]
    spot, on_demand = Fleet(runs, terms.changeover_s), Fleet(runs, terms.changeover_s)
    left, cost = np.full(runs, float(records)), np.zeros(runs)
    within_s = terms.changeover_s % TICK_S
    for tick in range(round(deadline_s / TICK_S)):
        offered = np.rint(up[tick] * most).astype(int)
        spot.become(np.minimum(spot.held, offered))  # preempted
        time_left_s = deadline_s - tick * TICK_S
        wants = policy(Moment(left, time_left_s, offered, spot.held, spot.working, on_demand.held))
        is_on = left > 0
        for fleet, wanted in zip((spot, on_demand), wants, strict=True):
            fleet.become(np.where(is_on, wanted, 0))
        a_tick = spot.held * terms.spot + on_demand.held * terms.on_demand
        early, late = np.add(spot.pass_tick(), on_demand.pass_tick())
        done = speeds[np.minimum(early, most)] * within_s
        done += speeds[np.minimum(late, most)] * (TICK_S - within_s)
        used_s = np.where(done > left, left / np.maximum(done, 1e-12), 1.0) * TICK_S
        cost += a_tick * used_s / HOUR_S
        left = np.where(left - done < records * 1e-9, 0, left - done)
    return Played(cost, left > 0, spot.starts + on_demand.starts)


class Ours:
    """The product's rule, with what it has seen of the weather so far."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._forecast = Forecast()
        self._was_up: Bools | None = None

    def __call__(self, now: Moment) -> tuple[Ints, Ints]:
        is_up = np.asarray(now.offered) > 0
        has_ended = np.zeros_like(is_up) if self._was_up is None else self._was_up & ~is_up
        self._forecast = self._forecast.after(TICK_S, is_up, has_ended)
        self._was_up = is_up
        choice = choose(self._terms, self._forecast, now)
        return choice.spot, choice.on_demand


class UniformProgress:
    """The four rules as published, for one machine; the safety net looks a tick ahead."""

    def __init__(self, terms: Terms, deadline_s: float, records: float) -> None:
        self._changeover_s = terms.changeover_s
        self._deadline_s, self._records, self._speed = deadline_s, records, terms.speeds[1]
        self._to_the_end: Bools | None = None

    def __call__(self, now: Moment) -> tuple[Ints, Ints]:
        done, two = self._records - np.asarray(now.left), 2 * self._changeover_s
        is_up, is_spot = np.asarray(now.offered) > 0, np.asarray(now.spot) > 0
        is_on_demand = np.asarray(now.on_demand) > 0
        needs_s = np.asarray(now.left) / self._speed + two + TICK_S
        last_call = ~is_spot & ~is_on_demand & (np.asarray(now.time_left_s) < needs_s)
        self._to_the_end = last_call | (False if self._to_the_end is None else self._to_the_end)
        stays = is_on_demand & (done < self._expected(now, two))
        takes = ~self._to_the_end & ~stays & is_up
        falls_back = self._to_the_end | stays | (done < self._expected(now, 0))
        return takes * 1, (falls_back & ~takes) * 1

    def _expected(self, now: Moment, later_s: float) -> Floats:
        passed_s = self._deadline_s - np.asarray(now.time_left_s) + later_s
        return np.asarray(passed_s * self._records / self._deadline_s)


class Greedy(UniformProgress):
    """Spot machines or nothing, until the safety net."""

    def _expected(self, now: Moment, later_s: float) -> Floats:
        del now, later_s
        return np.asarray(-1.0)


def omniscient(up: Bools, deadline_s: float) -> Floats:
    """Return a limit, $: all time with spot machines before the deadline, changeovers free."""
    spot_h = np.minimum(up[: round(deadline_s / TICK_S)].sum(axis=0) * TICK_S / HOUR_S, WORK_H)
    return np.asarray(spot_h * SPOT + (WORK_H - spot_h) * ON_DEMAND)


def one(changeover_s: float, parts: int = 1) -> Terms:
    """Return the published world's terms, or those of a job of so many parts, which go on."""
    speeds = tuple(WORK_H * k / parts for k in range(parts + 1))
    prices = ON_DEMAND / parts, SPOT / parts
    return Terms(*prices, speeds, changeover_s, stops_all=parts == 1, look_s=TICK_S)


RECORDS = WORK_H * WORK_H * HOUR_S


def skies(seeds: int, is_bathtub: bool) -> Bools:
    """Return the weather of all zones: (ticks, zones x seeds)."""
    ticks = round(max(DEADLINES_H) * HOUR_S / TICK_S)
    found = [
        Weather(share, is_bathtub=is_bathtub).ticks(
            np.random.default_rng([SEED, zone, seed]), ticks, TICK_S
        )
        for zone, share in enumerate(AVAILABILITIES)
        for seed in range(seeds)
    ]
    return np.stack(found, axis=1)


def spot(up: Bools) -> str:
    """Make Markdown tables: costs as shares of all on-demand's, ours as shares of the other's."""
    lines = [_row("deadline, changeover, policy", *map(_percent, AVAILABILITIES), "mean", "missed")]
    lines.append("|---" * (len(AVAILABILITIES) + 3) + "|")
    ratios: dict[str, list[Floats]] = {}
    for hours in DEADLINES_H:
        deadline_s = hours * HOUR_S
        for changeover_h in (*CHANGEOVERS_H, OURS_S / HOUR_S):
            for name, (shares, missed) in _case(up, deadline_s, changeover_h * HOUR_S).items():
                case = f"{hours:g} h, {changeover_h * HOUR_S:g} s, {name}"
                lines.append(_row(case, *_figures(shares), missed))
                ratios.setdefault(f"{name}, {changeover_h * HOUR_S:g} s", []).append(shares)
    return "\n".join([*lines, "", *_beside(ratios)])


def _case(up: Bools, deadline_s: float, changeover_s: float) -> dict[str, tuple[Floats, str]]:
    single, parts = one(changeover_s), one(changeover_s, PARTS)
    policies: dict[str, tuple[Policy, Terms]] = {
        "greedy": (Greedy(single, deadline_s, RECORDS), single),
        "Uniform Progress": (UniformProgress(single, deadline_s, RECORDS), single),
        "ours": (Ours(single), single),
        f"ours, {PARTS} parts": (Ours(parts), parts),
    }
    on_demand = ON_DEMAND * (WORK_H + changeover_s / HOUR_S)
    found = {}
    for name, (policy, terms) in policies.items():
        played = play(policy, up, terms, deadline_s, RECORDS)
        found[name] = _by_zone(played.cost) / on_demand, f"{played.is_missed.sum():,}"
    found["omniscient"] = _by_zone(omniscient(up, deadline_s)) / on_demand, "-"
    return found


def _beside(found: dict[str, list[Floats]]) -> list[str]:
    """Return ours beside Uniform Progress, with the same changeover and with edl's own."""
    published = [f"{hours * HOUR_S:g} s" for hours in CHANGEOVERS_H]
    own = f"{OURS_S:g} s"
    lines = [_row("of Uniform Progress' cost", "mean", "least", "most"), "|---|---|---|---|"]
    for name in ("ours", f"ours, {PARTS} parts"):
        for said, ours in (("same changeover", None), (f"{own} against 180 and 720", own)):
            shares = np.concatenate(
                [
                    np.array(found[f"{name}, {ours or theirs}"])
                    / np.array(found[f"Uniform Progress, {theirs}"])
                    for theirs in published
                ]
            )
            lines.append(
                _row(
                    f"{name}, {said}",
                    *_figures([shares.mean(), shares.min(), shares.max()], mean=False),
                )
            )
    return lines


def _by_zone(values: Floats) -> Floats:
    return np.asarray(values.reshape(len(AVAILABILITIES), -1).mean(axis=1))


def _figures(values: Sequence[float] | Floats, mean: bool = True) -> list[str]:
    figures = [*values, np.mean(values)] if mean else list(values)
    return [f"{value:.3f}" for value in figures]


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--bathtub", action="store_true")
    given = parser.parse_args()
    began = time.process_time()
    print(spot(skies(given.seeds, given.bathtub)))
    print(f"\n{time.process_time() - began:.0f} s of CPU time")
