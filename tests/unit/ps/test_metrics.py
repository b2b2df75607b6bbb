from __future__ import annotations

import time

import numpy as np
from prometheus_client import generate_latest

from edl.ps.books.answers import Outcome, Pushed
from edl.ps.metrics import Calls, Metrics
from edl.ps.wire.pulls import NANOSECONDS, NBYTES


def page(metrics: Metrics) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_pushes_are_counted_by_outcome_and_those_applied_by_staleness():
    metrics = Metrics(0)
    for staleness in (0, 2, 3, 500):
        metrics.calls.pushed(Pushed(Outcome.APPLIED, 1, 1, 1, staleness))
    metrics.calls.pushed(Pushed(Outcome.DUPLICATE, 1, 1, 1, 7))

    name = "edl_ps_gradient_staleness_steps"
    counted = {"0": 1, "1": 1, "2": 2, "4": 3, "128": 3, "+Inf": 4}
    assert {
        'edl_ps_pushes_total{outcome="applied"} 4.0',
        'edl_ps_pushes_total{outcome="duplicate"} 1.0',
        'edl_ps_pushes_total{outcome="gap"} 0.0',
        "edl_ps_duplicate_pushes_total 1.0",
        f"{name}_sum 505.0",
        *[f'{name}_bucket{{le="{bound}"}} {n}.0' for bound, n in counted.items()],
    } <= {line.replace('.0"}', '"}') for line in page(metrics)}


def test_calls_of_compiled_code_count_with_the_others_also_when_their_connection_is_gone():
    calls = Calls()
    calls.observe("Pull", "OK", 0.02, 5)
    _, counters = calls.begin_compiled()
    counters[[0, NANOSECONDS, NBYTES]] = 3, 3_000_000, 30

    before = [metric.samples for metric in calls.collect()]
    calls.end_compiled(counters)

    assert before == [metric.samples for metric in calls.collect()]
    values = {(s.name, s.labels.get("le")): s.value for samples in before for s in samples}
    assert (3.0, 4.0) == tuple(
        values["edl_ps_rpc_duration_seconds_bucket", bound] for bound in ("0.0005", "+Inf")
    )
    assert np.isclose(0.023, values["edl_ps_rpc_duration_seconds_sum", None])
    assert 35 == values["edl_ps_bytes_received_total", None]


def test_the_age_of_snapshots_begins_with_them_and_is_not_told_where_there_are_none():
    silent, metrics = Metrics(0), Metrics(3)
    before = time.time()
    metrics.snapshots_begin(60.0)

    name, labels = "edl_ps_snapshot_timestamp_seconds", {"shard": "3"}
    begun = metrics.registry.get_sample_value(name, labels)
    metrics.snapshot_taken()
    assert before <= begun <= metrics.registry.get_sample_value(name, labels)
    interval = "edl_ps_snapshot_interval_seconds"
    assert metrics.registry.get_sample_value(interval, labels) == 60.0
    assert not any("snapshot" in line for line in page(silent) if not line.startswith("#"))
