"""The machines that jobs may be given: nodes, and what is free on each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

OTHERS = 4  # kinds of other resources that are planned with; of more kube-scheduler alone decides


@dataclass(frozen=True)
class Resources:
    """Amounts of what pods ask for, and nodes have."""

    cpu: float = 0.0  # cores
    memory: float = 0.0  # bytes
    gpu: float = 0.0  # devices
    pods: float = 0.0  # of which a node takes so many, whatever they ask for
    # Of what else pods ask for (disks, huge pages, other devices), in an order that whoever counts
    # has for all: what is missing at the end is 0.
    others: tuple[float, ...] = ()

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.gpu + other.gpu,
            self.pods + other.pods,
            tuple(mine + theirs for mine, theirs in self._others_beside(other)),
        )

    def less(self, other: Resources) -> Resources:
        """Return what is left of it without the other, at least nothing."""
        return Resources(
            max(0.0, self.cpu - other.cpu),
            max(0.0, self.memory - other.memory),
            max(0.0, self.gpu - other.gpu),
            max(0.0, self.pods - other.pods),
            tuple(max(0.0, mine - theirs) for mine, theirs in self._others_beside(other)),
        )

    def __mul__(self, times: float) -> Resources:
        others = tuple(each * times for each in self.others) if self.others else ()
        cpu, memory, gpu = self.cpu * times, self.memory * times, self.gpu * times
        return Resources(cpu, memory, gpu, self.pods * times, others)

    def _others_beside(self, other: Resources) -> Iterable[tuple[float, float]]:
        if not (self.others or other.others):  # as nearly always; plans add up many
            return ()
        return zip_longest(self.others, other.others, fillvalue=0.0)

    def share_of(self, total: Resources) -> float:
        """Return the largest of the shares of each resource (the dominant one, Ghodsi 2011)."""
        pairs = [
            (self.cpu, total.cpu),
            (self.memory, total.memory),
            (self.gpu, total.gpu),
            (self.pods, total.pods),
            *self._others_beside(total),
        ]
        return max(
            (needs / has if has else math.inf for needs, has in pairs if needs > 0), default=0
        )


@dataclass(frozen=True)
class Node:
    """A machine. `free` is what jobs of ours may have of it: what others have is taken off."""

    name: str
    free: Resources
    kind: str = ""  # nodes of one kind are alike
    market: str = "on-demand"  # or spot
