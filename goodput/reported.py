"""The model of a job on servers, out of a report's samples and back (common/report.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..common.report import Sample, ServersModel
from .servers import ServersParams, ServersPoint, fit_servers_params

_LEAST = 8  # minibatches: fewer tell of their start


def servers_points(samples: Sequence[Sample]) -> list[ServersPoint]:
    """Return a point for each sample that has phases of enough minibatches.

    How the load is spread is left for the fit to find: bytes of dense tensors, of which all may be
    on one server, take a server less than bytes of rows.
    """
    points = []
    for sample in samples:
        phases = sample.phases
        if phases is None or phases.minibatches < _LEAST or not sample.records_per_s:
            continue
        own_s, exchange_s = phases.data_s + phases.compute_s, phases.pull_s + phases.push_s
        if not sample.minibatch or not sample.servers or not own_s or not exchange_s:
            continue
        points.append(
            ServersPoint(
                workers=sample.workers,
                servers=sample.servers,
                minibatch=sample.minibatch,
                records_per_s=sample.records_per_s,
                data_s=phases.data_s,
                compute_s=phases.compute_s,
                pull_s=phases.pull_s,
                push_s=phases.push_s,
            )
        )
    return points


def fitted(points: Sequence[ServersPoint]) -> ServersModel:
    """Return the model that explains the points best, as a report has it.

    Raises ValueError for no point, and for one that cannot be. The first call takes a second.
    """
    return ServersModel(**asdict(fit_servers_params(points)))


def params_of(model: ServersModel) -> ServersParams:
    """Return the model that predicts. Raises ValueError for parameters that no job can have."""
    return ServersParams(**vars(model))
