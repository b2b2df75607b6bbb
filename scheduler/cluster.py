"""The machines that jobs may be given: nodes, and what is free on each. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """Amounts of what pods ask for, and nodes have."""

    cpu: float = 0.0  # cores
    memory: float = 0.0  # bytes
    gpu: float = 0.0  # devices

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu + other.cpu, self.memory + other.memory, self.gpu + other.gpu)

    def less(self, other: Resources) -> Resources:
        """Return what is left of it without the other, at least nothing."""
        cpu, memory, gpu = self.cpu - other.cpu, self.memory - other.memory, self.gpu - other.gpu
        return Resources(max(0.0, cpu), max(0.0, memory), max(0.0, gpu))

    def __mul__(self, times: float) -> Resources:
        return Resources(self.cpu * times, self.memory * times, self.gpu * times)

    def share_of(self, total: Resources) -> float:
        """Return the largest of the shares of each resource (the dominant one, Ghodsi 2011)."""
        pairs = ((self.cpu, total.cpu), (self.memory, total.memory), (self.gpu, total.gpu))
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
