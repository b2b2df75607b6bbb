"""`edl schedule serve`: rounds until a signal, on this machine or in a cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..common.errors import JobError
from ..common.listen import serve_metrics
from ..k8s.api import Api
from . import in_cluster, local
from .asking.make import Made
from .asking.notices import Notices
from .cluster import Node, Resources
from .jobs import Job, Plan, Quota
from .place import Place, Tell
from .policy import Policy
from .service import Service

_PAUSE_S = 1.0  # between two rounds, however much changes
_TOLD = ("cpu", "memory", "gpu", "pods")  # resources; other ones have no name of their own


class Ends:
    """The end of the service: a signal, or what went wrong in a thread."""

    def __init__(self) -> None:
        """Begin without an end."""
        self.over = threading.Event()
        self.wake = threading.Event()
        self.problem = ""

    def end(self, problem: str = "") -> None:
        """End after this round."""
        self.problem = self.problem or problem
        self.over.set()
        self.wake.set()


def serve_here(service: Service, every_s: float) -> None:
    """Make rounds for this machine until SIGINT or SIGTERM.

    Raises UsageError where another one does.
    """
    lock = local.claim()
    try:
        with _ends(lambda: None) as ends:
            service.serve(every_s, ends.wake, ends.over.is_set)
    finally:
        os.close(lock)


def serve_cluster(
    api: Api,
    is_everywhere: bool,
    policy: Policy,
    every_s: float,
    tell: Tell,
    nodes: Made | None = None,
    quotas: Sequence[Quota] = (),
) -> None:
    """Make rounds for a cluster, once this is its one scheduler, until SIGINT or SIGTERM.

    `nodes`: an autoscaler beside it; `quotas`: those that the policy keeps to. What is on a node
    with a notice is drained in any case.

    Raises JobError where it cannot go on: another one acts, or a thread failed.
    """
    metrics = Metrics()
    _, address = serve_metrics(metrics.registry)
    leadership = in_cluster.claim(api)
    leads = False
    with _ends(lambda: None if leads else leadership.close()) as ends:
        api.connection.on_end = lambda error: ends.end(str(error))
        tell(f"metrics: {address}; waits for the Lease {in_cluster.NAME} of {api.namespace}")
        leads = leadership.await_turn(
            ends.over, lambda error: tell(f"the Lease {in_cluster.NAME} is not there yet: {error}")
        )
        if leads:
            api.check_version()
            watched = in_cluster.Watched(api, is_everywhere, ends.wake.set, tell)
            notices = Notices(api.inside("") if is_everywhere else api, tell)
            try:
                leadership.keep(lambda why: ends.end(f"another scheduler acts: {why}"))
                metrics.leads.set(1)
                tell("has the Lease, and acts")
                watched.start()
                notices.start()
                place: Place = in_cluster.ClusterPlace(
                    api, is_everywhere, time.time, watched.copy, quotas
                )
                if nodes is not None:
                    place = nodes.beside(place, lambda: watched.copy().nodes, api)
                service = Service(place, metrics.measured(policy), time.time, tell)
                service.serve(every_s, ends.wake, lambda: ends.over.wait(_PAUSE_S))
            finally:
                notices.close()
                watched.close()
                leadership.close()
    if ends.problem:
        raise JobError(ends.problem)


class Metrics:
    """The metrics that a scheduler tells Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        """Make them."""
        self.registry = registry = CollectorRegistry()
        self.rounds = Counter("edl_scheduler_rounds", "Plans made.", registry=registry)
        self.seconds = Gauge(
            "edl_scheduler_plan_seconds", "CPU time of the last plan.", registry=registry
        )
        self.jobs = Gauge("edl_scheduler_jobs", "Jobs by state.", ["state"], registry=registry)
        self.workers = Gauge("edl_scheduler_workers", "Workers planned.", registry=registry)
        self.leads = Gauge("edl_scheduler_leads", "1: this one acts.", registry=registry)
        self.capacity = Gauge(
            "edl_scheduler_capacity",
            "What jobs may have, all nodes.",
            ["resource"],
            registry=registry,
        )
        self.planned = Gauge(
            "edl_scheduler_planned", "What the plan gives to jobs.", ["resource"], registry=registry
        )

    def measured(self, policy: Policy) -> Policy:
        """Return the policy, measured."""
        return _Measured(policy, self)


class _Measured:
    def __init__(self, policy: Policy, metrics: Metrics) -> None:
        self._policy = policy
        self._metrics = metrics

    def plan(self, jobs: Sequence[Job], nodes: Sequence[Node], now: float) -> Plan:
        began = time.thread_time()
        plan = self._policy.plan(jobs, nodes, now)
        self._metrics.rounds.inc()
        self._metrics.seconds.set(time.thread_time() - began)
        run = sum(each.shape.workers > 0 for each in plan.values())
        self._metrics.jobs.labels("runs").set(run)
        self._metrics.jobs.labels("waits").set(len(plan) - run)
        self._metrics.workers.set(sum(each.shape.workers for each in plan.values()))
        capacity = sum((node.free for node in nodes), Resources())
        given = (job.takes(plan[job.name].shape) for job in jobs)
        for gauge, amounts in (
            (self._metrics.capacity, capacity),
            (self._metrics.planned, sum(given, Resources())),
        ):
            for resource in _TOLD:
                gauge.labels(resource).set(getattr(amounts, resource))
        return plan


@contextmanager
def _ends(on_signal: Callable[[], object]) -> Iterator[Ends]:
    """Let signals, and threads that fail, end what is in the block."""
    ends = Ends()

    def failed(found: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(found)
        ends.end(f"a thread failed: {found.exc_value!r}")

    def told(*_: object) -> None:
        ends.end()
        on_signal()

    threading.excepthook = failed
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
    yield ends
