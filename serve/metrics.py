"""The metrics of a server of models, for Prometheus."""

from __future__ import annotations

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
            "edl_serve_requests", "Requests by how they ended.", ["model", "outcome"], **own
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
        self.ready = Gauge(
            "edl_serve_ready", "1: a whole model answers, and is fresh enough.", ["model"], **own
        )
        self.swaps = Counter("edl_serve_swaps", "Versions that were begun with.", ["model"], **own)
        self.failures = Counter(
            "edl_serve_load_failures", "Versions that could not be opened.", ["model"], **own
        )
        self.version = Gauge(
            "edl_serve_version", "The version that answers by default.", ["model"], **own
        )
        self.age = Gauge(
            "edl_serve_cut_age_seconds", "Since what answers was written.", ["model"], **own
        )

    def of(
        self,
        model: str,
        *,
        queued: Callable[[], float],
        ready: Callable[[], float],
        version: Callable[[], float],
        age: Callable[[], float],
    ) -> ModelMetrics:
        """Return the counts of a model; the arguments tell what is so now.

        No label is a version: of a job that is followed there are thousands a day.
        """
        self.queued.labels(model).set_function(queued)
        self.ready.labels(model).set_function(ready)
        self.version.labels(model).set_function(version)
        self.age.labels(model).set_function(age)
        return ModelMetrics(self, model)


class ModelMetrics:
    """The counts of a model; the children are kept, since to look one up takes long."""

    def __init__(self, all_: Metrics, model: str) -> None:
        self._all, self._model = all_, model
        self._seconds = all_.seconds.labels(model)
        self._computing = all_.computing.labels(model)
        self._batches = all_.batches.labels(model)
        self._swaps = all_.swaps.labels(model)
        self._failures = all_.failures.labels(model)
        self._outcomes: dict[str, Counter] = {}

    def ended(self, outcome: str, took_s: float) -> None:
        """Count a request."""
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self._all.requests.labels(self._model, outcome)
        counter.inc()
        self._seconds.observe(took_s)

    def computed(self, rows: int, took_s: float) -> None:
        """Count a batch."""
        self._batches.observe(rows)
        self._computing.observe(took_s)

    def swapped(self) -> None:
        """Count a version that answers from now on."""
        self._swaps.inc()

    def failed(self) -> None:
        """Count a version that could not be opened."""
        self._failures.inc()
