"""The metrics of a job's teacher, for Prometheus."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class Metrics:
    """The counts of one teacher."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Make them."""
        self._rows = Counter("edl_records_processed", "Records used.", ["role"], registry=registry)
        self._queued = Gauge(
            "edl_teacher_queued", "Records that wait for this teacher.", registry=registry
        )

    def beat(self, rows: int, queued: int) -> None:
        """Count the records that were taught since the last beat, and tell how many wait now."""
        self._rows.labels("teacher").inc(rows)
        self._queued.set(queued)
