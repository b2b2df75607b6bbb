"""Who gets how many workers and servers on which nodes, and why: one plan for all jobs. Pure.

A plan is made in four steps. Jobs that keep what they have (pinned, nearly done, or described so
badly that nothing can be said of them) are set aside with their room. Then comes who is sure of at
least its minimum: whoever has waited longest, if longer than its patience; and where anybody has,
those who run, the least served first; those of higher priorities; and what the objective claims
besides. What the objective adds up is then made as large as it can be (`knapsack.py`, or `milp.py`
where more than one amount decides). Last, the pods are put onto nodes (`placement.py`); what does
not fit there is given the next smaller shape that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..common.errors import UsageError
from . import knapsack, milp, reasons
from .cluster import Node, Resources
from .jobs import Job, Plan, Quota, Shape, ceiling
from .objectives import OBJECTIVES as AIMS
from .objectives import Aim, Outlook
from .options import Kind, Options, amounts, kinds_of, options, predict
from .placement import Placed, Placement
from .reasons import Outcome
from .room import Room
from .turns import Turns

OBJECTIVES = tuple(AIMS)

_TRIES = 3  # after each the jobs that no nodes hold give up what the next try shares out


class Policy(Protocol):
    """Whoever makes plans."""

    def plan(self, jobs: Sequence[Job], nodes: Sequence[Node], now: float) -> Plan:
        """Return what each job is given from `now` on.

        Raises UsageError where two jobs or two nodes have the same name.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """What every objective keeps to."""

    quotas: tuple[Quota, ...] = ()
    # Whoever waits longer has its minimum before anybody has more than theirs.
    patience_s: float = 3600.0


def make_policy(
    objective: str = "finish", limits: Limits | None = None, time_limit_s: float = 1.0
) -> Policy:
    """Return the policy of an objective; `time_limit_s` is that of the solver of `milp.py`.

    Raises UsageError for an objective that there is not, and for limits that make no sense.
    """
    limits = limits or Limits()
    if objective not in AIMS:
        raise UsageError(f"{objective!r} is no objective: choose one of {', '.join(AIMS)}")
    if not limits.patience_s >= 0:
        raise UsageError(f"the patience is {limits.patience_s} s: give a time of at least 0 s")
    if not time_limit_s > 0:
        raise UsageError(f"the time limit is {time_limit_s} s: give a time above 0 s")
    for quota in limits.quotas:
        if not (amounts(quota.most) >= 0).all():
            raise UsageError(f"{reasons.named(quota)} has an amount that is below 0")
    return _Best(objective, limits, time_limit_s)


@dataclass(frozen=True)
class _Best:
    """The policy that makes what an objective adds up as large as it can be."""

    objective: str
    limits: Limits
    time_limit_s: float

    def plan(self, jobs: Sequence[Job], nodes: Sequence[Node], now: float) -> Plan:
        _check_names(jobs, nodes)
        jobs = [job.firm() for job in jobs]
        while True:
            plan = self._plan(jobs, nodes, now)
            lacking = {job.name for job in jobs if job.lacks(plan[job.name].shape)}
            if not lacking:
                return plan
            # no limit holds what nobody may take from them, a quota that fell, say
            jobs = [replace(job, is_pinned=True) if job.name in lacking else job for job in jobs]

    def _plan(self, jobs: Sequence[Job], nodes: Sequence[Node], now: float) -> Plan:
        order = [job.name for job in jobs]
        jobs, lowered = _ranked(sorted(jobs, key=lambda job: job.name), self.limits.quotas)
        nodes = sorted(nodes, key=lambda node: node.name)
        kinds = kinds_of(nodes)
        tables, plan = _sorted_out(jobs, kinds)
        fixed = [job for job in jobs if job.name in plan]
        placement = Placement(nodes, jobs, fixed)
        free = [placement.free(kind.name) for kind in kinds]
        room = Room(kinds, self.limits.quotas, free, tables, fixed)
        total = sum((node.free for node in nodes), Resources())
        outlook = Outlook(room.tables, total, now)
        aim = AIMS[self.objective](outlook)
        turns = Turns(room, outlook, aim, Placement(nodes, (), fixed), self.limits.patience_s)
        tries = _TRIES
        while tries:
            placement = Placement(nodes, jobs, fixed)
            outcomes = _placed(placement, room, turns, self._chosen(room, aim, turns))
            lost = {j for j, each in outcomes.items() if each.is_lost}
            if turns.longest in lost and turns.evict():
                continue
            tries = tries - 1 if turns.give_up(lost) else 0
        plan |= reasons.explain(list(outcomes.values()), placement, self.limits.quotas, fixed, now)
        for name, why in lowered.items():
            plan[name] = replace(plan[name], why=plan[name].why + why)
        return {name: plan[name] for name in order}

    def _chosen(self, room: Room, aim: Aim, turns: Turns) -> list[int]:
        """Return the option of each job."""
        if not room.tables:
            return []
        allowed = [np.flatnonzero(mask) for mask in turns.allowed]
        values = knapsack.whole(aim.values, [table.kept for table in room.tables])
        problem = knapsack.Problem(
            [each[mask] for each, mask in zip(values, allowed, strict=True)],
            [each[mask] for each, mask in zip(room.takes, allowed, strict=True)],
            room.limits,
        )
        picks = knapsack.solve(problem)
        if picks is None:
            picks = milp.solve(problem, self.time_limit_s)
        if picks is not None:
            picks = [int(mask[pick]) for mask, pick in zip(allowed, picks, strict=True)]
        return picks if picks is not None and room.holds(picks) else turns.as_before()


def _check_names(jobs: Sequence[Job], nodes: Sequence[Node]) -> None:
    for what, names in (("jobs", [job.name for job in jobs]), ("nodes", [n.name for n in nodes])):
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise UsageError(f"two {what} have the name {twice}: give each its own")


def _ranked(jobs: Sequence[Job], quotas: Sequence[Quota]) -> tuple[list[Job], dict[str, str]]:
    """Return the jobs with the priorities that count, and what is said where one is lowered."""
    ranked, lowered = list(jobs), {}
    bounding = [quota for quota in quotas if quota.priority is not None]
    for i, job in enumerate(jobs if bounding else ()):
        quota = ceiling(bounding, job.namespace, job.user)
        if quota is not None and quota.priority is not None and quota.priority < job.priority:
            ranked[i] = replace(job, priority=quota.priority)
            lowered[job.name] = (
                f"; its priority {job.priority} counts as {quota.priority}, the most by "
                f"{reasons.named(quota)}"
            )
    return ranked, lowered


def _sorted_out(jobs: Sequence[Job], kinds: Sequence[Kind]) -> tuple[list[Options], Plan]:
    """Return the options of the jobs that may be changed, and what all others keep."""
    tables, plan = [], {}
    for job in jobs:
        try:
            table = options(job, kinds)
        except UsageError as error:
            plan[job.name] = reasons.unchanged(job, str(error))
        else:
            if job.is_pinned:
                plan[job.name] = reasons.unchanged(job, "it starts, ends, or may not be changed")
            elif job.is_nearly_done and job.held.workers:
                plan[job.name] = reasons.unchanged(job, "it is nearly done")
            else:
                tables.append(table)
    return tables, plan


def _placed(
    placement: Placement, room: Room, turns: Turns, chosen: list[int]
) -> dict[int, Outcome]:
    """Return, by its place, what each job is given, after it was put onto nodes.

    Jobs whose pods stay on their nodes and that get no more come first, then whoever has waited
    longest, then by priority the large before the small, so that these find whole nodes.
    """

    def rank(j: int) -> tuple[object, ...]:
        job, shape = room.tables[j].job, room.tables[j].shapes[chosen[j]]
        kept = chosen[j] == room.tables[j].kept
        grows = job.may_move or shape.workers > job.held.workers
        return (
            grows,
            j != turns.longest,
            -job.priority,
            -shape.nodes,
            -shape.workers,
            not kept,
            job.name,
        )

    outcomes = {}
    for j in sorted(range(len(chosen)), key=rank):
        table, option = room.tables[j], chosen[j]
        given, placed = Shape(), Placed()
        for shape, spread in _attempts(table, option) if option else ():
            found = placement.put(table.job, shape, spread)
            if found is not None:
                nodes = shape.nodes if shape.servers else len(found.workers_on)
                given, placed = replace(shape, nodes=nodes), found
                break
        else:
            if option and not table.job.may_move and table.job.held.workers:
                given, placed = placement.stay(table.job)
            else:
                placement.leave(table.job)
        is_lost = j in turns.lost or (option > 0 and not given.workers)
        outcomes[j] = Outcome(
            table, table.shapes[option], given, placed, j == turns.longest, is_lost
        )
    return outcomes


def _attempts(table: Options, option: int) -> Iterator[tuple[Shape, bool]]:
    """Yield the shapes to try, and whether each may be spread over more nodes than it says.

    First the one that was chosen, then, the fastest first, those that take no more.
    """
    yield table.shapes[option], False
    kind = table.shapes[option].kind
    no_more = (table.takes <= table.takes[option]).all(axis=1)
    less = [i for i, shape in enumerate(table.shapes) if i and no_more[i] and shape.kind == kind]
    attempts = [(-table.speeds[i], table.shapes[i], False) for i in less if i != option]
    for i in less:
        shape = table.shapes[i]
        if not shape.servers and shape.workers > shape.nodes:
            wider = replace(shape, nodes=shape.nodes + 1)
            attempts.append((-predict(table.job, [Shape(), wider])[1], shape, True))
    yield from ((shape, spread) for _, shape, spread in sorted(attempts))
