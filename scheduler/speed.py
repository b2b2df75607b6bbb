"""How fast a job would be with what it might be given, by what its report says. Pure."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common import report as reports
from ..common.errors import ReportError
from ..common.report import Model, Report, Resize, Sample
from ..goodput import GoodputFunction, GradParams, PerfParams, ServersParams
from ..goodput.reported import fitted, params_of, servers_points
from .jobs import Shape, Speed

_MEASURED_S = 3.0  # of throughput, before what a job has counts as measured
_LONGEST_S = 60.0  # after which it does also without phases of enough minibatches
_FARTHER = 2  # times as many workers, or servers, as were ever seen are tried, no more
_SURE_S = 3.0  # of measured throughput: it is believed, whatever the model says
_DOUBT = 0.98  # of what a model promises beside what was measured: a change must gain something


@dataclass(frozen=True)
class Told:
    """A job's report, and what it says of its speed. `problem`: why the report is ignored."""

    report: Report | None
    speed: Speed
    is_known: bool
    problem: str = ""

    @classmethod
    def by(cls, values: Any) -> Told:
        """Read the report of a status, None where it has none."""
        if values is None:
            return cls(None, *speed_of(None))
        try:
            report = reports.read(values)
            return cls(report, *speed_of(report))
        except (ReportError, ValueError) as error:
            problem = f"has a report that is ignored: {error}"
            return cls(None, *speed_of(None), problem)

    @property
    def left(self) -> float | None:
        """Return the records until the end, None where nobody knows how long these take."""
        return self.report.records_left if self.report is not None and self.is_known else None

    @property
    def is_nearly_done(self) -> bool:
        """Tell whether a change would not pay any more."""
        return self.report is not None and self.report.nearly_done

    @property
    def resize(self) -> Resize:
        """Return what changes have cost."""
        return self.report.resize if self.report is not None else Resize()

    @property
    def served_s(self) -> float:
        """Return the worker-seconds that the job has trained for, as far as it is known."""
        samples = self.report.samples if self.report is not None else ()
        return sum(each.seconds * each.workers for each in samples)

    def is_measured(self, held: Shape) -> bool:
        """Tell whether the throughput of what the job has, and its phases, were measured enough."""
        for sample in self.report.samples if self.report is not None else ():
            is_it = (sample.workers, sample.servers) == (held.workers, held.servers)
            if is_it and sample.seconds >= _MEASURED_S:
                return bool(servers_points([sample])) or sample.seconds >= _LONGEST_S
        return False


def speed_of(report: Report | None) -> tuple[Speed, bool]:
    """Return the predicted goodput of a job, records/s, and whether anything is known of it.

    By the model that it has fitted itself, where it is on servers by what was measured there, and
    elsewhere by the model of its phases; else by the throughput that was measured, in between
    lines, and beyond it what its workers had each; without either a job is as fast as it has
    workers, in units that mean nothing. A job is tried with at most twice as many as it has ever
    had, of workers and of servers (Pollux, OSDI '21, section 4.1). Raises ValueError for a model
    that no job can have.
    """
    if report is not None and report.model is not None:
        return _by_model(report.model), True
    measured = _by_phases(report) or _by_samples(report) if report is not None else None
    return (measured, True) if measured is not None else (unknown_speed, False)


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


def _by_phases(report: Report) -> Speed | None:
    """Return the speed on workers and servers; None where no phases were measured."""
    phased = tuple(sample for sample in report.samples if sample.phases is not None)
    if not servers_points(phased):
        return None
    model = report.servers_model
    params = params_of(model) if model is not None else _fitted(phased)
    last = phased[-1]
    workers = _FARTHER * max(sample.workers for sample in phased)
    servers = _FARTHER * max(sample.servers for sample in phased)
    measured = {
        (sample.workers, sample.servers): sample.records_per_s
        for sample in phased
        if sample.seconds >= _SURE_S and sample.minibatch == last.minibatch
    }

    def speed(shape: Shape) -> float:
        if not shape.workers:
            return 0.0
        place = min(shape.workers, workers), min(shape.servers or last.servers, servers)
        if place in measured:
            return measured[place]
        return float(_DOUBT * params.throughput(*place, last.minibatch))

    return speed


@functools.lru_cache(64)
def _fitted(samples: tuple[Sample, ...]) -> ServersParams:
    return params_of(fitted(servers_points(samples)))


def rates(samples: Iterable[Sample]) -> dict[int, float]:
    """Return the throughput that was measured, records/s in the mean, by workers in their order."""
    seconds: dict[int, float] = defaultdict(float)
    records: dict[int, float] = defaultdict(float)
    for sample in samples:
        if sample.workers and sample.seconds:
            seconds[sample.workers] += sample.seconds
            records[sample.workers] += sample.seconds * sample.records_per_s
    return {workers: records[workers] / seconds[workers] for workers in sorted(seconds)}


def _by_samples(report: Report) -> Speed | None:
    measured = rates(report.samples)
    if not measured:
        return None
    most = max(measured)
    points = [0, *measured, _FARTHER * most]
    values = [0.0, *measured.values(), measured[most] * _FARTHER]
    return lambda shape: float(np.interp(shape.workers, points, values))


def unknown_speed(shape: Shape) -> float:
    """Return the speed of a job of which nothing is known: as many workers, so fast."""
    return float(shape.workers)
