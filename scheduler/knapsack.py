"""The best choice of one option for each job, exactly, where one amount decides. Pure.

This is the multiple-choice knapsack problem. Dynamic programming over the amount solves it in
jobs x options x capacity steps. Jobs that share a limit of their own (a quota) are solved first,
for every amount up to it; they are then one item whose options are these amounts.

Values are whole numbers, so sums are exact and equal ones are equal: of those the plan is taken
that changes fewer jobs, then the one of earlier options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_RESOLUTION = 2.0**40  # steps from 0 to the largest value
_LARGEST_SUM = 2.0**58  # of values, with a step for each job that keeps what it has
_NEVER = -(2**61)  # the value of what does not fit; twice that is still an int64
_ROUNDING = 1e-9  # errors of floats, relative
_MOST_UNITS = 4096  # of the amount that decides; more are solved sooner by milp.py
_PARTS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 100, 1000)  # of a core or a device that a pod asks for


@dataclass(frozen=True)
class Problem:
    """Options of jobs, of which one each is to be chosen, for the largest sum of values.

    For each job `values` has a number for each of its options, and `amounts` a row of what the
    option takes of each bin; the sum of a bin's may not exceed its limit. Options stand in the
    order in which they are preferred where all else is equal.
    """

    values: Sequence[Integers]
    amounts: Sequence[Floats]  # [options, bins]
    limits: Floats  # [bins]


def whole(values: Sequence[Floats], kept: Sequence[int | None]) -> list[Integers]:
    """Return values as whole numbers, in which what a job keeps wins where all else is equal.

    `kept`: for each job the option that changes nothing, or None.
    """
    largest = max((float(np.abs(each).max()) for each in values), default=0.0) or 1.0
    more = len(values) + 1  # than the jobs that can keep what they have
    step = min(_RESOLUTION, _LARGEST_SUM / more**2) / largest
    result = [np.rint(each * step).astype(np.int64) * more for each in values]
    for each, option in zip(result, kept, strict=True):
        if option is not None:
            each[option] += 1
    return result


def solve(problem: Problem) -> list[int] | None:
    """Return the option of each job; None where more than one amount decides.

    The options of each job that take least must fit together.
    """
    found = _decisive(problem)
    if found is None:
        return None
    bin_, groups = found
    counted = _units(problem, bin_, groups)
    if counted is None:
        return None
    units, capacity, most = counted
    items = [(units[j], problem.values[j]) for j in range(len(units))]
    grouped = {j for members in groups.values() for j in members}
    alone = [j for j in range(len(items)) if j not in grouped]
    outer = [items[j] for j in alone]
    inner = {}
    for group, members in groups.items():
        within = min(most[group], capacity)
        inner[group] = _Curves([items[j] for j in members], within)
        outer.append((np.arange(within + 1), inner[group].best))
    picks = _Curves(outer, capacity).picks(capacity)
    chosen = dict(zip(alone, picks, strict=False))
    for (group, members), amount in zip(groups.items(), picks[len(alone) :], strict=True):
        chosen.update(zip(members, inner[group].picks(amount), strict=True))
    return [chosen[j] for j in range(len(items))]


class _Curves:
    """The best sum of values of the first items, for all of them and each amount."""

    def __init__(self, items: Sequence[tuple[Integers, Integers]], capacity: int) -> None:
        """Take the amounts and values of each item's options."""
        best = np.zeros(capacity + 1, np.int64)
        padded = np.full(2 * capacity + 1, _NEVER, np.int64)
        shifted = np.lib.stride_tricks.sliding_window_view(padded, capacity + 1)
        columns = np.arange(capacity + 1)
        self._steps: list[tuple[Integers, Integers, Integers]] = []
        for amounts, values in items:
            order = np.flatnonzero(amounts <= capacity)
            amounts, values = amounts[order], values[order]
            padded[capacity:] = best
            sums = shifted[capacity - amounts]  # a copy: row o is `best` moved by the amount of o
            sums += values[:, None]
            picked = sums.argmax(axis=0)
            best = np.maximum(sums[picked, columns], _NEVER)
            self._steps.append((order, amounts, picked))
        self.best = best

    def picks(self, capacity: int) -> list[int]:
        """Return the option of each item, for the best sum that takes at most so much."""
        left, picks = capacity, []
        for order, amounts, picked in reversed(self._steps):
            place = picked[left]
            picks.append(int(order[place]))
            left -= int(amounts[place])
        return picks[::-1]


def _decisive(problem: Problem) -> tuple[int | None, dict[int, list[int]]] | None:
    """Return the bin that decides (None: all fits), and bins that limit the same for a few jobs."""
    limits, loose = problem.limits * (1 + _ROUNDING) + _ROUNDING, 1 + 10 * _ROUNDING
    most = np.array([each.max(axis=0) for each in problem.amounts])
    most = most.reshape(len(problem.amounts), len(limits))
    tight = np.flatnonzero(most.sum(axis=0) > limits).tolist()
    if not tight:
        return None, {}
    rows = np.concatenate(problem.amounts)
    owners = np.repeat(np.arange(len(most)), [len(each) for each in problem.amounts])

    def implies(one: int, other: int) -> bool:
        """Tell whether whatever fits into bin `one` fits into the other."""
        return bool(np.all(rows[:, other] * limits[one] <= rows[:, one] * limits[other] * loose))

    finite = np.flatnonzero(np.isfinite(limits)).tolist()
    for bin_ in [*tight, *(each for each in finite if each not in tight)]:
        kept: list[int] = []
        for other in tight:
            if other != bin_ and not any(implies(one, other) for one in (bin_, *kept)):
                kept.append(other)
        groups = {}
        for other in kept:
            members = np.unique(owners[rows[:, other] > 0])
            theirs = np.isin(owners, members)
            if np.allclose(rows[theirs, other], rows[theirs, bin_], rtol=_ROUNDING):
                groups[other] = members.tolist()
        shared = [j for members in groups.values() for j in members]
        if len(groups) == len(kept) and len(shared) == len(set(shared)):
            return bin_, groups
    return None


def _units(
    problem: Problem, bin_: int | None, groups: dict[int, list[int]]
) -> tuple[list[Integers], int, dict[int, int]] | None:
    """Return amounts, capacity and limits of groups in whole units; None if these are too many."""
    if bin_ is None:
        return [np.zeros(len(each), np.int64) for each in problem.amounts], 0, {}
    rows = np.concatenate([each[:, bin_] for each in problem.amounts])
    splits = np.cumsum([len(each) for each in problem.amounts])[:-1]
    for parts in _PARTS:
        whole_rows = np.rint(rows * parts)
        if np.allclose(rows * parts, whole_rows, rtol=_ROUNDING, atol=_ROUNDING):
            break
    else:
        return None
    counted = whole_rows.astype(np.int64)
    unit = math.gcd(*np.unique(counted).tolist()) or 1
    most = sum(each.max() for each in np.split(rows, splits))  # whatever the limit
    fits = {
        each: math.floor(min(problem.limits[each], most) * parts / unit + _ROUNDING)
        for each in (bin_, *groups)
    }
    capacity = fits.pop(bin_)
    if capacity > _MOST_UNITS:
        return None
    return np.split(counted // unit, splits), capacity, fits
