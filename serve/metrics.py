"""The metrics of a server of models, for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ANSWERED = "answered"


@dataclass
class Spent:
    """The time of so many events."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count events, which took so long together."""
        self.count += count
        self.ns += round(seconds * 1e9)


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
        now: Callable[[], float] = time.time,
    ) -> ModelMetrics:
        """Return the counts of a model; the arguments tell what is so now. `now`: since 1970.

        No label is a version: of a job that is followed there are thousands a day.
        """
        self.queued.labels(model).set_function(queued)
        self.ready.labels(model).set_function(ready)
        self.version.labels(model).set_function(version)
        self.age.labels(model).set_function(age)
        return ModelMetrics(self, model, now)


class ModelMetrics:
    """The counts of a model; the children are kept, since to look one up takes long."""

    def __init__(self, all_: Metrics, model: str, now: Callable[[], float]) -> None:
        self._all, self._model, self._now = all_, model, now
        self._lock = threading.Lock()  # of the sums below
        self._success, self._fail, self._queue, self._compute = (Spent() for _ in range(4))
        self._rows = self._executions = self._last_ms = 0
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
        with self._lock:
            (self._success if outcome == ANSWERED else self._fail).add(took_s)

    def computed(self, rows: int, took_s: float, requests: int, waited_s: float) -> None:
        """Count a batch of so many requests, which have waited for so long together."""
        self._batches.observe(rows)
        self._computing.observe(took_s)
        with self._lock:
            self._rows += rows
            self._executions += 1
            self._queue.add(waited_s, requests)
            self._compute.add(took_s * requests, requests)  # each has waited for all of it
            self._last_ms = int(self._now() * 1000)

    def statistics(self) -> dict[str, Any]:
        """Return the sums since the begin, in all versions, by the words of Triton's statistics.

        Reading a request and writing its answer are in the time of a success, not measured alone.
        """
        with self._lock:
            spent = {
                "success": self._success,
                "fail": self._fail,
                "queue": self._queue,
                "compute_input": Spent(),
                "compute_infer": self._compute,
                "compute_output": Spent(),
            }
            return {
                "last_inference": self._last_ms,
                "inference_count": self._rows,
                "execution_count": self._executions,
                "inference_stats": {name: asdict(each) for name, each in spent.items()},
            }

    def swapped(self) -> None:
        """Count a version that answers from now on."""
        self._swaps.inc()

    def failed(self) -> None:
        """Count a version that could not be opened."""
        self._failures.inc()
