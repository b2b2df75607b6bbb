"""The jobs that are to be scheduled, and what each may be given. Pure.

Times are seconds, on one clock. Goodput is useful records a second: the records of a batch count
for what they are worth beside those of a batch of the initial size (edl.goodput).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .cluster import OTHERS, Resources


@dataclass(frozen=True, order=True)
class Shape:
    """An allocation: so many workers, on so many nodes at least, and so many servers.

    The shape of nothing is `Shape()`.
    """

    workers: int = 0
    servers: int = 0
    nodes: int = 0
    kind: str = ""  # of the nodes


Speed = Callable[[Shape], float]


@dataclass(frozen=True)
class Job:
    """A job as the scheduler sees it.

    `speed(shape)` predicts the goodput, 0 for the shape of nothing. `left`: records until the end
    (None: nobody knows), in those of the initial batch size.
    """

    name: str
    speed: Speed = field(compare=False)
    worker: Resources
    submitted: float  # s
    namespace: str = "default"
    user: str = ""
    priority: int = 0  # those of a higher one come first
    minimum: int = 1  # workers without which it gets nothing (a gang)
    maximum: int = 1
    server: Resources = field(default_factory=Resources)
    master: Resources = field(default_factory=Resources)  # that must still be put onto a node
    servers: tuple[int, ...] = (0,)  # the numbers of servers that it may have
    left: float | None = None
    deadline: float | None = None  # s
    budget: float | None = None  # $ that what is left may cost
    held: Shape = field(default_factory=Shape)  # what it has now
    resize_s: float = 30.0  # that a change of its shape costs, as measured
    servers_resize_s: float | None = None  # where servers change too; None: as much
    resizes: int = 0
    served_s: float = 0.0  # resource-seconds that it has had, in workers
    waits_since: float | None = None  # s; when it last had nothing, None while it has something
    is_pinned: bool = False  # keeps what it has: it starts, ends, or may not be changed
    is_nearly_done: bool = False
    may_be_suspended: bool = True  # while it runs; else it keeps its minimum
    is_preemptible: bool = True  # else it keeps what it has, or gets more
    may_move: bool = True  # else the pods that it keeps stay on their nodes
    # Where what it has is; empty: nobody knows, and it may be put anywhere.
    workers_on: dict[str, int] = field(default_factory=dict, hash=False)
    servers_on: dict[str, int] = field(default_factory=dict, hash=False)

    def takes(self, shape: Shape) -> Resources:
        """Return what its workers and servers take in this shape."""
        return self.worker * shape.workers + self.server * shape.servers

    def firm(self) -> Job:
        """Return the job with what it has as the least that it may have, if nobody preempts it."""
        has = self.held
        if self.is_preemptible or not has.workers:
            return self
        return replace(
            self,
            minimum=max(self.minimum, min(has.workers, self.maximum)),
            servers=tuple(n for n in self.servers if n >= has.servers) or self.servers,
            may_be_suspended=False,
        )

    def lacks(self, shape: Shape) -> bool:
        """Tell whether a shape takes something from it that nobody may preempt."""
        firm = self.firm()
        least = min(firm.minimum, self.held.workers), min(min(firm.servers), self.held.servers)
        is_less = shape.workers < least[0] or shape.servers < least[1]
        return not self.is_preemptible and is_less

    def price_s(self, shape: Shape) -> float:
        """Return what a change to this shape costs, s, where it is not the one that it has."""
        others = self.held.workers and shape.servers != self.held.servers
        servers_s = self.servers_resize_s
        return servers_s if others and servers_s is not None else self.resize_s


@dataclass(frozen=True)
class Quota:
    """The most that the jobs of a namespace or of a user may have together.

    `priority`: the highest of theirs that counts.
    """

    namespace: str | None = None  # None: any
    user: str | None = None
    most: Resources = field(default_factory=Resources)  # 0 of a resource: none of it
    priority: int | None = None  # None: any

    @property
    def bounds(self) -> Resources:
        """Return `most`, without a limit of what no quota counts: pods, and other resources."""
        return replace(self.most, pods=math.inf, others=(math.inf,) * OTHERS)

    def covers(self, namespace: str, user: str) -> bool:
        """Tell whether it is about a user's jobs in a namespace."""
        return self.namespace in (None, namespace) and self.user in (None, user)


def ceiling(quotas: Iterable[Quota], namespace: str, user: str) -> Quota | None:
    """Return the quota whose priority is the highest that counts for a user's jobs; None: any."""
    found = [each for each in quotas if each.priority is not None and each.covers(namespace, user)]
    return min(found, key=lambda each: each.priority or 0, default=None)


@dataclass(frozen=True)
class Given:
    """The share of a job: its shape, the workers (and servers) on each node, and why, in words."""

    shape: Shape
    why: str
    workers_on: dict[str, int] = field(default_factory=dict)
    servers_on: dict[str, int] = field(default_factory=dict)


Plan = dict[str, Given]  # by job's name: of every job, also of those that get nothing
