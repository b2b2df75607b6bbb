"""Play a workload on a cluster: jobs come, a policy places them, they run to their ends. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..cluster import Node, Resources
from ..jobs import Job, Plan
from .application import Traced
from .learned import Learning
from .result import Outcome, Result
from .running import Running
from .workload import Arrival

Planner = Callable[[Sequence[Job], Sequence[Node], float], Plan]  # a policy's `plan`

IDLE_S = 86_400  # after which a policy that serves nobody is given up
KNOWN = ("none", "stated", "exact")  # what the policy may know of what is left


@dataclass(frozen=True)
class Rules:
    """How it is played. The defaults are those of Pollux's authors."""

    every_s: float = 60.0  # the policy is asked so often,
    by_events: bool = False  # and also when a job comes or ends
    restart_s: float = 30.0  # a job that is placed anew waits so long, and holds its GPUs
    interference: float = 0.0  # share of its speed that a job on several nodes loses to another
    history: bool = False  # a new job knows what the last of its application has measured
    known: str = "none"  # among KNOWN
    error: float = 0.3  # sigma of the logarithm of the epochs stated over the true ones
    seed: int = 0  # of these errors


def cluster(nodes: int = 16, gpus: int = 4) -> list[Node]:
    """Return a cluster of nodes that are alike."""
    width = len(str(nodes - 1))
    return [Node(f"node-{number:0{width}}", Resources(gpu=gpus)) for number in range(nodes)]


def play(
    arrivals: Sequence[Arrival],
    applications: Mapping[str, Traced],
    nodes: Sequence[Node],
    planner: Planner,
    rules: Rules,
    cpu_clock: Callable[[], float],
) -> Result:
    """Play until all jobs have ended.

    `arrivals`: ascending by time. `cpu_clock` tells the CPU seconds of this process.

    Raises ValueError for a plan that gives more GPUs of a node than it has, or a job more than its
    maximum or less than its minimum, and where it serves nobody for a day.
    """
    return _Play(arrivals, applications, nodes, planner, rules, cpu_clock).run()


class _Play:
    def __init__(
        self,
        arrivals: Sequence[Arrival],
        applications: Mapping[str, Traced],
        nodes: Sequence[Node],
        planner: Planner,
        rules: Rules,
        cpu_clock: Callable[[], float],
    ) -> None:
        self._nodes, self._planner, self._rules, self._clock = nodes, planner, rules, cpu_clock
        self._room = {node.name: int(node.free.gpu) for node in nodes}
        self._coming = _running(arrivals, applications, rules)
        self._all = tuple(self._coming)
        self._present: list[Running] = []
        self._gpus: list[tuple[float, int]] = [(0.0, 0)]
        self._periods = 0
        self._plans = 0
        self._idle_since = 0.0
        self._policy_cpu_s = 0.0

    def run(self) -> Result:
        now = 0.0
        while self._coming or self._present:
            until = self._next(now)
            for job in self._present:
                job.advance(now, until)
            now = until
            self._note_ends()
            self._admit(now)
            if self._present:
                self._plan(now)
        ended = [(job, job.ended) for job in self._all if job.ended is not None]
        outcomes = (
            Outcome(job.arrival.name, job.arrival.submitted, end, job.restarts, job.gpu_s)
            for job, end in ended
        )
        return Result(tuple(outcomes), tuple(self._gpus), self._plans, self._policy_cpu_s)

    def _next(self, now: float) -> float:
        """Return when the policy is asked again."""
        if now >= self._periods * self._rules.every_s:
            self._periods += 1
        until = self._periods * self._rules.every_s
        if not self._rules.by_events:
            return until
        if self._coming:
            until = min(until, self._coming[0].arrival.submitted)
        ends = (job.end_by(now, until) for job in self._present)
        return min([until, *(end for end in ends if end is not None)])

    def _note_ends(self) -> None:
        ended = [(job.ended, job) for job in self._present if job.ended is not None]
        for end, job in sorted(ended, key=lambda pair: pair[0]):
            self._use(end, -sum(job.workers_on.values()))
        self._present = [job for job in self._present if job.ended is None]

    def _admit(self, now: float) -> None:
        count = sum(job.arrival.submitted <= now for job in self._coming)
        self._present += self._coming[:count]
        del self._coming[:count]

    def _use(self, now: float, more: int) -> None:
        if more:
            self._gpus.append((now, self._gpus[-1][1] + more))

    def _plan(self, now: float) -> None:
        jobs = [job.job(sum(self._room.values())) for job in self._present]
        begun = self._clock()
        plan = self._planner(jobs, self._nodes, now)
        self._policy_cpu_s += self._clock() - begun
        self._plans += 1
        _check(plan, jobs, self._room)
        before = self._gpus[-1][1]
        for running, job in zip(self._present, jobs, strict=True):
            workers_on = plan[job.name].workers_on
            running.place({node: n for node in self._room if (n := workers_on.get(node, 0))}, now)
        self._interfere()
        after = sum(sum(job.workers_on.values()) for job in self._present)
        self._use(now, after - before)
        if after or self._coming:
            self._idle_since = now
        elif now - self._idle_since > IDLE_S:
            raise ValueError(f"the policy has given nobody anything for {IDLE_S:,} s")

    def _interfere(self) -> None:
        """Slow down the jobs that span nodes where another does that they share a node with."""
        spanning = [job for job in self._present if len(job.workers_on) > 1]
        there = Counter(node for job in spanning for node in job.workers_on)
        for job in self._present:
            meets = job in spanning and any(there[node] > 1 for node in job.workers_on)
            job.lost = self._rules.interference if meets else 0.0


def _running(
    arrivals: Sequence[Arrival], applications: Mapping[str, Traced], rules: Rules
) -> list[Running]:
    """Return the jobs as they come, each with the end that its user states, if any."""
    learning = {name: Learning(each, rules.history) for name, each in applications.items()}
    errors = np.random.default_rng(rules.seed).normal(0, rules.error, len(arrivals))
    jobs = []
    for arrival, error in zip(arrivals, errors.tolist(), strict=True):
        application = applications[arrival.application]
        factor = math.exp(error) if rules.known == "stated" else 1.0
        end = application.end_of(application.epochs - 1) * factor
        stated = None if rules.known == "none" else end
        jobs.append(
            Running(arrival, application, learning[arrival.application], rules.restart_s, stated)
        )
    return jobs


def _check(plan: Plan, jobs: Sequence[Job], room: Mapping[str, int]) -> None:
    used: Counter[str] = Counter()
    for job in jobs:
        workers_on = plan[job.name].workers_on
        used.update(workers_on)
        count = sum(workers_on.values())
        if min(workers_on.values(), default=0) < 0 or (
            count and not job.minimum <= count <= job.maximum
        ):
            raise ValueError(
                f"{job.name} may have from {job.minimum} to {job.maximum} workers, or none, not "
                f"{dict(workers_on)}"
            )
    for node, count in used.items():
        if count > room.get(node, 0):
            raise ValueError(f"{node} has {room.get(node, 0)} GPUs, the plan gives {count} of it")
