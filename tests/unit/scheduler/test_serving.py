"""What a scheduler tells Prometheus."""

from __future__ import annotations

import signal
import threading

from tools.exposed import scheduler

from edl.scheduler import serving
from edl.scheduler.policy import make_policy

from .test_in_cluster import api, server  # noqa: F401  fixtures


def test_it_tells_what_the_plan_gives_of_what_jobs_may_have():
    """Two nodes of 8 cores and 2 GPUs; two workers of 3 cores and a GPU, a server of 2 cores."""
    registry = scheduler()

    def of(name):
        return {
            resource: registry.get_sample_value(f"edl_scheduler_{name}", {"resource": resource})
            for resource in ("cpu", "memory", "gpu")
        }

    assert of("capacity") == {"cpu": 16, "memory": 0, "gpu": 4}
    assert of("planned") == {"cpu": 8, "memory": 0, "gpu": 2}


def test_it_leads_once_it_has_the_lease_and_not_before(api, monkeypatch):  # noqa: F811
    metrics, leads = serving.Metrics(), []
    monkeypatch.setattr(serving, "Metrics", lambda: metrics)
    monkeypatch.setattr(serving, "serve_metrics", lambda _registry: (None, "nowhere"))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # it is put back
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def look(*_):
        leads.append(metrics.registry.get_sample_value("edl_scheduler_leads"))

    monkeypatch.setattr(serving.Service, "serve", look)
    serving.serve_cluster(api, False, make_policy("finish"), 5.0, look)

    assert (leads[0], leads[-1]) == (0, 1)
