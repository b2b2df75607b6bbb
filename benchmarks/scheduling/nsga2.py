"""NSGA-II (Deb 2002) over states of integers with two costs: elitist, by fronts and crowding."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.int16]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CROSSED = 0.9  # share of the pairs
_ATTEMPTS = 100  # to find offspring that are not there yet


class Problem(Protocol):
    """The costs to lower, and the operators that make states of others."""

    def costs(self, states: States) -> Floats:
        """Return the two costs of each state."""

    def cross(self, first: States, second: States, random: np.random.Generator) -> States:
        """Return two children of each pair."""

    def mutate(self, states: States, random: np.random.Generator) -> States:
        """Return states that differ a little."""

    def repair(self, states: States, random: np.random.Generator) -> States:
        """Return valid states."""


class Front(NamedTuple):
    """States none of which another beats in both costs."""

    states: States
    costs_P2: Floats


def search(
    problem: Problem, begin: States, size: int, generations: int, random: np.random.Generator
) -> Front:
    """Return the front after so many generations, the first of which is the beginning."""
    states = problem.repair(begin, random)
    costs = problem.costs(states)
    rank, crowding = _ranked(costs)
    for _ in range(generations - 1):
        children = _offspring(problem, states, (costs, crowding), size, random)
        if not len(children):  # none that is not there yet
            break
        states = np.concatenate([states, children])
        costs = np.concatenate([costs, problem.costs(children)])
        rank, crowding = _ranked(costs)
        kept = np.lexsort((-crowding, rank))[:size]
        states, costs, rank, crowding = states[kept], costs[kept], rank[kept], crowding[kept]
    return Front(states[rank == 0], costs[rank == 0])


def _offspring(
    problem: Problem,
    parents: States,
    ranked: tuple[Floats, Floats],
    size: int,
    random: np.random.Generator,
) -> States:
    """Return so many children that differ from all parents and from each other."""
    seen = {state.tobytes() for state in parents}
    found: list[States] = []
    for _ in range(_ATTEMPTS):
        pairs = -(-(size - len(found)) // 2)
        chosen = _tournaments(*ranked, 2 * pairs, random)
        first, second = parents[chosen[:pairs]], parents[chosen[pairs:]]
        crossed = random.random(pairs) < _CROSSED
        children = np.concatenate([first, second])
        children[np.tile(crossed, 2)] = problem.cross(first[crossed], second[crossed], random)
        children = problem.repair(problem.mutate(children, random), random)
        for child in children:
            key = child.tobytes()
            if key not in seen and len(found) < size:
                seen.add(key)
                found.append(child)
        if len(found) == size:
            break
    return np.array(found, np.int16).reshape(-1, *parents.shape[1:])


def _tournaments(costs: Floats, crowding: Floats, count: int, random: np.random.Generator) -> Ints:
    """Return so many winners: each of two the one that dominates, else the less crowded."""
    size = len(costs)
    rounds = -(-2 * count // size)
    drawn = np.concatenate([random.permutation(size) for _ in range(rounds)])[: 2 * count]
    one, other = drawn.reshape(count, 2).T
    better = _dominates(costs[one], costs[other]) * 1.0 - _dominates(costs[other], costs[one])
    with np.errstate(invalid="ignore"):  # inf - inf: both are at an end of their front
        less_crowded = np.nan_to_num(np.sign(crowding[one] - crowding[other]))
    better = np.where(better == 0, less_crowded, better)
    better = np.where(better == 0, random.random(count) - 0.5, better)
    return np.where(better > 0, one, other)


def _dominates(costs: Floats, others: Floats) -> NDArray[np.bool_]:
    first, second, other_first, other_second = (
        values[..., column] for values in (costs, others) for column in (0, 1)
    )
    no_worse = (first <= other_first) & (second <= other_second)
    return no_worse & ((first < other_first) | (second < other_second))


def _ranked(costs: Floats) -> tuple[Ints, Floats]:
    """Return of each state the number of its front, from 0 on, and how far its neighbours are."""
    beats = _dominates(costs[:, None], costs)
    rank = np.full(len(costs), -1)
    crowding = np.zeros(len(costs))
    beaten, front = beats.sum(axis=0), 0
    while (rank < 0).any():
        members = np.nonzero((rank < 0) & (beaten == 0))[0]
        rank[members] = front
        crowding[members] = _crowding(costs[members])
        beaten = beaten - beats[members].sum(axis=0)
        front += 1
    return rank, crowding


def _crowding(costs: Floats) -> Floats:
    """Return the distance between each one's neighbours, at the ends without bound (eqn. 3.A)."""
    total = np.zeros(len(costs))
    for column in costs.T:
        order = column.argsort(kind="stable")
        ascending = column[order]
        gaps = np.full(len(costs), np.inf)
        if ascending[-1] > ascending[0]:
            gaps[1:-1] = (ascending[2:] - ascending[:-2]) / (ascending[-1] - ascending[0])
        else:
            gaps[1:-1] = 0
        total[order] += gaps
    return total / 2
