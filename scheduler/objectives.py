"""What a plan is to reach: by name, the worth of each option of each job, to be added up. Pure.

`goodput`: the power mean, p = -1, of how many times faster each job is than with its fair share
(Pollux, OSDI '21, section 4.2). `finish`: the mean time until jobs end, by the weights of heSRPT
(Berg, Vesilo, Harchol-Balter, 2020), which are optimal for jobs whose sizes are known and whose
speed is a power of what they have; here over the speeds that are predicted. `deadline`: deadlines
are met, the first one first, and the rest as `finish`. `fulfilment`: everybody's minimum, then
equal shares. `fifo`: gangs in the order in which they were submitted, each at its maximum.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .cluster import Resources
from .knapsack import Floats
from .options import Options, amounts, worth_of_change

_POWER = -1.0  # of the mean of speedups: Pollux'
_LEAST_SPEEDUP = 1e-3  # that of nothing, whose power is to be finite: Pollux' too
_CONCAVITY = 0.7  # a job with n times the workers is n ** 0.7 times as fast: by trial
_MARGIN = 1.1  # of the time that a deadline leaves: predictions err by up to so much
_LIGHTEST = 1e-6  # the share of nothing, whose logarithm is to be finite
_ROUNDING = 1e-9  # errors of shares
_HEAVIEST = 10  # powers of two between the weights of priorities

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Outlook:
    """What an objective looks at: jobs with their options, and all that the nodes have."""

    tables: Sequence[Options]
    total: Resources
    now: float  # s


@dataclass(frozen=True)
class Claim:
    """One of these options comes before what adds up to more; the least of them that fits."""

    job: int  # its place in the outlook
    options: Bools


@dataclass(frozen=True)
class Aim:
    """What is to be as large as possible, and what comes before that."""

    values: list[Floats]  # for each job, of each option
    claims: list[Claim] = field(default_factory=list)  # in this order, within a priority
    in_turn: bool = False  # nobody who waits is served before a claim that stands before its own


Objective = Callable[[Outlook], Aim]


def goodput(outlook: Outlook) -> Aim:
    """Return Pollux' aim."""
    weights = _weights(outlook.tables)
    values = []
    for table, weight in zip(outlook.tables, weights, strict=True):
        shares = _shares(table, outlook)
        enough = shares[shares >= 1 / len(weights) - _ROUNDING]
        fair = enough.min() if len(enough) else shares.max()
        base = table.speeds[shares <= fair + _ROUNDING].max() or table.speeds.max() or 1.0
        speedups = table.speeds / base * worth_of_change(table, outlook.now)
        values.append(weight * (speedups + _LEAST_SPEEDUP) ** _POWER / _POWER)
    return Aim(values)


def finish(outlook: Outlook) -> Aim:
    """Return the aim that jobs end soon on average; `goodput` where no job's end is known."""
    sizes = [_size(table) for table in outlook.tables]
    known = [size for size in sizes if size is not None]
    if not known:
        return goodput(outlook)
    median = statistics.median(known)
    jobs = [table.job for table in outlook.tables]
    ranked = sorted(  # of equal ones the first that came is the heaviest: it stays so
        range(len(sizes)),
        key=lambda j: (
            -(median if (size := sizes[j]) is None else size),
            -jobs[j].submitted,
            jobs[j].name,
        ),
    )
    ends = (np.arange(len(sizes) + 1) / len(sizes)) ** (1 / (1 - _CONCAVITY))
    by_rank = np.diff(ends) ** (1 - _CONCAVITY)
    weights = _weights(outlook.tables)
    weights[ranked] *= by_rank
    return Aim([
        weight * _speedups(table) * worth_of_change(table, outlook.now)
        for table, weight in zip(outlook.tables, weights, strict=True)
    ])  # fmt: skip


def deadline(outlook: Outlook) -> Aim:
    """Return the aim that deadlines are met, then as `finish`."""
    claims = []
    for j, table in enumerate(outlook.tables):
        meets = meeting(table, outlook.now)
        if meets is not None and meets.any():
            claims.append(Claim(j, meets))
    claims.sort(key=lambda claim: outlook.tables[claim.job].job.deadline or 0.0)
    return Aim(finish(outlook).values, claims)


def fulfilment(outlook: Outlook) -> Aim:
    """Return the aim of equal shares, after the minimum of everybody."""
    weights = _weights(outlook.tables)
    values = [
        weight * np.log(np.maximum(_shares(table, outlook), _LIGHTEST))
        for table, weight in zip(outlook.tables, weights, strict=True)
    ]
    return Aim(values, [Claim(j, _runs(outlook.tables[j])) for j in _in_turn(outlook.tables)])


def fifo(outlook: Outlook) -> Aim:
    """Return the aim that each job gets its maximum when its turn comes, and keeps it."""
    claims = []
    for j in _in_turn(outlook.tables):
        table = outlook.tables[j]
        wanted = np.zeros(len(table.shapes), bool)
        wanted[_largest(table) if table.kept is None else table.kept] = True
        wanted[0] = False
        claims.append(Claim(j, wanted))
    claims.sort(key=lambda claim: outlook.tables[claim.job].kept is None)
    return Aim([np.zeros(len(table.shapes)) for table in outlook.tables], claims, in_turn=True)


OBJECTIVES: dict[str, Objective] = {
    "finish": finish,
    "goodput": goodput,
    "deadline": deadline,
    "fifo": fifo,
    "fulfilment": fulfilment,
}


def meeting(table: Options, now: float) -> Bools | None:
    """Tell of each option whether the job would end by its deadline; None where it has none."""
    job = table.job
    if job.deadline is None or job.left is None:
        return None
    with np.errstate(divide="ignore"):
        lasts_s = np.where(table.speeds > 0, _MARGIN * job.left / table.speeds, np.inf)
    changes = np.array([job.price_s(shape) for shape in table.shapes])
    if table.kept is not None:
        changes[table.kept] = 0
    return np.asarray(now + changes + lasts_s <= job.deadline)


def _runs(table: Options) -> Bools:
    return np.arange(len(table.shapes)) > 0


def _largest(table: Options) -> int:
    """Return the option with the most workers; of these the fastest, then the smallest."""
    workers = np.array([shape.workers for shape in table.shapes])
    most = np.flatnonzero(workers == workers.max())
    return int(most[table.speeds[most].argmax()])


def _turn(table: Options) -> tuple[float, str]:
    return table.job.submitted, table.job.name


def _in_turn(tables: Sequence[Options]) -> list[int]:
    return sorted(range(len(tables)), key=lambda j: _turn(tables[j]))


def _weights(tables: Sequence[Options]) -> Floats:
    """Return what the jobs weigh by their priorities: each step doubles it."""
    priorities = np.array([table.job.priority for table in tables], float)
    return np.asarray(np.exp2(np.minimum(priorities - priorities.min(initial=np.inf), _HEAVIEST)))


def _shares(table: Options, outlook: Outlook) -> Floats:
    """Return the dominant share of the cluster that each option takes."""
    total = amounts(outlook.total)
    has = total > 0
    return np.asarray((table.takes[:, has] / total[has]).max(axis=1, initial=0.0))


def _speedups(table: Options) -> Floats:
    """Return how many times faster than with one worker each option is."""
    if len(table.shapes) == 1:
        return table.speeds
    least = table.speeds[1] or table.speeds.max() or 1.0
    return np.asarray(table.speeds / least * table.shapes[1].workers ** _CONCAVITY)


def _size(table: Options) -> float | None:
    """Return how long the job would take with one worker, s; None if its end is not known."""
    if table.job.left is None:
        return None
    speedups = _speedups(table)
    fastest = int(speedups.argmax())
    if not table.speeds[fastest]:
        return 0.0 if not table.job.left else np.inf
    return float(table.job.left / table.speeds[fastest] * speedups[fastest])
