"""The report of a job: what a scheduler must know of it, by one versioned schema. Pure.

A report stands as JSON values in the status of every job (docs/reports.md says what each field
means). `write` makes them, `read` takes those of its own version, and of those before it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from .errors import ReportError

VERSION = 2
_READ = (1, VERSION)  # a report of version 1 is one of version 2 without phases and servers_model

Json = Any  # what the json module reads and writes


@dataclass(frozen=True, order=True)
class Configuration:
    """A way to run a job. `minibatch`: records; 0 where nobody knows."""

    servers: int
    workers: int
    nodes: int  # that the workers are on
    minibatch: int


@dataclass(frozen=True)
class Phases:
    """The times of a minibatch of a worker whose model is on servers, in the mean of so many.

    `share`: of all that is pushed, the part that goes to the server which gets the most.
    """

    minibatches: int
    data_s: float  # waited for the next minibatch
    compute_s: float
    pull_s: float
    push_s: float
    share: float


@dataclass(frozen=True)
class Sample(Configuration):
    """The throughput that was measured in one configuration, in `looks` spans of time together."""

    records_per_s: float
    seconds: float
    looks: int
    phases: Phases | None = None


@dataclass(frozen=True)
class StepTimes:
    """The parameters of a step's time, in the order of goodput's PerfParams: seconds, but gamma."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


@dataclass(frozen=True)
class Model:
    """The fitted model of a job whose minibatch follows the goodput (goodput/model.py).

    Batches are records; `local_batch`: most of one pass of a worker, None: no bound.
    """

    step: StepTimes
    noise_sqr: float  # of the gradient at the initial batch: its squared length,
    noise_var: float  # and its variance
    initial_batch: int
    largest_batch: int
    local_batch: int | None


@dataclass(frozen=True)
class ServersModel:
    """The fitted model of a job on servers: the fields of goodput's ServersParams, by name."""

    own_s: float
    own_record_s: float
    crowding: float
    trip_s: float
    trip_server_s: float
    trip_record_s: float
    serve_s: float
    serve_record_s: float
    hot: float
    hidden: float
    queueing: float


@dataclass(frozen=True)
class Resize:
    """The seconds that the last changes of the number of workers, or servers, cost in the mean."""

    workers: float | None = None
    servers: float | None = None


@dataclass(frozen=True)
class Bounds:
    """The least and the most of something that a job may be given, where it says so."""

    minimum: int | None = None
    maximum: int | None = None


@dataclass(frozen=True)
class Report:
    """A job as a scheduler sees it. None: there is no such thing, or nobody knows."""

    version: int
    records_left: int | None
    records_total: int | None
    epochs: int | None
    samples: tuple[Sample, ...]
    model: Model | None
    resize: Resize
    workers: Bounds
    nodes: Bounds
    priority: str | None
    nearly_done: bool
    suspended: bool
    servers_model: ServersModel | None = None


def write(report: Report) -> dict[str, Json]:
    """Return the report as JSON values, with null for None."""
    return typing.cast("dict[str, Json]", _plain(report))


def compact(values: Json) -> Json:
    """Return JSON values without what is null in an object: `read` takes them for the same.

    In a merge patch null says that a field goes away, so the API of Kubernetes keeps none.
    """
    if isinstance(values, dict):
        return {name: compact(each) for name, each in values.items() if each is not None}
    return [compact(each) for each in values] if isinstance(values, list) else values


def read(values: Json) -> Report:
    """Return the report that these values are.

    A field that may be null may be left out. Raises ReportError, which names the field and what
    would be right, where the values are no report of this version or of one before.
    """
    if isinstance(values, dict) and values.get("version") not in _READ:
        numbers = " or ".join(map(str, _READ))
        raise _wrong("report.version", values.get("version"), f"{numbers}, as this edl reads")
    report: Report = _read(Report, values, "report")
    for name in ("workers", "nodes"):
        bounds: Bounds = getattr(report, name)
        low, high = bounds.minimum, bounds.maximum
        if low is not None and high is not None and low > high:
            raise _wrong(f"report.{name}.minimum", low, f"at most the maximum, {high}")
    for i, sample in enumerate(report.samples):
        if sample.phases is not None and sample.phases.share > 1:
            raise _wrong(f"report.samples[{i}].phases.share", sample.phases.share, "at most 1")
    for name in ("hot", "hidden", "queueing") if report.servers_model is not None else ():
        if (value := getattr(report.servers_model, name)) > 1:
            raise _wrong(f"report.servers_model.{name}", value, "at most 1")
    return report


def _plain(value: Any) -> Json:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if type(value) in _TYPES:
        return {name: _plain(each) for name, each in vars(value).items()}
    return value


def _wrong(where: str, value: object, right: str) -> ReportError:
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return ReportError(f"{where} is {text}: it must be {right}.")


_PLAIN = {
    bool: "true or false",
    int: "a whole number from 0 on",
    float: "a finite number from 0 on",
    str: "a text",
}


# The types of the fields of each object in a report, by name.
_TYPES = {
    kind: typing.get_type_hints(kind)
    for kind in (Report, Sample, Phases, Model, StepTimes, ServersModel, Resize, Bounds)
}


def _is_optional(kind: Any) -> bool:
    return typing.get_origin(kind) is types.UnionType


def _read(kind: Any, value: Json, where: str) -> Any:
    """Return the value of this type that stands there. Raises ReportError."""
    if _is_optional(kind):
        (of,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        return None if value is None else _read(of, value, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        of = typing.get_args(kind)[0]
        return tuple(_read(of, each, f"{where}[{i}]") for i, each in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _read_object(typing.cast("type[Any]", kind), value, where)
    if not _is_plain(kind, value):
        raise _wrong(where, value, _PLAIN[kind])
    return kind(value)


def _read_object(kind: type[Any], value: Json, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    fields = _TYPES[kind]
    if unknown := sorted(str(name) for name in value.keys() - fields.keys()):
        raise ReportError(
            f"{where}.{unknown[0]} is no field of a report of version {VERSION}: there are "
            f"{', '.join(fields)}."
        )
    for name, of in fields.items():
        if name not in value and not _is_optional(of):
            raise ReportError(f"{where}.{name} is missing: it must be {_told(of)}.")
    return kind(**{n: _read(of, value.get(n), f"{where}.{n}") for n, of in fields.items()})


def _told(kind: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "an object"
    return "a list" if typing.get_origin(kind) is tuple else _PLAIN[kind]


def _is_plain(kind: Any, value: Json) -> bool:
    if type(value) is int and kind in (int, float):
        return 0 <= value < 1 << 63
    if kind is float:
        return type(value) is float and math.isfinite(value) and value >= 0
    return type(value) is kind
