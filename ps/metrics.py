"""What a server tells Prometheus: its own registry, names of the `edl_ps_` family."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .store import Outcome, Pushed, Store


class Metrics:
    """The figures of one shard."""

    def __init__(self, shard: int) -> None:
        self.registry = registry = CollectorRegistry()
        self._shard = str(shard)
        self.rpc = Histogram(
            "edl_ps_rpc_duration_seconds",
            "Time to serve a call.",
            ["method", "code"],
            registry=registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0),
        )
        self.received = Counter(
            "edl_ps_bytes_received", "Bytes of pushes and pulls received.", registry=registry
        )
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
