"""The shapes that a job may be given on these nodes, what each takes, and how fast it is. Pure.

A job without servers gets powers of two of workers up to what a node has room for, then whole nodes
(the configurations of Sia, SOSP '23): these fit together on nodes without leaving gaps. A job with
servers gets pairs of workers and servers, of which only those are kept that no other pair beats
with as little. Its own minimum and maximum, and what it has, are always among them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..common.errors import UsageError
from .cluster import OTHERS, Node, Resources
from .jobs import Job, Shape
from .knapsack import Floats, Integers

RESOURCES = ("cpu", "memory", "gpu", "pods", *(f"other {n}" for n in range(OTHERS)))  # columns
_NO_OTHERS = (0.0,) * OTHERS
_ROUNDING = 1e-9  # errors of floats: three thirds of a core fit into one
_PAIRS = 30  # of workers and servers, at most
_ALL_WORKERS = 8  # up to so many every number is tried with servers; then each a quarter larger
_ALL_NODES = 64  # up to so many whole nodes every number is tried; then each by one in so many
_LEAST_WORTH = 0.01  # of a change, whatever its price: a job that has nothing to keep moves on


def amounts(resources: Resources) -> Floats:
    """Return the amounts in the order of RESOURCES."""
    r = resources
    return np.array((r.cpu, r.memory, r.gpu, r.pods, *(r.others + _NO_OTHERS)[:OTHERS]), float)


def rooms(free: Floats, pod: Resources) -> Integers:
    """Return how many such pods each node has room for, by what is free [nodes, RESOURCES]."""
    needs = amounts(pod)
    asked = needs > 0
    if not asked.any():
        return np.full(len(free), np.iinfo(np.int32).max, np.int64)
    shares = np.maximum(free[:, asked], 0.0) / needs[asked]
    return np.asarray(np.floor(shares.min(axis=1) + _ROUNDING).astype(np.int64))


class Kind:
    """Nodes that are alike, and how many workers of some size they have room for."""

    def __init__(self, name: str, nodes: Sequence[Node]) -> None:
        """Take the nodes of the kind: at least one."""
        self.name = name
        self.nodes = nodes
        self._rooms: dict[Resources, tuple[int, int]] = {}

    def rooms(self, pod: Resources) -> tuple[int, int]:
        """Return how many such pods fit on the node with most room, and on all nodes."""
        if pod not in self._rooms:
            counts = rooms(np.array([amounts(node.free) for node in self.nodes]), pod)
            self._rooms[pod] = int(counts.max()), int(counts.sum())
        return self._rooms[pod]


def kinds_of(nodes: Sequence[Node]) -> list[Kind]:
    """Return the kinds of nodes, in order of their names."""
    names = sorted({node.kind for node in nodes})
    return [Kind(name, [node for node in nodes if node.kind == name]) for name in names]


@dataclass(frozen=True, eq=False)
class Options:
    """The shapes that a job may be given, from nothing to the most, and what they mean."""

    job: Job
    shapes: Sequence[Shape]  # the first is that of nothing
    speeds: Floats  # [options], records/s
    takes: Floats  # [options, RESOURCES]
    kept: int | None  # the option that is what the job has

    def only(self, which: NDArray[np.bool_]) -> Options:
        """Return these options alone; the first must be among them."""
        places = np.flatnonzero(which).tolist()
        kept = self.kept if self.kept is not None and which[self.kept] else None
        return Options(
            self.job,
            [self.shapes[i] for i in places],
            self.speeds[places],
            self.takes[places],
            None if kept is None else int(np.searchsorted(places, kept)),
        )


def keeps(job: Job, shape: Shape) -> bool:
    """Tell whether the job has this shape already, as far as it is known where."""
    held = job.held
    if (held.workers, held.servers) != (shape.workers, shape.servers):
        return False
    known_kind = held.kind in ("", shape.kind)
    return known_kind and (shape.servers > 0 or held.nodes in (0, shape.nodes))


def check(job: Job) -> None:
    """Raise UsageError, with a sentence that names the field, for a job that makes no sense."""
    wrong = None
    asked = (*amounts(job.worker), *amounts(job.server))
    costs = (job.resize_s, job.servers_resize_s or 0.0)
    if job.minimum < 1:
        wrong = f"its minimum is {job.minimum}: a job needs at least 1 worker"
    elif job.maximum < job.minimum:
        wrong = (
            f"its minimum of {_workers(job.minimum)} is above its maximum of {job.maximum}: "
            f"give a maximum of at least {job.minimum}"
        )
    elif not all(0 <= each < math.inf for each in asked):
        wrong = "what a worker or a server asks for is no number of at least 0"
    elif replace(job.worker, pods=0.0) == Resources():
        wrong = "its workers ask for no CPU, memory or GPU: say how much one needs"
    elif not job.servers or min(job.servers) < 0:
        wrong = f"its numbers of servers are {list(job.servers)}: give some of at least 0"
    elif bad := [cost_s for cost_s in costs if not 0 <= cost_s < math.inf]:
        wrong = f"a change of its shape costs {bad[0]} s: give a time of at least 0 s"
    elif job.left is not None and not 0 <= job.left < math.inf:
        wrong = f"it has {job.left} records left: give a number of at least 0, or none"
    elif job.deadline is not None and math.isnan(job.deadline):
        wrong = "its deadline is no time"
    if wrong:
        raise UsageError(wrong)


def options(job: Job, kinds: Sequence[Kind]) -> Options:
    """Return the shapes that the job may be given on empty nodes of these kinds.

    Raises UsageError for a job that makes no sense, and for predictions that are none.
    """
    check(job)
    shapes, held = [Shape()], job.held
    stays = bool(held.workers) and not job.may_move and any(k.name == held.kind for k in kinds)
    for kind in kinds:
        if stays and kind.name != held.kind:
            continue
        per_node, total = kind.rooms(job.worker)
        bounds = (job.minimum, min(job.maximum, total), per_node, kind.name)
        if job.servers == (0,):
            shapes += _sizes(*bounds)
        else:
            shapes += _pairs(*bounds, job.servers)
    if (
        job.minimum <= held.workers <= job.maximum
        and held.servers in job.servers
        and held.kind in {kind.name for kind in kinds}
        and not any(keeps(job, shape) for shape in shapes)
    ):
        shapes.append(held)
    speeds = predict(job, shapes)
    moves = (speeds > 0) | (np.arange(len(shapes)) == 0)
    shapes, speeds = [shapes[i] for i in np.flatnonzero(moves)], speeds[moves]
    takes = np.outer([shape.workers for shape in shapes], amounts(job.worker))
    takes += np.outer([shape.servers for shape in shapes], amounts(job.server))
    takes[1:] += amounts(job.master)
    order = np.lexsort(([shape.nodes for shape in shapes], *takes.T[::-1]))
    if job.servers != (0,):
        ordered = [shapes[i] for i in order]
        order = order[_undominated(job, ordered, speeds[order], takes[order])]
    shapes = [shapes[i] for i in order]
    kept = next((i for i, shape in enumerate(shapes) if i and keeps(job, shape)), None)
    return Options(job, shapes, speeds[order], takes[order], kept)


def worth_of_change(options: Options, now: float) -> Floats:
    """Return, for each option, the share of its speed that is left once the change is paid for.

    1 for what the job has, and for all if it has nothing. Without knowledge of the end, as Pollux
    (OSDI '21, section 4.2.1): (age - resizes * cost) / (age + cost). Who knows what is left weighs
    the cost against the time until the end, and also looks at what changes have taken so far.
    """
    job = options.job
    worth = np.ones(len(options.shapes))
    costs = np.array([job.price_s(shape) for shape in options.shapes])
    if not job.held.workers or not costs.any():
        return worth
    age = max(now - job.submitted, 0.0)
    spent = job.resizes * job.resize_s
    if job.left is None:
        worth[:] = (age - spent) / np.maximum(age + costs, 1e-9)
    else:
        with np.errstate(divide="ignore"):
            until = np.where(options.speeds > 0, job.left / options.speeds, np.inf)
        worth = 1 / (1 + costs / np.maximum(until, 1e-9))
        worth *= 1 - spent / np.maximum(age + costs, 1e-9)
    worth = np.maximum(worth, _LEAST_WORTH)
    if options.kept is not None:
        worth[options.kept] = 1.0
    return worth


@functools.lru_cache(4096)
def _sizes(minimum: int, most: int, per_node: int, kind: str) -> tuple[Shape, ...]:
    """Return the shapes of a job without servers."""
    if minimum > most:
        return ()
    counts = {minimum, most, *(1 << i for i in range(per_node.bit_length()))}
    nodes = 1
    while nodes * per_node < most:
        counts.add(nodes * per_node)
        nodes += max(1, nodes // _ALL_NODES)
    return tuple(
        Shape(workers, 0, -(-workers // per_node), kind)
        for workers in sorted(counts)
        if minimum <= workers <= most
    )


@functools.lru_cache(4096)
def _pairs(
    minimum: int, most: int, per_node: int, kind: str, servers: tuple[int, ...]
) -> tuple[Shape, ...]:
    """Return the shapes of a job with servers."""
    if minimum > most:
        return ()
    counts = {most}
    workers = minimum
    while workers < most:
        counts.add(workers)
        workers += 1 if workers < _ALL_WORKERS else workers // 4
    return tuple(
        Shape(workers, each, -(-workers // per_node), kind)
        for workers in sorted(counts)
        for each in sorted(set(servers))
    )


def predict(job: Job, shapes: Sequence[Shape]) -> Floats:
    """Return the speeds in these shapes, of which the first is that of nothing.

    Raises UsageError for what is no speed.
    """
    try:
        speeds = np.array([0.0, *map(job.speed, shapes[1:])], float)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"its speed cannot be predicted: {error}") from error
    if not (np.isfinite(speeds) & (speeds >= 0)).all():
        i = int(np.flatnonzero(~(np.isfinite(speeds) & (speeds >= 0)))[0])
        raise UsageError(
            f"its predicted speed with {words(shapes[i])} is {speeds[i]}: "
            "a speed is a number of at least 0"
        )
    if len(speeds) > 1 and not speeds.any():
        raise UsageError("its predicted speed is 0 with whatever it may be given")
    return speeds


def _undominated(
    job: Job, shapes: Sequence[Shape], speeds: Floats, takes: Floats
) -> NDArray[np.bool_]:
    """Tell of each option whether none before it, with as little, is as fast; what is held stays.

    The options stand in the order of what they take.
    """
    kinds = np.array([shape.kind for shape in shapes])
    beats = np.triu(speeds[:, None] >= speeds, 1) & (kinds[:, None] == kinds)
    beats &= (takes[:, None] <= takes).all(axis=2)
    always = np.array([i < 2 or keeps(job, shape) for i, shape in enumerate(shapes)])
    kept = np.flatnonzero(always | ~beats[1:].any(axis=0))  # nothing beats nobody
    if len(kept) > _PAIRS:
        kept = kept[np.linspace(0, len(kept) - 1, _PAIRS - always.sum()).round().astype(int)]
    result = always.copy()
    result[kept] = True
    return result


def words(shape: Shape) -> str:
    """Return the shape in words."""
    if shape.servers:
        return f"{_workers(shape.workers)} and {shape.servers} server{'s' * (shape.servers > 1)}"
    return _workers(shape.workers)


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"
