"""How many nodes of which kind and market would pay: by utility, deadline or budget. Pure.

Nodes here are those of workers. Servers and the master stay on on-demand nodes, which `Held.pinned`
counts. A node carries one unit of `Terms.speeds`: as many workers as fit on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .cluster import Resources
from .prices import ON_DEMAND, SPOT
from .spot import Choice, Forecast, Moment, Terms, choose

LOW, HIGH = 0.35, 0.65  # AdaptDL's band of utility
_HOUR_S = 3600.0
_BETTER = 0.9  # another kind is worth its changeover if it costs at most so much of this one


@dataclass(frozen=True)
class Held:
    """The nodes that there are, or that are on their way."""

    kind: str
    spot: int = 0
    working: int = 0  # of the spot nodes
    on_demand: int = 0
    pinned: int = 0  # of the on-demand nodes: they carry servers or a master

    @property
    def total(self) -> int:
        return self.spot + self.on_demand


@dataclass(frozen=True)
class Wanted:
    """The nodes that would pay, and why. Spot nodes are asked for also while there are none."""

    kind: str
    spot: int
    on_demand: int
    nodes: int  # that are to work at a time: spot and on-demand ones may stand in for each other
    why: str
    is_firm: bool = False  # weighed against its changeovers already: `Steady` lets it pass


@dataclass(frozen=True)
class Use:
    """A job's replicas: how many times faster they are than one, and what one asks for."""

    speedup: float
    request: Resources


def utility(uses: Iterable[Use], total: Resources) -> float:
    """Return the share of a cluster that its jobs turn into speed (AdaptDL's), 0-1.

    The busiest resource counts: the sum over jobs of (speedup / replicas) x (replicas x request),
    which is speedup x request, of what there is in all.
    """
    busy = Resources()
    for use in uses:
        busy += use.request * use.speedup
    return busy.share_of(total)


def by_utility(
    held: Held,
    utilities: Mapping[int, float],
    market: str = ON_DEMAND,
    low: float = LOW,
    high: float = HIGH,
) -> Wanted:
    """Return the nodes for a job, or a cluster, with neither deadline nor budget.

    `utilities`: of the best allocation on each number of nodes, the present one included. While
    that is within the band nothing changes; else the number whose utility is closest to the middle
    and not below the band, the larger one of two. More nodes come from `market`.
    """
    present, middle = utilities[held.total], (low + high) / 2
    enough = [nodes for nodes, value in utilities.items() if value >= low]
    if low <= present <= high or not enough:
        said = "is within" if enough else "is that of no number of nodes, so it stays: below"
        why = f"utility {present:.2f} {said} {low:g}-{high:g}"
        return Wanted(held.kind, held.spot, held.on_demand, held.total, why)
    best = min(enough, key=lambda nodes: (round(abs(utilities[nodes] - middle), 9), -nodes))
    more = best - held.total
    where = "below" if present < low else "above"
    why = (
        f"utility {present:.2f} is {where} {low:g}-{high:g}: "
        f"{best} nodes instead of {held.total} have {utilities[best]:.2f}"
    )
    if more > 0:
        spot = held.spot + (more if market == SPOT else 0)
        return Wanted(held.kind, spot, best - spot, best, why)
    dear = min(-more, max(held.on_demand - held.pinned, 0))  # those that cost more go first
    spot = max(held.spot - (-more - dear), 0)
    on_demand = held.on_demand - dear
    return Wanted(held.kind, spot, on_demand, spot + on_demand, why)


@dataclass(frozen=True)
class Offer:
    """A kind of node that can be had: prices and the job's speed on it, and its spot weather."""

    kind: str
    terms: Terms
    forecast: Forecast
    offered: int = 0  # spot nodes that there are now, those held included


def by_deadline(
    offers: Sequence[Offer], held: Held, left: float, time_left_s: float, margin: float = 0.02
) -> Wanted:
    """Return the nodes that end the job in time at the least cost, whatever the weather.

    `left`: records; `margin`: so many more of them are reckoned with, as speeds are predicted.
    See `spot.choose`. Raises ValueError without offers.
    """
    work = left * (1 + margin)
    offer = _cheapest(offers, held.kind, work, time_left_s)
    has = held if held.kind == offer.kind else Held(offer.kind)
    terms = offer.terms
    choice = choose(
        terms,
        offer.forecast,
        Moment(work, time_left_s, offer.offered, has.spot, has.working, has.on_demand),
    )
    waits = bool(choice.pays) and not bool(choice.is_last_call)
    spot = terms.most if waits else int(choice.spot)
    why = _why(choice, offer, time_left_s, float(terms.rising[-1] * time_left_s) < left)
    return Wanted(offer.kind, spot, int(choice.on_demand), terms.most, why, is_firm=True)


def _cheapest(offers: Sequence[Offer], present: str, work: float, time_left_s: float) -> Offer:
    """Return the offer that does it for the fewest $, or the fastest where none does in time."""
    dollars = {offer.kind: expected(offer, work, time_left_s) for offer in offers}
    best = min(offers, key=lambda o: (dollars[o.kind], -o.terms.rising[-1]))
    now = next((offer for offer in offers if offer.kind == present), best)
    stays = dollars[best.kind] > _BETTER * dollars[now.kind] and math.isfinite(dollars[now.kind])
    return now if stays else best


def expected(offer: Offer, work: float, time_left_s: float) -> float:
    """Return the $ that the rest of a job is expected to cost; inf: it would not end in time."""
    terms, top = offer.terms, float(offer.terms.rising[-1])
    if work > top * (time_left_s - terms.changeover_s):
        return math.inf
    hours = terms.most / top / _HOUR_S  # machine-hours a record
    ways = _ways(offer, terms.most)
    speed, each = ways.get("waits", (0.0, math.inf))
    on_spot = min(work, speed * time_left_s) if each < terms.on_demand * hours else 0.0
    return (on_spot * each if on_spot else 0.0) + (work - on_spot) * terms.on_demand * hours


def _ways(offer: Offer, nodes: int) -> dict[str, tuple[float, float]]:
    """Return the records/s and $ a record that each way to use so many nodes has."""
    terms, speed = offer.terms, float(offer.terms.speeds[nodes])
    hours = nodes / speed / _HOUR_S
    ways = {"on-demand": (speed, terms.on_demand * hours)}
    up, share = float(offer.forecast.spell_s), float(offer.forecast.availability)
    useful = (up - terms.changeover_s) / up if up else 0.0
    if useful > 0 and share > 0 and terms.spot < terms.on_demand:
        ways["waits"] = share * useful * speed, terms.spot / useful * hours
        mean = share * terms.spot + (1 - share) * terms.on_demand
        lost = share * terms.changeover_s / up  # a changeover at the end of each spell
        ways["both"] = (1 - lost) * speed, mean / (1 - lost) * hours
    return ways


def _why(choice: Choice, offer: Offer, time_left_s: float, is_late: bool) -> str:
    slack, reserve = float(choice.slack_s) / _HOUR_S, float(choice.reserve_s) / _HOUR_S
    if is_late:
        return "the deadline cannot be met, not even with all nodes: as fast as possible"
    if bool(choice.is_last_call):
        return f"{slack:.2f} h of slack are less than two changeovers: on-demand until the end"
    share = float(offer.forecast.availability)
    known = f"{time_left_s / _HOUR_S:.1f} h left, {slack:.1f} of them slack"
    if not bool(choice.pays):
        return f"{known}; spot does not pay: as many on-demand as end in time"
    if offer.offered:
        return f"{known}; spot while there is some, {int(choice.on_demand)} on-demand beside it"
    return (
        f"{known}, {reserve:.1f} kept for changeovers; no spot now, {share:.0%} of the time: "
        f"{int(choice.on_demand)} of {offer.terms.most} on-demand meanwhile"
    )


def by_budget(offers: Sequence[Offer], left: float, dollars: float) -> Wanted:
    """Return the nodes with which the job ends soonest for at most so many $, as expected.

    Where nothing is cheap enough: the cheapest. Raises ValueError without offers.
    """
    plans = [
        (speed, each * left, offer, nodes, way)
        for offer in offers
        for nodes in range(1, offer.terms.most + 1)
        for way, (speed, each) in _ways(offer, nodes).items()
        if offer.terms.speeds[nodes] > 0
    ]
    affordable = [plan for plan in plans if plan[1] <= dollars]
    if affordable:
        speed, cost, offer, nodes, way = max(affordable, key=lambda plan: (plan[0], -plan[1]))
        said = f"fits into ${dollars:,.2f}"
    else:
        speed, cost, offer, nodes, way = min(plans, key=lambda plan: (plan[1], -plan[0]))
        said = f"is the cheapest, and more than the ${dollars:,.2f} there are"
    spot = 0 if way == "on-demand" else nodes
    there = min(spot, offer.offered)
    on_demand = {"on-demand": nodes, "waits": 0, "both": nodes - there}[way]
    words = {
        "on-demand": "on-demand",
        "waits": "spot, waiting while there is none",
        "both": "spot, on-demand while there is none",
    }
    why = (
        f"{nodes} x {offer.kind} {words[way]}: ${cost:,.2f} expected for the rest "
        f"in {left / speed / _HOUR_S:.1f} h, which {said}"
    )
    return Wanted(offer.kind, spot, on_demand, nodes, why)


@dataclass(frozen=True)
class Steady:
    """A brake that keeps the number of nodes from flapping: it knows the last ask, and when.

    Fewer nodes must have been right for `freeze_s`, and so long there must have been no change; for
    so long after that there are no more, and another kind waits for it after any change. More after
    more come at once: a job is known better with each node.
    """

    asked: Wanted
    changed_at: float = -math.inf
    shrunk_at: float = -math.inf
    fewer_since: float | None = None
    freeze_s: float = 600.0

    def settle(self, wanted: Wanted, now: float) -> tuple[Wanted, Steady]:
        """Return what to ask for now, and what to remember."""
        asked = self.asked
        is_same = (wanted.kind, wanted.nodes) == (asked.kind, asked.nodes)
        if is_same or wanted.is_firm:
            changed_at = self.changed_at if is_same else now
            return wanted, replace(self, asked=wanted, changed_at=changed_at, fewer_since=None)
        is_fewer = wanted.nodes < asked.nodes and wanted.kind == asked.kind
        since = (now if self.fewer_since is None else self.fewer_since) if is_fewer else None
        is_more = wanted.nodes > asked.nodes and wanted.kind == asked.kind
        last = self.shrunk_at if is_more else self.changed_at
        begin = last if since is None else max(since, last)
        wait_s = begin + self.freeze_s - now
        if wait_s > 0:
            why = f"no change for {wait_s:.0f} s more ({asked.why}), then: {wanted.why}"
            return replace(asked, why=why), replace(self, fewer_since=since)
        shrunk_at = now if is_fewer else self.shrunk_at
        after = replace(self, asked=wanted, changed_at=now, shrunk_at=shrunk_at, fewer_since=None)
        return wanted, after
