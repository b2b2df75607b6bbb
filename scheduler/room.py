"""What all jobs together may take: the resources of each kind of nodes, and the quotas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .cluster import Resources
from .jobs import Job, Quota, Shape
from .knapsack import Floats
from .options import RESOURCES, Kind, Options, amounts, rooms

_ROUNDING = 1e-9  # errors of floats, relative and of small sums
_WHOLE = len(RESOURCES)  # the column of a kind, after those of RESOURCES, of whole workers


def covers(quota: Quota, job: Job) -> bool:
    """Tell whether the quota counts what the job has."""
    return quota.covers(job.namespace, job.user)


def taken(job: Job, shape: Shape) -> Resources:
    """Return what the job takes in this shape, its master included."""
    return job.takes(shape) + (job.master if shape.workers else Resources())


class Room:
    """The options of all jobs that may be changed, and the limits that hold for their sums.

    `takes` has for each job a row for each option, and a column for each limit: of each kind of
    nodes its RESOURCES and, where all workers are of one size, how many whole ones its nodes have
    room for. Masters and servers count by their own sizes, and as so many whole workers as would
    fit into them: none where they are small, and may lie in what workers leave over.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        quotas: Sequence[Quota],
        free: Sequence[Floats],
        tables: Sequence[Options],
        fixed: Sequence[Job],
    ) -> None:
        """Take what is free on the nodes of each kind, [nodes, RESOURCES], beside the fixed jobs.

        Options that would not fit even if the fixed jobs were gone are dropped.
        """
        self._worker = _one_size(tables)
        self._sizes: dict[Resources, Floats] = {}  # by pod, with the whole workers in it
        self._columns = {kind.name: i * (_WHOLE + 1) for i, kind in enumerate(kinds)}
        self._quotas = quotas
        ever = [
            self._usable(np.array([amounts(node.free) for node in kind.nodes])) for kind in kinds
        ]
        now = [self._usable(each) for each in free]
        most = [amounts(quota.bounds) for quota in quotas]
        for quota in quotas:
            others = (taken(job, job.held) for job in fixed if covers(quota, job))
            now.append(np.maximum(amounts(quota.bounds) - amounts(sum(others, Resources())), 0.0))
        whole = loose(np.concatenate([*ever, *most, np.zeros(0)]))
        self.limits: Floats = np.concatenate([*now, np.zeros(0)])
        self.tables: list[Options] = []
        self.takes: list[Floats] = []
        for table in tables:
            rows = self._rows(table)
            fits = np.asarray((rows <= whole).all(axis=1))
            self.tables.append(table.only(fits))
            self.takes.append(rows[fits])
        self._simplify()

    def holds(self, picks: Iterable[int]) -> bool:
        """Tell whether these options of all jobs fit together."""
        total = sum((rows[pick] for rows, pick in zip(self.takes, picks, strict=True)), 0.0)
        return bool((total <= loose(self.limits)).all())

    def _usable(self, free: Floats) -> Floats:
        """Return what can be used of nodes: all that is free, and so many whole workers."""
        workers = np.inf if self._worker is None else float(rooms(free, self._worker).sum())
        return np.append(free.sum(axis=0), workers)

    def _size(self, pod: Resources) -> Floats:
        """Return what a pod takes, and the whole workers that there is no room for beside it."""
        if pod not in self._sizes:
            found = amounts(pod)
            workers = 0 if self._worker is None else int(rooms(found[None], self._worker)[0])
            self._sizes[pod] = np.append(found, workers)
        return self._sizes[pod]

    def _rows(self, table: Options) -> Floats:
        job, rows = table.job, np.zeros((len(table.shapes), len(self.limits)))
        takes = np.outer([shape.workers for shape in table.shapes], self._size(job.worker))
        takes += np.outer(_servers(table), self._size(job.server)) + self._size(job.master)
        for i, shape in enumerate(table.shapes[1:], 1):
            column = self._columns[shape.kind]
            rows[i, column : column + _WHOLE + 1] = takes[i]
        first = len(self._columns) * (_WHOLE + 1)
        for i, quota in enumerate(self._quotas):
            if covers(quota, job):
                column = first + i * len(RESOURCES)
                rows[:, column : column + len(RESOURCES)] = table.takes
        return rows

    def _simplify(self) -> None:
        """Let as few amounts decide as can be: knapsack.py solves for one of them.

        A resource is no limit where the whole workers that fit leave enough of it for all else;
        where nothing else asks for it, it is one of whole workers, in its own unit.
        """
        if self._worker is None:
            return
        size, every = amounts(self._worker), np.concatenate(self.takes)
        starts = np.cumsum([0, *map(len, self.takes[:-1])])
        for first in self._columns.values():
            whole, columns = first + _WHOLE, slice(first, first + _WHOLE)
            besides = every[:, columns] - np.outer(every[:, whole], size)
            most = np.maximum(np.maximum.reduceat(besides, starts, axis=0), 0.0)  # of each job
            # each job that has anything has a worker: there are no more jobs than these
            jobs = int(min(self.limits[whole], len(most)))
            largest = np.sort(most, axis=0)[len(most) - jobs :].sum(axis=0)
            workers, limits = self.limits[whole] * size, self.limits[columns]
            simpler = np.where(most.any(axis=0), np.inf, workers)
            self.limits[columns] = np.where(workers + largest <= loose(limits), simpler, limits)


def loose(limits: Floats) -> Floats:
    """Return the limits with what errors of floats may add to sums."""
    return limits * (1 + _ROUNDING) + _ROUNDING


def _one_size(tables: Sequence[Options]) -> Resources | None:
    """Return the size of all workers; None where they have several."""
    sizes = {table.job.worker for table in tables}
    return next(iter(sizes)) if len(sizes) == 1 else None


def _servers(table: Options) -> list[int]:
    """Return how many servers of each option need room: not those that stay where they are."""
    job = table.job
    there = 0 if job.may_move else sum(job.servers_on.values())
    return [
        max(0, shape.servers - there) if shape.servers == job.held.servers else shape.servers
        for shape in table.shapes
    ]
