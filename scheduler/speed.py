"""How fast a job would be with what it might be given, by what its report says. Pure."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..common.report import Model, Report
from ..goodput import GoodputFunction, GradParams, PerfParams
from .jobs import Shape, Speed

_FARTHER = 2  # times as many workers as were ever seen are believed to be as much faster, no more


def speed_of(report: Report | None) -> tuple[Speed, bool]:
    """Return the predicted goodput of a job, records/s, and whether anything is known of it.

    By the model that it has fitted itself; else by the throughput that was measured, in between
    lines, and beyond it what its workers had each (Pollux, OSDI '21, section 4.1: a job is tried
    with at most twice as many as it has ever had); without either a job is as fast as it has
    workers, in units that mean nothing.
    """
    if report is not None and report.model is not None:
        return _by_model(report.model), True
    measured = _by_samples(report) if report is not None else None
    return (measured, True) if measured is not None else (unknown_speed, False)


def served_s(report: Report | None) -> float:
    """Return the worker-seconds that a job has trained for, as far as it is known."""
    return sum(each.seconds * each.workers for each in report.samples) if report else 0.0


def _by_model(model: Model) -> Speed:
    goodput = GoodputFunction(
        PerfParams(**vars(model.step)),
        GradParams(model.noise_sqr, model.noise_var),
        model.initial_batch,
    )
    batches = (model.largest_batch, (None, model.local_batch), True)

    def speed(shape: Shape) -> float:
        if not shape.workers:
            return 0.0
        nodes = min(max(shape.nodes, 1), shape.workers)
        return float(goodput.optimize(nodes, shape.workers, *batches)[0])

    return speed


def _by_samples(report: Report) -> Speed | None:
    seconds: dict[int, float] = defaultdict(float)
    records: dict[int, float] = defaultdict(float)
    for sample in report.samples:
        if sample.workers and sample.seconds:
            seconds[sample.workers] += sample.seconds
            records[sample.workers] += sample.seconds * sample.records_per_s
    if not seconds:
        return None
    known = sorted(seconds)
    rates = [records[workers] / seconds[workers] for workers in known]
    points = [0, *known, _FARTHER * known[-1]]
    values = [0.0, *rates, rates[-1] * _FARTHER]
    return lambda shape: float(np.interp(shape.workers, points, values))


def unknown_speed(shape: Shape) -> float:
    """Return the speed of a job of which nothing is known: as many workers, so fast."""
    return float(shape.workers)
