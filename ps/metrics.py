"""A server's figures for Prometheus: its own registry, names of the `edl_ps_` family."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from .books.answers import Outcome, Pushed
from .books.store import Store
from .wire.pulls import NANOSECONDS, NBYTES

_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_STALENESS = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # versions
_SMALL = ("Pull", "OK")  # what compiled code answers

Ints = NDArray[np.int64]


class Calls(Collector):
    """Calls served, by method, status and time, and the bytes that came with them.

    Pushes by what became of them, and the versions that they lagged.

    Plain integers, because a push waits for its count: those of prometheus_client took a sixth of
    what a server's Python does for it. What compiled code counts (ps/wire/pulls.py) is read where
    it stands.
    """

    def __init__(self) -> None:
        self._bounds_ns = [int(bound * 1e9) for bound in _BOUNDS_S]
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, str], list[int]] = {}
        self._compiled: dict[int, Ints] = {}  # by id: a thousand come and go
        self._ended = self._zeros()  # of connections that are gone
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._lags = [0] * (len(_STALENESS) + 1)
        self._lagged = 0  # versions, all pushes together

    def _zeros(self) -> Ints:
        return np.zeros(len(_BOUNDS_S) + 3, np.int64)  # by bucket; nanoseconds; bytes

    def observe(self, method: str, code: str, seconds: float, nbytes: int = 0) -> None:
        took = int(seconds * 1e9)
        with self._lock:
            counted = self._counted.get((method, code))
            if counted is None:
                counted = self._counted[method, code] = [0] * (len(_BOUNDS_S) + 3)
            counted[bisect_left(self._bounds_ns, took)] += 1
            counted[NANOSECONDS] += took
            counted[NBYTES] += nbytes

    def pushed(self, pushed: Pushed) -> None:
        """Count a push, whatever carried it."""
        with self._lock:
            self._outcomes[pushed.outcome] += 1
            if pushed.outcome is Outcome.APPLIED:
                self._lags[bisect_left(_STALENESS, pushed.staleness)] += 1
                self._lagged += pushed.staleness

    def served(self) -> tuple[int, int]:
        """Return how many pulls and pushes were served, whatever became of them."""
        with self._lock:
            counters = [self._ended, *self._compiled.values()]
            counters += [np.array(n) for (call, _), n in self._counted.items() if call == "Pull"]
            pulls = sum(int(each[:NANOSECONDS].sum()) for each in counters)
            return pulls, sum(self._outcomes.values())

    def begin_compiled(self) -> tuple[Ints, Ints]:
        """Return the bounds of the buckets, in ns, and a connection's counters.

        They are in use until `end_compiled`.
        """
        counters = self._zeros()
        with self._lock:
            self._compiled[id(counters)] = counters
        return np.array(self._bounds_ns), counters

    def end_compiled(self, counters: Ints) -> None:
        with self._lock:
            del self._compiled[id(counters)]
            self._ended += counters

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counted = {key: np.array(mine) for key, mine in self._counted.items()}
            small = counted.setdefault(_SMALL, self._zeros())
            for counters in [self._ended, *self._compiled.values()]:
                small += counters
            outcomes = {outcome.name.lower(): n for outcome, n in self._outcomes.items()}
            lags, lagged = list(self._lags), self._lagged
        name, text = "edl_ps_rpc_duration_seconds", "Time to serve a call."
        times = HistogramMetricFamily(name, text, labels=["method", "code"])
        for key, mine in counted.items():
            if mine[:NANOSECONDS].any():
                buckets = _buckets(_BOUNDS_S, mine[:NANOSECONDS])
                times.add_metric(key, buckets, mine[NANOSECONDS] / 1e9)
        yield times
        nbytes = float(sum(mine[NBYTES] for mine in counted.values()))
        text = "Bytes of pushes and pulls received."
        yield CounterMetricFamily("edl_ps_bytes_received", text, value=nbytes)
        name, text = "edl_ps_gradient_staleness_steps", "Versions by which an applied push lagged."
        yield HistogramMetricFamily(name, text, _buckets(_STALENESS, lags), lagged)
        pushes = CounterMetricFamily("edl_ps_pushes", "Pushes by outcome.", labels=["outcome"])
        for name, count in outcomes.items():
            pushes.add_metric([name], count)
        yield pushes
        text = "Pushes repeated after a lost reply."
        yield CounterMetricFamily("edl_ps_duplicate_pushes", text, value=outcomes["duplicate"])


def _buckets(bounds: Sequence[float], counts: Sequence[int] | Ints) -> list[tuple[str, float]]:
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, map(float, np.cumsum(counts)), strict=True))


class Metrics:
    """The figures of one shard."""

    def __init__(self, shard: int) -> None:
        self.registry = registry = CollectorRegistry()
        self._shard = str(shard)
        self.calls = Calls()
        registry.register(self.calls)
        self._rows = Gauge(
            "edl_ps_embedding_rows", "Rows of a table.", ["table", "shard"], registry=registry
        )
        self._memory = Gauge(
            "edl_ps_memory_bytes", "Parameters and state.", ["shard"], registry=registry
        )
        self._version = Gauge("edl_ps_version", "Version.", ["shard"], registry=registry)
        self._snapshot = Gauge(
            "edl_ps_snapshot_timestamp_seconds",
            "When the last snapshot was taken, since 1970.",
            ["shard"],
            registry=registry,
        )
        self._interval = Gauge(
            "edl_ps_snapshot_interval_seconds",
            "Between two snapshots (--snapshot_s).",
            ["shard"],
            registry=registry,
        )
        self._sizes: dict[str, float] = {}

    def snapshots_begin(self, interval_s: float) -> None:
        """Tell how often a snapshot is taken; the first one's age counts from now."""
        self._interval.labels(self._shard).set(interval_s)
        self.snapshot_taken()

    def snapshot_taken(self) -> None:
        """Tell that the newest snapshot is of now."""
        self._snapshot.labels(self._shard).set_to_current_time()

    def observe(self, store: Store) -> None:
        """Take the sizes of now."""
        _, rows, nbytes = store.sizes()
        for table, count in rows.items():
            self._rows.labels(table, self._shard).set(count)
        self._memory.labels(self._shard).set(nbytes)
        self._version.labels(self._shard).set(store.version)
        self._sizes = {"rows": float(sum(rows.values())), "nbytes": float(nbytes)}

    def scalars(self) -> dict[str, float]:
        """Return what a heartbeat tells: the sizes of then, and calls since the start."""
        pulls, pushes = self.calls.served()
        return {**self._sizes, "pulls": float(pulls), "pushes": float(pushes)}
