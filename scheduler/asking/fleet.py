"""The pool of nodes that may come and go, those of it that there are, and the wish for more. Pure.

A node counts while it is ready, may be scheduled on, and has no notice that it will be taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...k8s import nodes as told
from ...k8s.api import Object
from ..cluster import Resources
from ..prices import ON_DEMAND, SPOT


@dataclass(frozen=True)
class Pool:
    """A pool of nodes that are alike, but for their market.

    `node` is what a new one has for pods. `labels` are on each of its nodes; `spot`: those of its
    spot nodes have this label besides ("": it has one market only).
    """

    node: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    spot: tuple[str, str] | None = None
    least: int = 0
    most: int = 10


@dataclass(frozen=True)
class Fleet:
    """The nodes of a pool that there are, by name and market."""

    markets: Mapping[str, str]
    kinds: Mapping[str, tuple[str, str]]  # kind and market of all nodes that were seen
    notices: Mapping[str, str]  # the taint, by node that will be taken soon

    def count(self, market: str) -> int:
        return sum(each == market for each in self.markets.values())


@dataclass(frozen=True)
class Wish:
    """The numbers of nodes to ask for, by market, and what there is."""

    nodes: Mapping[str, int]
    fleet: Fleet
    busy: frozenset[str] = frozenset()  # nodes with pods of jobs

    def missing(self, market: str) -> int:
        """Return how many nodes are to come; below 0: to go."""
        return self.nodes.get(market, 0) - self.fleet.count(market)


def fleet_of(pool: Pool, nodes: Iterable[Object]) -> Fleet:
    """Return what there is of a pool, out of all nodes of a cluster."""
    markets, kinds, notices = {}, {}, {}
    for node in nodes:
        name = node["metadata"]["name"]
        kinds[name] = told.kind_of(node)
        if notice := told.notice_of(node):
            notices[name] = notice
        elif told.is_ready(node) and _is_of(pool, node):
            markets[name] = _market(pool, node, kinds[name][1])
    return Fleet(markets, kinds, notices)


def _is_of(pool: Pool, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in pool.labels.items())


def _market(pool: Pool, node: Object, said: str) -> str:
    if pool.spot is None:
        return said
    labels = node["metadata"].get("labels") or {}
    return SPOT if labels.get(pool.spot[0]) == pool.spot[1] else ON_DEMAND
