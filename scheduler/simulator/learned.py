"""The speed that a job has learned of itself, as a real one does: fitted to what it measured.

Jobs of one application often measure the same: what was fitted, and which batch was best, is
remembered for all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from ...goodput import GoodputFunction, GradParams, PerfParams, fit_perf_params
from ...goodput.speedup import best_goodput
from ..jobs import Shape
from .application import Traced

# By nodes, replicas, local batch: s of a pass that only accumulates, s of one that synchronises.
Measured = Mapping[tuple[int, int, int], tuple[float, float]]
Batch = tuple[int, int]  # what a replica computes at once, and passes before the last of a step

_FIRST_SIZE = 8  # replicas of which the speeds are predicted at once


class Speeds:
    """The speed that a job predicts of itself: useful records a second, by shape."""

    def __init__(self, application: Traced, perf: PerfParams, grad: GradParams) -> None:
        """Take the model, and the bounds of the application."""
        low, high = application.local_range
        self._bounds = application.batch_range[1], (low, high), True
        self._goodput = GoodputFunction(perf, grad, application.batch_range[0])
        self._rows: list[list[float]] = [[], []]  # on one node, on several: by replicas

    def __call__(self, shape: Shape) -> float:
        """Return the goodput with the best batch."""
        while shape.workers >= len(self._rows[0]):
            size = max(_FIRST_SIZE, 2 * len(self._rows[0]))
            self._rows = best_goodput(self._goodput, size, *self._bounds).tolist()
        return self._rows[shape.nodes > 1][shape.workers]

    def best_batch(self, nodes: int, replicas: int) -> Batch:
        """Return the batch with which it is the fastest there."""
        _, local, accum = self._goodput.optimize(nodes, replicas, *self._bounds)
        return local, accum


class Learning:
    """The fits and the choices of all jobs of an application.

    `last`: what a job of it has measured, and predicts; None: no job has, or nobody remembers.
    """

    def __init__(self, application: Traced, remembers: bool = False) -> None:
        """Begin with none. `remembers`: new jobs may know what the last one has learned."""
        self._application = application
        self._remembers = remembers
        self.last: tuple[Measured, Speeds] | None = None
        self._speeds = functools.cache(functools.partial(Speeds, application))
        self._best = functools.cache(Speeds.best_batch)

    def speeds(self, measured: Measured, grad: GradParams) -> Speeds:
        """Return the speeds as a job predicts them that has measured this: at least one time."""
        return self._speeds(_fitted(frozenset(measured.items())), grad)

    def report(self, measured: Measured, speeds: Speeds) -> None:
        """Take what a job has learned."""
        if self._remembers:
            self.last = measured, speeds

    def batch(self, speeds: Speeds | None, nodes: int, replicas: int) -> Batch:
        """Return the batch that a job would choose there. None: it has measured nothing yet."""
        application = self._application
        least, most = application.batch_range
        low, high = application.local_range
        if speeds is None or application.batch is not None:
            total = application.batch or max(least, low * replicas)
            share = math.ceil(total / replicas)
            accum = math.ceil(share / high) - 1
            if replicas == 1 and total > least:  # one pass alone would not tell the noise
                accum = max(accum, 1)
            local = math.ceil(share / (accum + 1))
        else:
            local, accum = self._best(speeds, nodes, replicas)
        return min(local, most // (replicas * (accum + 1))), accum


@functools.lru_cache(1 << 16)
def _fitted(measured: frozenset[tuple[tuple[int, int, int], tuple[float, float]]]) -> PerfParams:
    rows = [(*where, *times) for where, times in sorted(measured)]
    return fit_perf_params(*zip(*rows, strict=True))
