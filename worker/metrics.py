"""The metrics of a worker, for Prometheus."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class Metrics:
    """The counts of one worker process, over all its incarnations."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Make them."""
        self._records = Counter(
            "edl_records_processed", "Records used.", ["role"], registry=registry
        )
        self._loss = Gauge("edl_train_loss", "Loss of the last minibatch.", registry=registry)

    def step(self, loss: float, records: int) -> None:
        """Count a minibatch."""
        self._loss.set(loss)
        self._records.labels("worker").inc(records)
