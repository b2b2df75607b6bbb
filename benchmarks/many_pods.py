"""A job of 200 workers, as the API server sees it: pods that do nothing, made, watched, ended.

    python tests/tools/kube.py --nodes 4 --cpu 64         # in another shell: the cluster
    python -m benchmarks.many_pods [--pods 200]

The runtime of a master, in a process of its own, starts so many replicas at once. Told: until all
are made, and until all were seen to run; calls of the API a pod; the lag from a change of a pod to
its being told; the memory of this process; then the end of all.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import sys
import threading
import time
from collections import Counter
from queue import Queue
from typing import Any

from benchmarks import measure
from edl.common.settings import JobSettings
from edl.k8s import names, pods
from edl.k8s.api import Api, Object
from edl.k8s.connection import Connection
from edl.k8s.reflector import Change, Reflector
from edl.k8s.runtime import KubernetesRuntime
from edl.runtime.base import Exit, Replica, Report, Running

DEADLINE_S = 300.0
CHANGES = 50


class Counted(Connection):
    """A connection that counts its requests by method."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: Counter[str] = Counter()

    def _send(self, method: str, path: str, query: Any, *rest: Any) -> Any:
        self.calls["WATCH" if query and "watch" in query else method] += 1
        return super()._send(method, path, query, *rest)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_pods")
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--namespace", default="default")
    given = parser.parse_args()
    print(many_pods(given.pods, given.namespace))


def many_pods(count: int, namespace: str) -> str:
    connection, _ = Counted.find()
    api = Api(connection, namespace)
    job = f"many-{secrets.token_hex(3)}"
    settings = JobSettings(job_name=job, image_name="edl:test")
    template = pods.templates(settings)["worker"]
    template["spec"].pop("serviceAccountName")
    container = pods.container_of(template)
    container["command"], container["env"] = ["sleep", "600"], []
    container["resources"] = {"requests": {"cpu": "10m", "memory": "1Mi"}}

    def make(role: str, index: int, incarnation: str, env: Any, *_: Any) -> Object:
        return pods.replica(
            template,
            Replica(role, index, incarnation),
            job=job,
            arguments=(),
            env=env,
            owner=None,
        )

    before_mb = _memory_mb()
    reports: Queue[Report] = Queue()
    runtime = KubernetesRuntime(api, job, make=make, cap=lambda *_: "1Gi", report=reports.put)
    try:
        began = time.monotonic()
        for index in range(count):
            runtime.start("worker", index, secrets.token_hex(6), {})
        told_s = time.monotonic() - began
        running = 0
        while running < count:
            report = reports.get(timeout=DEADLINE_S)
            assert not isinstance(report, Exit), report
            running += isinstance(report, Running)
            if running == 1:
                first_s = time.monotonic() - began
        all_s = time.monotonic() - began
        items, _ = api.list("Pod", names.selector(job))
        made = [each["metadata"]["creationTimestamp"] for each in items]
        calls = Counter(connection.calls)
        lags = _lags(api, job, [each["metadata"]["name"] for each in items])
        grown_mb = _memory_mb() - before_mb
        began = time.monotonic()
    finally:
        runtime.close()
    closed_s = time.monotonic() - began
    api.close()
    rows = [
        ("all asked for (the master waits so long)", f"{told_s:.3f} s"),
        ("first seen to run", f"{first_s:.2f} s"),
        ("all seen to run", f"{all_s:.1f} s; made between {min(made)} and {max(made)}"),
        ("calls of the API a pod", f"{sum(calls.values()) / count:.2f} ({dict(calls)})"),
        ("from a change of a pod until it is told, ms", measure.spread(lags)),
        ("memory of the process, more than before", f"{grown_mb:.0f} MB"),
        ("all deleted", f"{closed_s:.1f} s"),
    ]
    lines = [f"{count} pods.", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows)]
    return "\n".join([*lines, "", measure.machine()])


def _lags(api: Api, job: str, chosen: list[str]) -> list[float]:
    """Return milliseconds from a patch's answer until the watch tells of it (0: it was first)."""
    seen: dict[str, float] = {}
    changed, listed = threading.Condition(), threading.Event()

    def tell(change: Change) -> None:
        mark = (change.after["metadata"].get("annotations") or {}).get("edl.dev/mark")
        if mark:
            with changed:
                seen[mark] = time.perf_counter()
                changed.notify_all()

    watch = Reflector(api, "Pod", names.selector(job), tell, lambda *_: listed.set())
    watch.start()
    listed.wait(DEADLINE_S)
    lags = []
    for number in range(CHANGES):
        mark = str(number + 1)
        name = chosen[number % len(chosen)]
        api.patch("Pod", name, {"metadata": {"annotations": {"edl.dev/mark": mark}}})
        asked = time.perf_counter()
        with changed:
            assert changed.wait_for(lambda mark=mark: mark in seen, DEADLINE_S)
        lags.append(max(0.0, 1e3 * (seen[mark] - asked)))
    watch.close()
    return lags


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
