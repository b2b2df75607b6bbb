"""Workers and servers put onto nodes, one job after the other. Pure.

A job is put onto as few nodes as it fits on, of these onto those where it is already, then onto
those where others that are not yet put have least, then where least stays free. Two jobs without
servers of which each spans several nodes share none (interference; Pollux, OSDI '21, section
4.2.1). Where the pods of a job do not move, only those that come are put anywhere, each where most
is free, as kube-scheduler does. A job for which there is no place so has one searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .cluster import Node, Resources
from .jobs import Job, Shape
from .knapsack import Floats, Integers
from .options import RESOURCES, amounts, rooms

_MOST_STEPS = 4_000  # nodes times servers: a tenth of a second or two


@dataclass(frozen=True)
class Placed:
    """How many workers and servers of a job are on each node, by the nodes' names."""

    workers_on: dict[str, int] = field(default_factory=dict)
    servers_on: dict[str, int] = field(default_factory=dict)


class Placement:
    """What is free on each node while jobs are put there."""

    def __init__(self, nodes: Sequence[Node], jobs: Iterable[Job], fixed: Iterable[Job]) -> None:
        """Take the nodes, all jobs with where they are now, and those that stay there.

        Of what a job has, that which is not known to be anywhere takes no room.
        """
        self._names = [node.name for node in nodes]
        self._index = {name: i for i, name in enumerate(self._names)}
        self._kinds = np.array([node.kind for node in nodes])
        self._free: Floats = np.array([amounts(node.free) for node in nodes]).reshape(
            -1, len(RESOURCES)
        )
        self._full = np.maximum(self._free.max(axis=0, initial=0.0), 1.0)
        self._spanned = np.zeros(len(nodes), bool)  # by a job without servers
        self._others = np.zeros(len(nodes), np.int64)  # pods of jobs that are not yet put
        fixed = list(fixed)
        stays = {job.name for job in fixed}
        self._held = np.zeros_like(self._free)  # by workers that stay, but may be fewer
        for job in jobs:
            self._others += self._pods(job)
            if not job.may_move and job.name not in stays:
                self._held += self._amounts(self._counts(job.workers_on), job.worker)
                self._free -= self._own(job)
        for job in fixed:
            self._take(job, job.held, self._counts(job.workers_on), self._counts(job.servers_on))

    def free(self, kind: str) -> Floats:
        """Return what is free on the nodes of a kind, or held by workers, [nodes, RESOURCES]."""
        free: Floats = np.maximum((self._free + self._held)[self._kinds == kind], 0.0)
        return free

    def stay(self, job: Job) -> tuple[Shape, Placed]:
        """Return the least that a job whose pods do not move keeps, though not all have a node."""
        workers, servers = self._counts(job.workers_on), self._counts(job.servers_on)
        return replace(job.held, workers=min(job.minimum, job.held.workers)), Placed(
            self._named(_first_of(workers, job.minimum)), self._named(servers)
        )

    def leave(self, job: Job) -> None:
        """Give up the places that the job has now: it is given nothing."""
        self._others -= self._pods(job)
        if not job.may_move:
            self._free += self._own(job)

    def count(self, pod: Resources) -> int:
        """Return how many such pods still fit onto the nodes."""
        return int(self._rooms(pod, None).sum())

    def put(self, job: Job, shape: Shape, spread: bool = False) -> Placed | None:
        """Put the job onto nodes; None, and nothing is changed, where there is no room.

        With `spread` a job without servers may lie on more nodes than the shape says.
        """
        found = self.find(job, shape, spread)
        if found is None:
            return None
        if not job.may_move:
            self._free += self._own(job)
        self._take(job, shape, *found)
        workers, servers = found
        return Placed(self._named(workers), self._named(servers))

    def find(
        self, job: Job, shape: Shape, spread: bool = False
    ) -> tuple[Integers, Integers] | None:
        """Return how many workers and servers `put` would put on each node."""
        own_workers, own_servers = self._counts(job.workers_on), self._counts(job.servers_on)
        if not job.may_move:
            return self._beside(job, shape, own_workers, own_servers)
        found = self._close(job, shape, spread, own_workers, own_servers)
        if found is None and shape.servers:
            found = self._packed(job, shape.kind, shape.workers, shape.servers)
        return found

    def _close(
        self, job: Job, shape: Shape, spread: bool, own_workers: Integers, own_servers: Integers
    ) -> tuple[Integers, Integers] | None:
        """Return where the pods of a job are to be that may be moved, on as few nodes as can be."""
        others = self._others - self._pods(job)
        servers = np.zeros(len(self._names), np.int64)
        if shape.servers:
            both = job.takes(shape)
            whole = self._rooms(both, shape.kind) >= 1
            if whole.any() and not (own_workers + own_servers)[~whole].any():
                best = _first(whole, -own_workers - own_servers, others, self._left(both))
                servers[best] = shape.servers
            else:
                room = self._rooms(job.server, shape.kind)
                found = _fill(room, shape.servers, own_servers, others, None)
                if found is None:
                    return None
                servers = found
        most = None if shape.servers or spread else shape.nodes
        room = self._rooms(job.worker, shape.kind, np.outer(servers, amounts(job.server)))
        if not shape.servers and (spread or shape.nodes > 1):
            room[self._spanned] = 0
        near = own_workers + (servers > 0)
        workers = _fill(room, shape.workers, near if shape.servers else own_workers, others, most)
        if workers is None or self._masters_node(job, workers, servers) is None:
            return None
        return workers, servers

    def _beside(
        self, job: Job, shape: Shape, own_workers: Integers, own_servers: Integers
    ) -> tuple[Integers, Integers] | None:
        """Return where the pods are of a job that keeps its own where they are."""
        own_workers[self._kinds != shape.kind] = own_servers[self._kinds != shape.kind] = 0
        kept = own_servers if shape.servers == job.held.servers else np.zeros_like(own_servers)
        workers, servers = _first_of(own_workers, shape.workers), _first_of(kept, shape.servers)
        come = shape.workers - int(workers.sum()), shape.servers - int(servers.sum())
        given_up = self._amounts(own_workers - workers, job.worker)
        found = self._joined(job, shape.kind, *come, given_up)
        if found is None:
            found = self._packed(job, shape.kind, *come)
        return None if found is None else (workers + found[0], servers + found[1])

    def _joined(
        self, job: Job, kind: str, workers: int, servers: int, given_up: Floats
    ) -> tuple[Integers, Integers] | None:
        """Return where so many workers and servers come: each where most is free.

        Servers choose first, and the master last, who may have what is given up.
        """
        servers_on = _each_where_most_is(self._rooms(job.server, kind), servers)
        if servers_on is None:
            return None
        taken = self._amounts(servers_on, job.server)
        workers_on = _each_where_most_is(self._rooms(job.worker, kind, taken), workers)
        if workers_on is None:
            return None
        taken = taken + self._amounts(workers_on, job.worker) - given_up
        if rooms(self._free - taken, job.master).max(initial=0) == 0:
            return None
        return workers_on, servers_on

    def _packed(
        self, job: Job, kind: str, workers: int, servers: int
    ) -> tuple[Integers, Integers] | None:
        """Return where so many workers and servers, and the master, fit together, if anywhere.

        Exact, by dynamic programming over the nodes: the most workers that the first of them hold
        beside so many servers, with the master or without it. Not tried where that takes long.
        """
        server_rooms = np.minimum(self._rooms(job.server, kind), servers)
        if (
            len(self._names) * (servers + 1) > _MOST_STEPS
            or server_rooms.sum() < servers
            or self._rooms(job.worker, kind).sum() < workers
        ):
            return None
        most = np.full((servers + 1, 2), -1)  # by servers, and whether the master is there
        most[0, int(job.master == Resources())] = 0
        choices = []
        for node, most_servers in enumerate(server_rooms):
            before, most = most, np.full_like(most, -1)
            choice = np.zeros((servers + 1, 2, 2), np.int64)  # servers and masters of this node
            for count in range(int(most_servers) + 1):
                for master in (0, 1):
                    beside = job.server * count + job.master * master
                    if not rooms(self._free[node][None], beside)[0]:
                        continue
                    left = self._free[node] - amounts(beside)
                    room = int(rooms(left[None], job.worker)[0])
                    room *= bool(self._kinds[node] == kind)
                    known = before[: servers + 1 - count, : 2 - master]
                    sums = np.where(known < 0, -1, known + room)
                    better = sums > most[count:, master:]
                    most[count:, master:][better] = sums[better]
                    choice[count:, master:][better] = count, master
            choices.append(choice)
        if most[servers, 1] < workers:
            return None
        servers_on, master_on = (np.zeros(len(self._names), np.int64) for _ in range(2))
        at, is_there = servers, 1
        for node in reversed(range(len(choices))):
            servers_on[node], master_on[node] = choices[node][at, is_there]
            at, is_there = at - int(servers_on[node]), is_there - int(master_on[node])
        taken = self._amounts(servers_on, job.server) + self._amounts(master_on, job.master)
        workers_on = _each_where_most_is(self._rooms(job.worker, kind, taken), workers)
        return None if workers_on is None else (workers_on, servers_on)

    def _own(self, job: Job) -> Floats:
        """Return what the pods of a job take now, [nodes, RESOURCES]."""
        workers, servers = self._counts(job.workers_on), self._counts(job.servers_on)
        return self._amounts(workers, job.worker) + self._amounts(servers, job.server)

    def _amounts(self, counts: Integers, pod: Resources) -> Floats:
        return np.outer(counts, amounts(pod))

    def _take(self, job: Job, shape: Shape, workers: Integers, servers: Integers) -> None:
        self._others -= self._pods(job)
        masters = self._masters_node(job, workers, servers) if shape.workers else None
        self._free -= np.outer(workers, amounts(job.worker))
        self._free -= np.outer(servers, amounts(job.server))
        if masters is not None:
            self._free[masters] -= amounts(job.master)
        if job.may_move and not shape.servers and np.count_nonzero(workers) > 1:
            self._spanned |= workers > 0

    def _masters_node(self, job: Job, workers: Integers, servers: Integers) -> int | None:
        """Return the node with most room for the job's master beside these; None: there is none."""
        taken = np.outer(workers, amounts(job.worker)) + np.outer(servers, amounts(job.server))
        room = rooms(self._free - taken, job.master)
        return int(room.argmax()) if room.max(initial=0) else None

    def _rooms(self, pod: Resources, kind: str | None, taken: Floats | float = 0.0) -> Integers:
        """Return how many such pods each node has room for."""
        found = rooms(self._free - taken, pod)
        if kind is not None:
            found[self._kinds != kind] = 0
        return found

    def _left(self, pod: Resources) -> Floats:
        """Return how much of each node would stay free, in shares of the largest."""
        left: Floats = ((self._free - amounts(pod)) / self._full).sum(axis=1)
        return left

    def _counts(self, on: Mapping[str, int]) -> Integers:
        counts = np.zeros(len(self._names), np.int64)
        for name, count in on.items():
            if name in self._index:
                counts[self._index[name]] = count
        return counts

    def _pods(self, job: Job) -> Integers:
        return self._counts(job.workers_on) + self._counts(job.servers_on)

    def _named(self, counts: Integers) -> dict[str, int]:
        return {self._names[i]: int(counts[i]) for i in np.flatnonzero(counts)}


def _fill(
    rooms: Integers, count: int, own: Integers, others: Integers, most: int | None
) -> Integers | None:
    """Return how many of `count` pods to put on each node, on `most` nodes at most."""
    for near in (own, np.zeros_like(own)):
        stay = _first_of(np.minimum(near, rooms), count)
        more = _greedy(rooms - stay, count - int(stay.sum()), stay, others)
        if more is None:
            return None
        if most is None or np.count_nonzero(stay + more) <= most:
            return stay + more
    return None


def _each_where_most_is(rooms: Integers, count: int) -> Integers | None:
    """Return how many of `count` pods to put on each node, one by one where most room is."""
    left, found = rooms.copy(), np.zeros_like(rooms)
    for _ in range(count):
        if not left.max(initial=0):
            return None
        best = int(left.argmax())
        found[best] += 1
        left[best] -= 1
    return found


def _first_of(own: Integers, count: int) -> Integers:
    """Return which pods stay if `count` at most may: those of the nodes with most of them."""
    order = np.argsort(-own, kind="stable")
    stay = np.zeros_like(own)
    stay[order] = np.diff(np.minimum(np.cumsum(own[order]), count), prepend=0)
    return stay


def _greedy(rooms: Integers, count: int, own: Integers, others: Integers) -> Integers | None:
    put = np.zeros_like(rooms)
    left = count
    while left:
        open_ = (rooms > 0) & (put == 0)
        enough = open_ & (rooms >= left)
        if enough.any():
            put[_first(enough, -own, others, rooms)] = left
            return put
        if not open_.any():
            return None
        best = _first(open_, -own, -rooms, others)
        put[best] = rooms[best]
        left -= int(rooms[best])
    return put


def _first(candidates: NDArray[np.bool_], *keys: Floats | Integers) -> int:
    """Return the candidate whose keys are the least, the first of them in turn."""
    places = np.flatnonzero(candidates)
    order = np.lexsort([key[places] for key in reversed(keys)])
    return int(places[order[0]])
