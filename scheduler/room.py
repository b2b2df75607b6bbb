"""What all jobs together may take: the resources of each kind of nodes, and the quotas. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from .cluster import Resources
from .jobs import Job, Quota, Shape
from .knapsack import Floats
from .options import RESOURCES, Kind, Options, amounts, rooms

_ROUNDING = 1e-9  # errors of floats, relative and of small sums


def covers(quota: Quota, job: Job) -> bool:
    """Tell whether the quota counts what the job has."""
    return quota.namespace in (None, job.namespace) and quota.user in (None, job.user)


def taken(job: Job, shape: Shape) -> Resources:
    """Return what the job takes in this shape."""
    master = job.master if shape.workers else Resources()
    return job.worker * shape.workers + job.server * shape.servers + master


class Room:
    """The options of all jobs that may be changed, and the limits that hold for their sums.

    `takes` has for each job a row for each option, and a column for each limit.
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
        self._slot = _slot(tables)
        self._columns = {kind.name: i * len(RESOURCES) for i, kind in enumerate(kinds)}
        self._quotas = quotas
        pods = _sizes(tables)
        ever = [
            _usable(np.array([amounts(node.free) for node in kind.nodes]), pods) for kind in kinds
        ]
        now = [_usable(each, pods) for each in free]
        most = [amounts(quota.most) for quota in quotas]
        for quota in quotas:
            others = (taken(job, job.held) for job in fixed if covers(quota, job))
            now.append(np.maximum(amounts(quota.most) - amounts(sum(others, Resources())), 0.0))
        whole = loose(np.concatenate([*ever, *most, np.zeros(0)]))
        self.limits: Floats = np.concatenate([*now, np.zeros(0)])
        self.tables: list[Options] = []
        self.takes: list[Floats] = []
        for table in tables:
            rows = self._rows(table)
            fits = np.asarray((rows <= whole).all(axis=1))
            self.tables.append(table.only(fits))
            self.takes.append(rows[fits])

    def holds(self, picks: Iterable[int]) -> bool:
        """Tell whether these options of all jobs fit together."""
        total = sum((rows[pick] for rows, pick in zip(self.takes, picks, strict=True)), 0.0)
        return bool((total <= loose(self.limits)).all())

    def _rows(self, table: Options) -> Floats:
        width = len(RESOURCES)
        takes = table.takes if table.job.may_move else self._more(table)
        rows = np.zeros((len(table.shapes), len(self.limits)))
        for i, shape in enumerate(table.shapes[1:], 1):
            column = self._columns[shape.kind]
            rows[i, column : column + width] = takes[i]
        for i, quota in enumerate(self._quotas, len(self._columns)):
            if covers(quota, table.job):
                rows[:, i * width : (i + 1) * width] = table.takes
        return rows

    def _more(self, table: Options) -> Floats:
        """Return what each option of a job takes whose servers and master stay where they are.

        Those that are not there yet count as whole workers where all workers are of one size: there
        is room for them then, whatever is left over on nodes.
        """
        job = table.job
        there = sum(job.servers_on.values())
        found = np.outer([shape.workers for shape in table.shapes], amounts(job.worker))
        for i, shape in enumerate(table.shapes[1:], 1):
            servers = shape.servers - (there if shape.servers == job.held.servers else 0)
            comes = amounts(job.server * servers + job.master)
            found[i] += _whole(comes, self._slot)
        return found


def loose(limits: Floats) -> Floats:
    """Return the limits with what errors of floats may add to sums."""
    return limits * (1 + _ROUNDING) + _ROUNDING


def _sizes(tables: Sequence[Options]) -> set[Resources]:
    """Return the different sizes of pods that are to be put somewhere."""
    sizes = {table.job.worker for table in tables}
    moves = [table.job for table in tables if table.job.may_move]
    sizes |= {job.server for job in moves if any(job.servers)}
    return sizes | {job.master for job in moves} - {Resources()}


def _slot(tables: Sequence[Options]) -> Floats | None:
    """Return the size of all workers; None where they have several."""
    sizes = {table.job.worker for table in tables}
    return amounts(next(iter(sizes))) if len(sizes) == 1 else None


def _whole(comes: Floats, slot: Floats | None) -> Floats:
    """Return what comes in as many whole workers as hold it, where there is such a number."""
    if slot is None or ((comes > 0) & (slot == 0)).any():
        return comes
    asked = slot > 0
    count = math.ceil((comes[asked] / slot[asked]).max(initial=0.0) - _ROUNDING)
    return np.asarray(slot * count)


def _usable(free: Floats, pods: set[Resources]) -> Floats:
    """Return what can be used of nodes: if all pods are of one size, only whole ones of it.

    What those ask nothing of is left whole for servers and masters.
    """
    everything = np.asarray(free.sum(axis=0))
    if len(pods) != 1:
        return everything
    (pod,) = pods
    asked = amounts(pod)
    return np.where(asked > 0, rooms(free, pod).sum() * asked, everything)
