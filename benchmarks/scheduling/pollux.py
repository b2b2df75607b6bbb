"""Pollux's own policy (OSDI '21, section 4.2), written for comparison: what its authors played.

Each time a genetic algorithm, NSGA-II (Deb 2002), looks for the state, GPUs by job and node, with
the best power mean of the jobs' speedups over their fair shares. It mates two objectives, that
fitness and the utility of the nodes in use, and takes the fittest. A repair makes any state valid:
at most one job that spans nodes on each (the avoidance of interference), no job above its maximum,
no node above its GPUs.

Symbols in names of arrays: P states of the population, J jobs, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edl.scheduler.cluster import Node
from edl.scheduler.jobs import Given, Job, Plan, Shape, Speed

from . import nsga2

States = NDArray[np.int16]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

POPULATION = 100
GENERATIONS = 100
_EXPONENT = -1  # of the power mean: the lower, the fairer
_LEAST = 1e-3  # added to a speedup, or a job of none would make the mean 0


class Pollux:
    """The policy. It begins each search with the front of the last one."""

    def __init__(self, seed: int = 0, generations: int = GENERATIONS) -> None:
        """Take the seed of its search, and how long it is."""
        self._generations = generations
        self._random = np.random.default_rng(seed)
        self._front: list[dict[str, NDArray[np.int16]]] = []  # row of each job, by state
        self._tables: dict[str, tuple[Speed, Floats]] = {}  # speeds of each job, as told last

    def plan(self, jobs: Sequence[Job], nodes: Sequence[Node], now: float) -> Plan:
        """Return the fittest state that was found. Jobs need one GPU a worker."""
        jobs = sorted(jobs, key=lambda job: (job.served_s, job.submitted))
        base_JN = np.array([[job.workers_on.get(node.name, 0) for node in nodes] for job in jobs])
        none_N = np.zeros(len(nodes), np.int16)
        begin = [[rows.get(job.name, none_N) for job in jobs] for rows in self._front] or [base_JN]
        problem = _Problem(jobs, nodes, base_JN.astype(np.int16), self._speedups(jobs, nodes), now)
        front = nsga2.search(
            problem, np.array(begin, np.int16), POPULATION, self._generations, self._random
        )
        self._front = [
            {job.name: row for job, row in zip(jobs, state, strict=True)} for state in front.states
        ]
        best_JN = front.states[front.costs_P2[:, 0].argmin()]
        return {job.name: _given(row, nodes) for job, row in zip(jobs, best_JN, strict=True)}

    def _speedups(self, jobs: Sequence[Job], nodes: Sequence[Node]) -> Floats:
        """Return each job's speed over that on its fair share: [job, nodes > 1, workers]."""
        gpus = int(sum(node.free.gpu for node in nodes))
        fair = math.ceil(gpus / len(jobs))
        tables = {}
        for job in jobs:
            speed, table = self._tables.get(job.name, (None, None))
            if speed is not job.speed or table is None:
                table = np.array(
                    [[job.speed(Shape(n, 0, min(n, k))) for n in range(gpus + 1)] for k in (1, 2)]
                )
            tables[job.name] = job.speed, table
        self._tables = tables
        found = np.stack([tables[job.name][1] for job in jobs])
        return found / found[:, :1, fair, None]


def _given(row_N: NDArray[np.int16], nodes: Sequence[Node]) -> Given:
    workers_on = {node.name: int(n) for node, n in zip(nodes, row_N, strict=True) if n}
    shape = Shape(sum(workers_on.values()), 0, len(workers_on))
    return Given(shape, "the fittest state that the search found", workers_on)


class _Problem:
    """The costs of states, and the operators on them."""

    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: Sequence[Node],
        base_JN: States,
        speedups: Floats,
        now: float,
    ) -> None:
        self._base_JN = base_JN
        self._speedups = speedups
        self._room_N = np.array([node.free.gpu for node in nodes], np.int16)
        self._maximum_J = np.array([job.maximum for job in jobs])
        age_J = now - np.array([job.submitted for job in jobs])
        delay_J = np.array([job.resize_s for job in jobs])
        lost_J = np.array([job.resizes for job in jobs]) * delay_J
        self._kept_J = np.maximum(age_J - lost_J, 0) / (age_J + delay_J)  # of a speedup, if moved
        self._node_share = 1 / len(nodes)  # of the cluster

    def costs(self, states: States) -> Floats:
        """Return [state, (-fitness, -utility)]."""
        nodes_PJ, workers_PJ = np.count_nonzero(states, axis=2), states.sum(axis=2)
        jobs = np.arange(states.shape[1])
        speedup_PJ = self._speedups[jobs, (nodes_PJ > 1) * 1, workers_PJ]
        in_use_P = (states.any(axis=1) * self._room_N).sum(axis=1)
        utility_P = speedup_PJ.sum(axis=1) / np.maximum(in_use_P, 1)
        # A speedup of 1 is that of one node: of a share of the cluster as large as a node's.
        share = 1 / (self._room_N.sum() * self._node_share)
        moved_PJ = (states != self._base_JN).any(axis=2)
        scaled_PJ = speedup_PJ * share * np.where(moved_PJ, self._kept_J, 1)
        fitness_P = ((scaled_PJ + _LEAST) ** _EXPONENT).mean(axis=1) ** (1 / _EXPONENT)
        return -np.stack([fitness_P, utility_P], axis=1)

    def cross(self, first: States, second: States, random: np.random.Generator) -> States:
        """Return two children of each pair: their jobs before a point are exchanged."""
        jobs = first.shape[1]
        points = random.integers(jobs, size=len(first))
        before = (np.arange(jobs) < points[:, None])[:, :, None]
        return np.concatenate([np.where(before, second, first), np.where(before, first, second)])

    def mutate(self, states: States, random: np.random.Generator) -> States:
        """Return states with some rows put back, some elements emptied, some raised."""
        back = random.random(states.shape[:2]) < 0.1
        states = np.where(back[:, :, None], self._base_JN, states)
        rows = np.nonzero(random.random(states.shape[:2]) < 0.1)
        emptied = random.random((len(rows[0]), states.shape[2])) < 0.1
        states[rows] = np.where(emptied, 0, states[rows])
        # Where one more fits: about one job a node, and one more of those that it has already.
        fits_PJN = np.broadcast_to((states.sum(axis=1) < self._room_N)[:, None], states.shape)
        held_PJN = fits_PJN & (states > 0)
        by_fit = fits_PJN / states.shape[1]
        by_held = held_PJN / np.maximum(held_PJN.sum(axis=1, keepdims=True), 1)
        raised = np.nonzero(random.random(states.shape) < by_fit + by_held - by_fit * by_held)
        states[raised] = random.integers(states[raised], self._room_N[raised[2]] + 1)
        return states

    def repair(self, states: States, random: np.random.Generator) -> States:
        """Return valid states. Where jobs contend, those that come first keep theirs."""
        spans_PJ = np.count_nonzero(states, axis=2) > 1
        meets_PJN = ((states > 0) & spans_PJ[:, :, None]).cumsum(axis=1, dtype=np.int16) > 1
        states = np.where(meets_PJN & spans_PJ[:, :, None], 0, states)
        above = np.nonzero(states.sum(axis=2) > self._maximum_J)
        if len(above[0]):  # on which of its nodes is drawn
            rows_RN = states[above]
            order_RN = random.random(rows_RN.shape).argsort(axis=1)
            rows_RN = np.take_along_axis(rows_RN, order_RN, axis=1)
            rows_RN = _cut(rows_RN, self._maximum_J[above[1], None], axis=1)
            states[above] = np.take_along_axis(rows_RN, order_RN.argsort(axis=1), axis=1)
        return _cut(states, self._room_N, axis=1)


def _cut(values: States, most: NDArray[np.integer], axis: int) -> States:
    """Return the values, those along the axis cut where their sum would exceed the most."""
    sums = np.minimum(values.cumsum(axis=axis, dtype=np.int16), most)
    return np.diff(sums, axis=axis, prepend=0).astype(np.int16)
