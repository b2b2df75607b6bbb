"""The metrics of a server of models, for Prometheus."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ANSWERED = "answered"


class Metrics:
    """The counts of a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "edl_serve_requests",
            "Requests by how they ended.",
            ["model", "version", "outcome"],
            **own,
        )
        self.seconds = Histogram(
            "edl_serve_request_seconds",
            "From a request to its answer.",
            ["model"],
            buckets=_SECONDS,
            **own,
        )
        self.computing = Histogram(
            "edl_serve_batch_seconds", "Computing a batch.", ["model"], buckets=_SECONDS, **own
        )
        self.batches = Histogram(
            "edl_serve_batch_rows", "Rows of a batch.", ["model"], buckets=_ROWS, **own
        )
        self.queued = Gauge("edl_serve_queued_rows", "Rows that wait.", ["model"], **own)
        self.ready = Gauge("edl_serve_ready", "1: a whole model answers.", ["model"], **own)
        self.swaps = Counter("edl_serve_swaps", "Versions that were begun with.", ["model"], **own)
        self.failures = Counter(
            "edl_serve_load_failures", "Versions that could not be opened.", ["model"], **own
        )
        self.version = Gauge(
            "edl_serve_version",
            "1: the version that answers by default.",
            ["model", "version"],
            **own,
        )
        self.age = Gauge(
            "edl_serve_cut_age_seconds", "Since what answers was written.", ["model"], **own
        )

    def of(self, model: str, queued: Callable[[], float], about: Callable[[], Any]) -> ModelMetrics:
        """Return the counts of a model. `about`: of what answers by default, or None."""
        self.queued.labels(model).set_function(queued)
        self.ready.labels(model).set_function(lambda: float(about() is not None))
        self.age.labels(model).set_function(lambda: _age(about() or {}))
        return ModelMetrics(self, model)


def _age(about: dict[str, Any]) -> float:
    try:
        created = datetime.datetime.fromisoformat(str(about.get("created", "")))
    except ValueError:
        return float("nan")
    if created.tzinfo is None:
        created = created.replace(tzinfo=datetime.UTC)
    return max(0.0, time.time() - created.timestamp())


class ModelMetrics:
    """The counts of a model; the children are kept, since to look one up takes long."""

    def __init__(self, all_: Metrics, model: str) -> None:
        self._all, self._model = all_, model
        self._seconds = all_.seconds.labels(model)
        self._computing = all_.computing.labels(model)
        self._batches = all_.batches.labels(model)
        self._swaps = all_.swaps.labels(model)
        self._failures = all_.failures.labels(model)
        self._outcomes: dict[tuple[str, str], Counter] = {}

    def ended(self, version: str, outcome: str, took_s: float) -> None:
        """Count a request."""
        key = version, outcome
        counter = self._outcomes.get(key)
        if counter is None:
            counter = self._outcomes[key] = self._all.requests.labels(self._model, *key)
        counter.inc()
        self._seconds.observe(took_s)

    def computed(self, rows: int, took_s: float) -> None:
        """Count a batch."""
        self._batches.observe(rows)
        self._computing.observe(took_s)

    def swapped(self, before: str, now: str) -> None:
        """Count a version that answers from now on."""
        if before:
            self._all.version.labels(self._model, before).set(0)
        self._all.version.labels(self._model, now).set(1)
        self._swaps.inc()

    def failed(self) -> None:
        """Count a version that could not be opened."""
        self._failures.inc()
