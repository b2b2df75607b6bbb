"""ElasticDL's second experiment: training in the room that an online service leaves, and back.

    python tests/tools/kube.py --nodes 3 --cpu 8      # in another shell: the cluster, 24 cores
    python -m benchmarks.online_service [--waves N]   # docs/online-service.svg and a table

A service of high priority (a Deployment, pods of 2 cores) is scaled from 1 to 6 pods and back, as
an autoscaler does between night and day. Each pod loads torch, as one that serves a model does, and
answers HTTP. *Restored*: from the scaling until all of them answer, and until all of them have
merely been started; first on a cluster of its own, then beside a job of 9 low workers of 2 cores,
which with its master and server takes all that the service leaves. *Occupancy*: cores asked for by
pods that run, of all, on average over the waves. The job is never started again, and each record's
count is exact or this fails.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from benchmarks import measure, page
from benchmarks.faults.ours import counts_of
from benchmarks.two_jobs import DEADLINE_S, RECORDS, Watch, cores_of, submit
from edl.common.errors import PeerError
from edl.k8s import names, observe
from edl.k8s.api import Api, Object

FEW, MANY, CORES = 1, 6, 2
HOLD_S = 25.0
EPOCHS = 16
SERVICE = "online-service"
ROLES = ("master", "ps", "worker")
PORT = 8000
_PROGRAM = f"""
import http.server
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"score": %f}}' % model(torch.ones(1, 512)).item())
http.server.HTTPServer(("", {PORT}), Answer).serve_forever()
"""


def deployment() -> Object:
    labels = {"app.kubernetes.io/name": SERVICE}
    container = {
        "name": "main",
        "image": "edl:test",
        "command": ["python", "-c", _PROGRAM],
        "resources": {"requests": {"cpu": str(CORES)}},
    }
    pod = {
        "containers": [container],
        "priorityClassName": "edl-master",
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": SERVICE, "labels": labels},
        "spec": {
            "replicas": FEW,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


class Service:
    """An online service: `with Service(api, watch) as service: ...`."""

    def __init__(self, api: Api, watch: Watch) -> None:
        self._api = api
        self._watch = watch
        self._path = f"/apis/apps/v1/namespaces/{api.namespace}/deployments"

    def __enter__(self) -> Self:
        self._api.connection.request("POST", self._path, body=deployment())
        self._watch.wait_for_cores(SERVICE, FEW * CORES)
        return self

    def __exit__(self, *_: object) -> None:
        body = {"kind": "DeleteOptions", "propagationPolicy": "Background"}
        self._api.connection.request("DELETE", f"{self._path}/{SERVICE}", body=body)
        self._watch.wait_for_cores(SERVICE, 0)

    def scale(self, replicas: int) -> tuple[float, float]:
        """Return the seconds until so many have been started, and until all answer."""
        began = time.monotonic()
        body = {"spec": {"replicas": replicas}}
        self._api.connection.request(
            "PATCH",
            f"{self._path}/{SERVICE}",
            body=body,
            content_type="application/merge-patch+json",
        )
        self._watch.wait_for_cores(SERVICE, replicas * CORES)
        started = time.monotonic()
        pods, _ = self._api.list("Pod", f"app.kubernetes.io/name={SERVICE}")
        for name in (p["metadata"]["name"] for p in pods if observe.deletion(p) is None):
            path = f"{self._api.path('Pod', f'{name}:{PORT}')}/proxy/"
            while not self._answers(path):
                if time.monotonic() - began > DEADLINE_S:
                    raise TimeoutError(f"{name} does not answer")
                threading.Event().wait(0.02)
        return started - began, time.monotonic() - began

    def _answers(self, path: str) -> bool:
        try:
            self._api.connection.request("GET", path, patience_s=0.0)
        except PeerError:
            return False
        return True


def waves(service: Service, count: int, hold_s: float) -> list[tuple[float, float]]:
    """Return how long each way up took."""
    took = []
    for _ in range(count):
        took.append(service.scale(MANY))
        threading.Event().wait(hold_s)  # the day
        service.scale(FEW)
        threading.Event().wait(hold_s)  # the night
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online_service")
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--namespace", default="default")
    given = parser.parse_args()
    api = Api.connect(given.namespace)
    total = cores_of(api)
    watch = Watch(api, SERVICE)
    job = f"job-{secrets.token_hex(3)}"
    try:
        with Service(api, watch) as service:
            alone = waves(service, given.waves, 3.0)
        print(f"  alone: {alone}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=os.environ.get("EDL_SHARED", "/var/tmp")) as text:
            folder = Path(text)
            folder.chmod(0o777)
            with Service(api, watch) as service:
                submit(
                    api,
                    job,
                    folder,
                    num_workers=9,
                    num_epochs=EPOCHS,
                    worker_pod_priority="low",
                    ps_pod_priority="high",
                    **{f"{role}_resource_request": f"cpu={CORES},memory=512Mi" for role in ROLES},
                )
                first = watch.wait(job, lambda status: all(w["pid"] for w in status["workers"]))
                began = time.monotonic()
                beside = waves(service, given.waves, HOLD_S)
                ended, last = time.monotonic(), watch.wait(job, lambda _status: True)
                print(f"  beside: {beside}", file=sys.stderr, flush=True)
            status = watch.wait(job)
            assert status["state"] == "done", status
            assert set(counts_of(folder / job, RECORDS).tolist()) == {float(EPOCHS)}
    finally:
        watch.close()
        api.delete("Job", names.object_name(job))
    training, used = watch.over("edl", began, ended)
    serving, served = watch.over(SERVICE, began, ended)
    panel = page.Panel(
        "cores asked for by running pods",
        "seconds",
        {"training": training, "online service": serving},
        steps=True,
    )
    (page.DOCS / "online-service.svg").write_text(page.picture([panel]))
    restarts = status["restarts"]
    records = last["records_done"] - first["records_done"]
    print(
        f"{total:g} cores, {given.waves} waves of {2 * HOLD_S:g} s, service {FEW * CORES} -> "
        f"{MANY * CORES} cores.\n\n| | |\n|---|---|\n"
        f"{_row('all pods answer', alone, beside, 1)}"
        f"{_row('all pods are started', alone, beside, 0)}"
        f"| occupancy | {(used + served) / total:.3f} (service {served / total:.3f}, training "
        f"{used / total:.3f}) |\n"
        f"| goodput | {records / (ended - began):.0f} unique records/s |\n"
        f"| workers preempted, worker failures, masters and servers lost | "
        f"{restarts['preemptions']}, {restarts['worker']}, "
        f"{restarts['master'] + restarts['server']} |\n\n{measure.machine()}"
    )


def _row(
    what: str, alone: list[tuple[float, float]], beside: list[tuple[float, float]], i: int
) -> str:
    ratios = [b[i] / a[i] for b, a in zip(beside, alone, strict=True)]
    times = (measure.spread([each[i] for each in waves]) for waves in (alone, beside))
    cell = f"{' s, '.join(times)} s, {measure.spread(ratios)}"
    return f"| {what}: alone, beside training, ratio | {cell} |\n"


if __name__ == "__main__":
    main()
