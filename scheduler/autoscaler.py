"""The number of nodes of a pool that would pay for all jobs together, and why. Pure.

Jobs with a deadline are given what ends them in time at the least cost, jobs with a budget what
ends them soonest for it (nodes.py); the others have as many nodes as keep the utility of the best
plan within its band. What is found is braked (`nodes.Steady`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..common.errors import UsageError
from .asking.fleet import Fleet, Pool
from .cluster import Node, Resources
from .jobs import Job, Plan, Shape
from .nodes import (
    HIGH,
    LOW,
    Held,
    Offer,
    Steady,
    Use,
    Wanted,
    by_budget,
    by_deadline,
    by_utility,
    utility,
)
from .policy import Policy
from .prices import ON_DEMAND, SPOT, Price
from .speed import unknown_speed
from .spot import Forecast, Terms

_NEW = "edl-new-"  # names of nodes that are thought of


@dataclass(frozen=True)
class Rules:
    """The rules beside jobs and nodes. `boot_s`: from the ask for a node until it is of use."""

    price: Price | None = None  # of a node; None: deadlines and budgets cannot be held
    low: float = LOW
    high: float = HIGH
    freeze_s: float = 600.0
    boot_s: float = 120.0


@dataclass
class Autoscaler:
    """The numbers of nodes that would pay, one question after the other.

    It remembers the last answer and the weather of spot nodes, and may be made anew at any time.
    """

    pool: Pool
    policy: Policy
    rules: Rules
    takes: Resources = field(default_factory=Resources)  # of a new node, by whoever asks for it
    _steady: Steady | None = None
    _forecast: Forecast = field(default_factory=Forecast)
    _looked: float | None = None
    _spot: int = 0  # nodes that there were at the last look

    def __post_init__(self) -> None:
        """Raise UsageError where a number makes no sense."""
        pool, rules = self.pool, self.rules
        if not 0 <= pool.least <= pool.most:
            raise UsageError(f"at least {pool.least} nodes and at most {pool.most}: swap them?")
        if not 0 <= rules.low < rules.high <= 1:
            raise UsageError(f"a band of utility from {rules.low:g} to {rules.high:g} is none.")

    def wanted(
        self, jobs: Sequence[Job], nodes: Sequence[Node], fleet: Fleet, now: float
    ) -> Wanted:
        """Return the nodes to ask for now. `nodes`: what jobs of ours may have of each."""
        self._see(fleet, now)
        held = self._held(jobs, fleet, fleet.markets)
        if self._steady is None:
            there = Wanted("", held.spot, held.on_demand, held.total, "they are there")
            self._steady = Steady(there, freeze_s=self.rules.freeze_s)
        found = self._within(self._found(jobs, nodes, fleet, held, now))
        asked, self._steady = self._steady.settle(found, now)
        return asked

    def _see(self, fleet: Fleet, now: float) -> None:
        spot = fleet.count(SPOT)
        if self._looked is not None:
            passed, went = now - self._looked, bool(self._spot) and not spot
            self._forecast = self._forecast.after(passed, self._spot > 0, went)
        self._looked, self._spot = now, spot

    def _held(self, jobs: Sequence[Job], fleet: Fleet, names: Mapping[str, object]) -> Held:
        mine = {name: fleet.markets[name] for name in names if name in fleet.markets}
        spot = sum(market == SPOT for market in mine.values())
        servers = {name for job in jobs for name in job.servers_on}
        pinned = sum(name in servers and market != SPOT for name, market in mine.items())
        return Held("", spot, spot, len(mine) - spot, pinned)

    def _found(
        self, jobs: Sequence[Job], nodes: Sequence[Node], fleet: Fleet, held: Held, now: float
    ) -> Wanted:
        if not jobs:
            return Wanted("", 0, 0, 0, "there are no jobs")
        mine: list[Wanted] = []
        rest: list[Job] = []
        for job in jobs:
            one = self._alone(job, fleet, now)
            if one is None:
                rest.append(job)
            else:
                mine.append(replace(one, why=f"{job.name}: {one.why}"))
        spot, on_demand = sum(one.spot for one in mine), sum(one.on_demand for one in mine)
        if rest:
            left = replace(
                held,
                spot=max(0, held.spot - spot),
                working=max(0, held.working - spot),
                on_demand=max(0, held.on_demand - on_demand),
            )
            mine.append(self._together(rest, nodes, fleet, left))
        return Wanted(
            "",
            sum(one.spot for one in mine),
            sum(one.on_demand for one in mine),
            sum(one.nodes for one in mine),
            "; ".join(one.why for one in mine),
            is_firm=any(one.is_firm for one in mine),
        )

    def _within(self, found: Wanted) -> Wanted:
        """Return what is wanted within the pool's bounds: the dear nodes are cut first."""
        spot = min(found.spot, self.pool.most)
        on_demand = min(found.on_demand, self.pool.most - spot)
        lacks = max(0, self.pool.least - spot - on_demand)
        why = found.why
        if (spot, on_demand + lacks) != (found.spot, found.on_demand):
            why += f"; the pool has {self.pool.least} to {self.pool.most} nodes"
        total = min(max(found.nodes, self.pool.least), self.pool.most)
        return replace(found, spot=spot, on_demand=on_demand + lacks, nodes=total, why=why)

    # -- one job

    def _alone(self, job: Job, fleet: Fleet, now: float) -> Wanted | None:
        """Return the nodes of a job with a deadline or a budget; None: it has neither."""
        price = self.rules.price
        is_known = job.left is not None and job.speed is not unknown_speed
        if price is None or not is_known or (job.deadline is None and job.budget is None):
            return None
        left, offer = job.left or 0.0, self._offer(job, price, fleet)
        if offer is None:
            return None
        if job.deadline is not None:
            held = self._held([job], fleet, job.workers_on)
            return by_deadline([offer], held, left, max(job.deadline - now, 1.0))
        return by_budget([offer], left, job.budget or 0.0)

    def _offer(self, job: Job, price: Price, fleet: Fleet) -> Offer | None:
        node = self.pool.node.less(self.takes)
        each = int(1 / (job.worker.share_of(node) or 1.0) + 1e-9)  # workers on a node
        servers = job.held.servers or job.servers[0]
        speeds = [0.0]
        for nodes in range(1, self.pool.most + 1):
            workers = min(each * nodes, job.maximum)
            enough = workers >= job.minimum
            speeds.append(job.speed(Shape(workers, servers, nodes)) if enough else 0.0)
        if not max(speeds) > 0:
            return None
        spot = price.on_demand if price.spot is None else price.spot
        terms = Terms(price.on_demand, spot, tuple(speeds), self.rules.boot_s)
        return Offer("", terms, self._forecast, fleet.count(SPOT))

    # -- all the others

    def _together(
        self, jobs: Sequence[Job], nodes: Sequence[Node], fleet: Fleet, held: Held
    ) -> Wanted:
        others = [node for node in nodes if node.name not in fleet.markets]
        kinds = [node.kind for node in nodes if node.name in fleet.markets]
        kind = max(sorted(kinds), key=kinds.count, default=_NEW)  # one that bars nobody
        here = [node for node in nodes if node.name in fleet.markets]
        known = [_believed(job) for job in jobs]
        utilities: dict[int, float] = {}

        def found(count: int) -> float:
            if count not in utilities:
                names = [f"{_NEW}{i}" for i in range(count - len(here))]
                new = [Node(name, self.pool.node.less(self.takes), kind) for name in names]
                utilities[count] = self._utility(known, [*others, *here[:count], *new])
            return utilities[count]

        low, high = max(1, self.pool.least), max(1, self.pool.most)
        middle = (self.rules.low + self.rules.high) / 2
        present = held.total
        if present:
            found(present)
        while low < high:  # more nodes have no more utility
            count = (low + high) // 2
            if found(count) > middle:
                low = count + 1
            else:
                high = count
        found(low)
        found(max(1, self.pool.least, low - 1))
        price = self.rules.price
        is_cheap = price is not None and price.spot is not None and price.spot < price.on_demand
        market = SPOT if is_cheap and self.pool.spot is not None else ON_DEMAND
        if present:
            return by_utility(held, utilities, market, self.rules.low, self.rules.high)
        best = min(utilities, key=lambda count: (abs(utilities[count] - middle), -count))
        spot = best if market == SPOT else 0
        return Wanted("", spot, best - spot, best, f"there are jobs, and no node: {best} would do")

    def _utility(self, jobs: Sequence[Job], nodes: Sequence[Node]) -> float:
        if not nodes:
            return 0.0
        plan: Plan = self.policy.plan(jobs, nodes, 0.0)
        uses = [use for job in jobs if (use := _use(job, plan[job.name].shape)) is not None]
        return utility(uses, sum((node.free for node in nodes), Resources()))


def _believed(job: Job) -> Job:
    """Return the job as it is planned for: more workers than were ever seen only where known."""
    if job.speed is unknown_speed:
        job = replace(job, maximum=max(job.minimum, job.held.workers))
    return replace(job, is_nearly_done=False, may_move=True, workers_on={}, servers_on={})


def _use(job: Job, shape: Shape) -> Use | None:
    one = job.speed(Shape(1, shape.servers, 1))
    if not shape.workers or not one:
        return None
    return Use(job.speed(shape) / one, job.takes(shape) * (1 / shape.workers))
