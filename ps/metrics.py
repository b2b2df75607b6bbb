"""What a server tells Prometheus: its own registry, names of the `edl_ps_` family."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .small import NANOSECONDS, NBYTES
from .store import Outcome, Pushed, Store

_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_SMALL = ("Pull", "OK")  # what compiled code answers

Ints = NDArray[np.int64]


class Calls(Collector):
    """Calls served, by method, status and time, and the bytes that came with them.

    What compiled code counts (small.py) is read where it stands: a histogram of prometheus_client
    can be told of one call at a time only.
    """

    def __init__(self) -> None:
        self._bounds_ns = [int(bound * 1e9) for bound in _BOUNDS_S]
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, str], Ints] = {_SMALL: self._zeros()}
        self._compiled: list[Ints] = []

    def _zeros(self) -> Ints:
        return np.zeros(len(_BOUNDS_S) + 3, np.int64)  # by bucket; nanoseconds; bytes

    def observe(self, method: str, code: str, seconds: float, nbytes: int = 0) -> None:
        took = int(seconds * 1e9)
        with self._lock:
            counted = self._counted.setdefault((method, code), self._zeros())
            counted[bisect_left(self._bounds_ns, took)] += 1
            counted[NANOSECONDS] += took
            counted[NBYTES] += nbytes

    def begin_compiled(self) -> tuple[Ints, Ints]:
        """Bounds of the buckets, in ns, and the counters of one connection until `end_compiled`."""
        counters = self._zeros()
        with self._lock:
            self._compiled.append(counters)
        return np.array(self._bounds_ns), counters

    def end_compiled(self, counters: Ints) -> None:
        with self._lock:
            self._compiled = [each for each in self._compiled if each is not counters]
            self._counted[_SMALL] += counters

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counted = {key: mine.copy() for key, mine in self._counted.items()}
            for counters in self._compiled:
                counted[_SMALL] += counters
        name, text = "edl_ps_rpc_duration_seconds", "Time to serve a call."
        times = HistogramMetricFamily(name, text, labels=["method", "code"])
        for key, mine in counted.items():
            calls = np.cumsum(mine[:NANOSECONDS])
            if calls[-1]:
                bounds = [*map(floatToGoString, _BOUNDS_S), "+Inf"]
                buckets = list(zip(bounds, map(float, calls), strict=True))
                times.add_metric(key, buckets, mine[NANOSECONDS] / 1e9)
        yield times
        nbytes = float(sum(mine[NBYTES] for mine in counted.values()))
        text = "Bytes of pushes and pulls received."
        yield CounterMetricFamily("edl_ps_bytes_received", text, value=nbytes)


class Metrics:
    """The figures of one shard."""

    def __init__(self, shard: int) -> None:
        self.registry = registry = CollectorRegistry()
        self._shard = str(shard)
        self.calls = Calls()
        registry.register(self.calls)
        self.staleness = Histogram(
            "edl_ps_gradient_staleness_steps",
            "Versions by which an applied push lagged.",
            registry=registry,
            buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
        )
        pushes = Counter("edl_ps_pushes", "Pushes by outcome.", ["outcome"], registry=registry)
        self._pushes = {outcome: pushes.labels(outcome.name.lower()) for outcome in Outcome}
        self.duplicates = Counter(
            "edl_ps_duplicate_pushes", "Pushes repeated after a lost reply.", registry=registry
        )
        self._rows = Gauge(
            "edl_ps_embedding_rows", "Rows of a table.", ["table", "shard"], registry=registry
        )
        self._memory = Gauge(
            "edl_ps_memory_bytes", "Parameters and state.", ["shard"], registry=registry
        )
        self._version = Gauge("edl_ps_version", "Version.", ["shard"], registry=registry)

    def pushed(self, pushed: Pushed) -> None:
        """Count a push, whatever carried it."""
        self._pushes[pushed.outcome].inc()
        if pushed.outcome is Outcome.APPLIED:
            self.staleness.observe(pushed.staleness)
        elif pushed.outcome is Outcome.DUPLICATE:
            self.duplicates.inc()

    def observe(self, store: Store) -> None:
        """Take the sizes of now."""
        _, rows, nbytes = store.sizes()
        for table, count in rows.items():
            self._rows.labels(table, self._shard).set(count)
        self._memory.labels(self._shard).set(nbytes)
        self._version.labels(self._shard).set(store.version)
