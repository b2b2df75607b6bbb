"""The metrics that each process of edl tells Prometheus: its registries, filled and written out.

Nothing here names a metric: the names, labels and values are read off the text that a scraper gets.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import yaml
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edl.common.settings import JobSettings
from edl.distill.metrics import Metrics as TeacherMetrics
from edl.k8s.controller import Metrics as ControllerMetrics
from edl.k8s.job_status import PHASES
from edl.master.books.plan import Kind, Plan
from edl.master.books.task_queue import TaskQueue
from edl.master.evaluation import Evaluations
from edl.master.machines import Machines
from edl.master.membership import Membership
from edl.master.replicas import Replicas
from edl.master.scalars import Scalars
from edl.master.status import Status
from edl.ps.books.aggregation import Policy
from edl.ps.books.answers import Outcome, Pushed
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics as ServerMetrics
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Given, Job, Shape
from edl.scheduler.jobs import Plan as SchedulersPlan
from edl.scheduler.serving import Metrics as SchedulerMetrics
from edl.serve.kserve.refused import Why
from edl.serve.metrics import ANSWERED
from edl.serve.metrics import Metrics as ServeMetrics
from edl.worker.metrics import Metrics as WorkerMetrics

Labels = Mapping[str, AbstractSet[str]]  # by label, its values


def exposed() -> Mapping[str, Labels]:
    """Return all samples of all processes by name."""
    found: dict[str, dict[str, set[str]]] = {}
    for registry in (_master(), _worker(), _teacher(), *_servers(), _controller(), scheduler()):
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                labels = found.setdefault(sample.name, defaultdict(set))
                for label, value in sample.labels.items():
                    labels[label].add(value)
    return found


def targets(pod_monitor: str) -> set[str]:
    """Return the labels that a scrape adds: each pod's, and those that the PodMonitors name."""
    text = "".join(line for line in pod_monitor.splitlines(True) if "{{" not in line)
    found = [doc for doc in yaml.safe_load_all(text) if doc]
    named = {name for doc in found for name in doc["spec"].get("podTargetLabels", ())}
    as_prometheus = {"".join(c if c.isalnum() else "_" for c in name) for name in named}
    return {"namespace", "pod", "instance", "job", *as_prometheus}


def status(replicas: Replicas | None = None, **more: Any) -> dict[str, Any]:
    """Return a status as a master renders it, of a job that has just begun."""
    made = Status(0.0).render(
        now=1.0,
        settings=JobSettings(),
        queue=TaskQueue(Plan(Kind.TRAIN, (("a", 8),), 2, 2)),
        members=Membership(30.0),
        replicas=replicas or Replicas(2, 1, relaunches=3, name=lambda: "a"),
        evaluations=Evaluations(),
        version=0,
    )
    machines = Machines(0.0, "here")
    machines.look(1.0, 0, [("here", "training")], [])
    return {**made, "usage": machines.usage(), **more}


def _master() -> CollectorRegistry:
    Scalars(None)(status(minibatch=64, gain=1.5))
    return REGISTRY


def _worker() -> CollectorRegistry:
    registry = CollectorRegistry()
    WorkerMetrics(registry).step(0.5, 64)
    return registry


def _teacher() -> CollectorRegistry:
    registry = CollectorRegistry()
    TeacherMetrics(registry).beat(3, 2)
    return registry


def _servers() -> list[CollectorRegistry]:
    """Return those of a parameter server, and of a server of models."""
    server = ServerMetrics(0)
    server.calls.observe("Push", "OK", 0.1, 5)
    server.calls.pushed(Pushed(Outcome.APPLIED, 1, 1, 1, 0))
    server.snapshots_begin(10.0)
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(staleness=0))
    store.sizes = lambda: (0, {"users": 3}, 12)  # type: ignore[method-assign]
    server.observe(store)
    serve = ServeMetrics()
    told = dict.fromkeys(("queued", "ready", "version", "age"), lambda: 1.0)
    model = serve.of("m", **told)
    for outcome in (ANSWERED, *(why.name.lower() for why in Why)):
        model.ended(outcome, 0.1)
    model.computed(1, 0.1, 1, 0.0)
    model.swapped()
    model.failed()
    return [server.registry, serve.registry]


def _controller() -> CollectorRegistry:
    metrics = ControllerMetrics()
    metrics.reconciles.labels("done").inc()
    metrics.actions.labels("create", "Pod").inc()
    for phase in PHASES:
        metrics.jobs.labels(phase).set(0)
    return metrics.registry


class _TwoWorkers:
    """A policy that gives two workers and a server to the first job, and nothing to others."""

    def plan(self, jobs: Sequence[Job], _nodes: Sequence[Node], _now: float) -> SchedulersPlan:
        shapes = [Shape(2, 1, 1), *[Shape()] * (len(jobs) - 1)]
        return {job.name: Given(each, "") for job, each in zip(jobs, shapes, strict=True)}


def scheduler() -> CollectorRegistry:
    """Return the registry of a scheduler that has planned for two jobs, on two nodes."""
    metrics = SchedulerMetrics()
    needs: Mapping[str, Any] = {"worker": Resources(cpu=3, gpu=1), "server": Resources(cpu=2)}
    jobs = [Job(name, lambda _: math.nan, submitted=0.0, **needs) for name in ("a", "b")]
    nodes = [Node(name, Resources(cpu=8, gpu=2)) for name in ("n1", "n2")]
    metrics.measured(_TwoWorkers()).plan(jobs, nodes, 0.0)
    return metrics.registry
