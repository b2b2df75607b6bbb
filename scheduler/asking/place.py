"""A place whose nodes come and go: it looks, acts, and then asks for the nodes that would pay.

It stands between the service and the place of the jobs. Nodes that are to go, or have a notice, are
not planned on, so that workers leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...common.errors import PeerError, UsageError
from ...k8s import nodes as told
from ...k8s.api import Api, Object
from ..autoscaler import Autoscaler
from ..cluster import Node
from ..jobs import Given, Job, Plan
from ..nodes import Wanted
from ..place import Place, Seen, Tell
from ..prices import ON_DEMAND, SPOT
from .asker import Asker
from .fleet import Fleet, Wish, fleet_of

_BOOTS = 3  # of a node, that jobs without one wait for it before they are suspended


class Growing:
    """A place with an autoscaler beside it."""

    def __init__(
        self,
        place: Place,
        nodes: Callable[[], Iterable[Object]],
        api: Api,
        scaler: Autoscaler,
        asker: Asker,
        clock: Callable[[], float],
    ) -> None:
        """Take the parts. `nodes`: of the whole cluster; `clock`: seconds since the epoch."""
        self._place = place
        self._nodes = nodes
        self._api = api
        self._scaler = scaler
        self._scaler.takes = asker.takes
        self._asker = asker
        self._clock = clock
        self._whole: list[Node] = []
        self._fleet = Fleet({}, {}, {})
        self._wanted: Wanted | None = None
        self._asked = ""
        self._bare: dict[str, float] = {}  # jobs without a node, since when
        self._noted: dict[str, dict[str, tuple[str, str]]] = {}

    def look(self) -> Seen:
        """Return the jobs, and the nodes that are to stay."""
        seen = self._place.look()
        self._fleet = fleet_of(self._scaler.pool, self._nodes())
        self._whole = [
            replace(node, free=node.free.less(self._asker.takes))
            if node.name in self._fleet.markets
            else node
            for node in seen.nodes
            if node.name not in self._fleet.notices
        ]
        going = self._going(seen.jobs)
        return replace(seen, nodes=[node for node in self._whole if node.name not in going])

    def act(self, plan: Plan, seen: Seen, tell: Tell) -> None:
        """Act on the jobs, then ask for nodes; what fails is told, and tried again next time."""
        now = self._clock()
        self._place.act(self._patient(plan, seen, now), seen, tell)
        wanted = self._scaler.wanted(seen.jobs, self._whole, self._fleet, now)
        on_demand = wanted.on_demand
        wish = Wish({SPOT: wanted.spot, ON_DEMAND: on_demand}, self._fleet, _busy(seen.jobs))
        try:
            asked = self._asker.ask(self._scaler.pool, wish, now)
            self._note(seen.jobs)
        except (PeerError, UsageError) as error:
            asked = f"cannot ask: {error}"
        is_new = self._wanted is None or _numbers(self._wanted) != _numbers(wanted)
        if is_new:
            tell(
                f"nodes: {self._fleet.count(SPOT)} spot and {self._fleet.count(ON_DEMAND)} "
                f"on-demand -> {wanted.spot} and {on_demand}: {wanted.why}"
            )
        if asked != self._asked and (is_new or asked.startswith("cannot")):
            tell(f"nodes: {asked}")
        self._wanted, self._asked = wanted, asked

    def keep(self, plan: dict[str, Any], tell: Tell) -> None:
        """Keep the plan, and with it what is asked for and why."""
        self._place.keep({**plan, **self.told()}, tell)

    def told(self) -> dict[str, Any]:
        """Return what is asked for and why, as the plan that is kept has it."""
        wanted = self._wanted
        if wanted is None:
            return {}
        return {
            "nodes": {
                "here": {market: self._fleet.count(market) for market in (ON_DEMAND, SPOT)},
                "wanted": {ON_DEMAND: wanted.on_demand, SPOT: wanted.spot},
                "why": wanted.why,
                "asked": self._asked,
                "notices": dict(self._fleet.notices),
            }
        }

    def _patient(self, plan: Plan, seen: Seen, now: float) -> Plan:
        """Return the plan without the end of jobs all of whose nodes were taken, while others come.

        Their masters and servers go on meanwhile: nothing is begun anew.
        """
        here = {node.name for node in seen.nodes}
        bare = {
            job.name: Given(job.held, "waits for nodes that are to come")
            for job in seen.jobs
            if job.held.workers and not plan[job.name].shape.workers
            if not here & job.workers_on.keys()
        }
        self._bare = {name: self._bare.get(name, now) for name in bare}
        patience_s = _BOOTS * self._scaler.rules.boot_s
        return {**plan, **{n: g for n, g in bare.items() if now - self._bare[n] <= patience_s}}

    def _going(self, jobs: Sequence[Job]) -> set[str]:
        """Return the nodes to be emptied: those with the least on them, and no servers, first."""
        if self._wanted is None:
            return set()
        busy = dict.fromkeys(self._fleet.markets, 0)
        for job in jobs:
            for name, count in job.workers_on.items():
                busy[name] = busy.get(name, 0) + count
        servers = {name for job in jobs for name in job.servers_on}
        going: set[str] = set()
        for market, wanted in ((SPOT, self._wanted.spot), (ON_DEMAND, self._wanted.on_demand)):
            mine = [name for name, each in self._fleet.markets.items() if each == market]
            mine.sort(key=lambda name: (name in servers, busy[name], name))
            going |= set(mine[: max(0, len(mine) - wanted)])
        return going - servers

    def _note(self, jobs: Sequence[Job]) -> None:
        """Write at each EdlJob the kinds of its nodes: `edl cost` asks when they are gone."""
        for job in jobs:
            before = self._noted.get(job.name, {})
            on = {*job.workers_on, *job.servers_on} & self._fleet.kinds.keys()
            kinds = {**before, **{name: self._fleet.kinds[name] for name in on}}
            if kinds == before:
                continue
            namespace, _, name = job.name.rpartition("/")
            api = self._api.inside(namespace) if namespace else self._api
            found = api.get("EdlJob", name)
            if found is None:
                continue
            known = told.read_noted((found["metadata"].get("annotations") or {}).get(told.NOTED))
            kinds = {**known, **kinds}
            if kinds != known:
                change = {"metadata": {"annotations": {told.NOTED: told.noted(kinds)}}}
                api.patch("EdlJob", name, change)
            self._noted[job.name] = kinds


def _numbers(wanted: Wanted) -> tuple[int, int]:
    return wanted.spot, wanted.on_demand


def _busy(jobs: Sequence[Job]) -> frozenset[str]:
    return frozenset(name for job in jobs for name in (*job.workers_on, *job.servers_on))
