"""Whole jobs as pods on a real control plane, which lose machines, masters, servers.

A real scheduler preempts, the API server restarts. The counting model says what was applied.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tools import kube
from tools.jobs import ZOO, write_records
from tools.kube_objects import IMAGE, make_deployment, make_pod
from tools.servers import assert_exact, dense
from tools.turns import in_turn

from edl.common import storage
from edl.data.datasets import prepare

from .tools import Unreachable, promtool

RECORDS = 4096
MANIFESTS = Path(kube.ROOT) / "k8s" / "manifests" / "base"
MINE = "edl.dev/job-name={},edl.dev/role={}"


class Run:
    """A job of this checkout, submitted by the command line; its folder is on every node."""

    def __init__(
        self, cluster, namespace, folder: Path, name: str, epochs: int, **settings
    ) -> None:
        self.cluster, self.namespace, self.folder, self.name = cluster, namespace, folder, name
        self.epochs = epochs
        self.status_map = f"edl-{name}-status"
        namespace.claims(folder)
        flags = {
            "job_name": name,
            "namespace": namespace.name,
            "image_name": IMAGE,
            "model_zoo": ZOO,
            "model_def": "counting",
            "model_params": "delay_s=0.1",
            "training_data": write_records(folder / "records.npz", RECORDS),
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "num_epochs": epochs,
            "num_workers": 2,
            "num_ps": 2,
            "use_async": "true",
            "lease_s": 4,
            "snapshot_s": 2,
            "checkpoint_dir": folder / "checkpoints",
            "job_volume": "claim_name=job",
            "volume": f"claim_name=data,mount_path={folder}",
            "master_resource_request": "cpu=0.1,memory=1024Mi",
            "worker_resource_request": "cpu=1,memory=1024Mi",
            "ps_resource_request": "cpu=1,memory=1024Mi",
            **settings,
        }
        self.edl(
            "train", "--runtime=kubernetes", "--detach", *(f"--{k}={v}" for k, v in flags.items())
        )

    def edl(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "edl", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait(self, until, within_s: float = 500.0) -> dict:
        """Return the first status for which `until` holds."""

        def look(maps):
            if self.status_map in maps:
                status = json.loads(maps[self.status_map]["data"]["status.json"])
                assert until is _done or status["state"] != "failed", status
                return status if until(status) else None
            return None

        return self.namespace.wait("configmaps", look, within_s=within_s)

    def under_way(self, part: float) -> dict:
        """Wait until so much of the records is done, and all that is wanted is there."""
        return self.wait(
            lambda s: (
                s["records_total"]
                and s["records_done"] >= part * s["records_total"]
                and all(w["pid"] for w in s["workers"])
                and all(p["pid"] for p in s["servers"])
            )
        )

    def pods(self, role: str) -> list[dict]:
        return list(self.namespace.objects("pods", MINE.format(self.name, role)).values())

    def metrics(self, role: str) -> str:
        """Return what Prometheus gets of the first pod of a role, by the pod's annotations."""
        about = self.pods(role)[0]["metadata"]
        port, path = (about["annotations"][f"prometheus.io/{key}"] for key in ("port", "path"))
        pod = f"/api/v1/namespaces/{self.namespace.name}/pods/{about['name']}:{port}"
        return self.namespace.kubectl("get", "--raw", f"{pod}/proxy{path}")

    def delete(self, role: str, *more: str) -> str:
        """Delete the first pod of a role; return its name."""
        name = self.pods(role)[0]["metadata"]["name"]
        self.namespace.kubectl("delete", "pod", name, "--wait=false", *more)
        return name

    def writes_a_snapshot(self, within_s: float = 60.0) -> None:
        """Wait until a server has written a snapshot that was not there before."""
        snapshots = self.folder / "job"
        before = set(snapshots.rglob("*.link"))
        deadline = time.monotonic() + within_s
        while not set(snapshots.rglob("*.link")) - before:
            assert time.monotonic() < deadline, before
            threading.Event().wait(0.1)  # a folder has no event in the standard library

    def ends(self, within_s: float = 500.0) -> tuple[dict, Path]:
        """Wait for the job's end; return its last status and its checkpoint."""
        status = self.wait(_done, within_s)
        assert status["state"] == "done", status
        found = storage.latest(str(self.folder / "checkpoints"))
        assert found is not None
        return status, found.directory

    def ends_exact(self, within_s: float = 500.0) -> dict:
        """Check that the job is done, and every record was applied exactly once an epoch."""
        status, checkpoint = self.ends(within_s)
        assert_exact(checkpoint, RECORDS, self.epochs)
        return status


def _done(status: dict) -> bool:
    return status["state"] in ("done", "failed", "stopped")


@pytest.fixture
def folder(request):
    """Make a folder on a file system that the pods see, readable by their user."""
    found = kube.CLUSTERS / "data" / f"{request.node.name[:40]}-{time.time_ns()}"
    found.mkdir(parents=True)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def ready(cluster, namespace):
    """Make a namespace with what a cluster is given once."""
    namespace.apply(MANIFESTS / "service-accounts.yaml", MANIFESTS / "role-master.yaml")
    cluster.apply(MANIFESTS / "priority-classes.yaml")
    return namespace


@pytest.mark.slow
def test_deepfm_makes_room_for_a_service_and_gets_it_back(cluster, ready, folder):
    """Train on real data with 2 servers and 4 low workers on 16 cores.

    A deployment of high priority comes and the scheduler preempts two workers; it goes, and they
    are there again. The job never restarts.
    """
    flights = prepare("nycflights13-small", folder / "data", echo=lambda line: None)
    epochs, records = 3, 32000
    job = Run(
        cluster,
        ready,
        folder,
        "deepfm",
        epochs,
        model_zoo="",
        model_def="deepfm",
        model_params="",
        training_data=flights / "train.npz",
        validation_data=flights / "validation.npz",
        num_workers=4,
        worker_pod_priority="low",
        ps_pod_priority="high",
        worker_resource_request="cpu=2500m,memory=1024Mi",
    )
    job.under_way(0.1)
    servers = {pod["metadata"]["uid"] for pod in job.pods("ps")}

    ready.apply(
        make_deployment("service", 2, "sleep", "600", cpu="2600m", priorityClassName="edl-master")
    )
    ready.kubectl("rollout", "status", "deployment/service", "--timeout=60s")
    fewer = job.wait(lambda s: s["restarts"]["preemptions"] >= 2)
    ready.kubectl("delete", "deployment", "service")
    again = job.under_way(0.0)
    status = job.wait(_done)

    assert fewer["state"] == again["state"] == "running"
    assert status["state"] == "done", status
    assert status["records_done"] == epochs * records, status
    assert {"worker": 0, "server": 0, "master": 0} == {
        k: status["restarts"][k] for k in ("worker", "server", "master")
    }
    assert servers >= {pod["metadata"]["uid"] for pod in job.pods("ps")}
    assert status["metrics"]["auc"] > 0.7, status["metrics"]


@in_turn(0)
def test_workers_preempted_by_the_real_scheduler_and_a_lost_machine(cluster, ready, folder):
    """Train with 2 servers and 4 low workers on 16 cores.

    A high deployment comes and takes the room; it goes, and the workers come back; then a machine
    is lost. The job never restarts.
    """
    cluster.linger(10)
    job = Run(
        cluster,
        ready,
        folder,
        "preempted",
        6,
        num_workers=4,
        worker_pod_priority="low",
        ps_pod_priority="high",
        worker_resource_request="cpu=2500m,memory=1024Mi",
    )
    job.under_way(0.1)
    serving = [pod["metadata"]["name"] for pod in job.pods("ps")]

    service = [
        make_pod(f"service-{i}", "sleep", "600", cpu="2600m", priorityClassName="edl-master")
        for i in range(2)
    ]
    ready.apply(*service)
    for pod in service:
        ready.wait_phase(pod["metadata"]["name"], "Running")
    fewer = job.wait(lambda s: s["restarts"]["preemptions"] >= 2)
    ready.kubectl("delete", "pod", "service-0", "service-1", "--grace-period=0", "--force")
    job.under_way(0.2)

    held = {pod["spec"]["nodeName"] for pod in job.pods("ps") + job.pods("master")}
    node = next(
        pod["spec"]["nodeName"] for pod in job.pods("worker") if pod["spec"]["nodeName"] not in held
    )
    cluster.crash(node)
    job.wait(lambda s: s["restarts"]["preemptions"] >= 3)
    cluster.restore(node)
    status = job.ends_exact()

    assert any(
        "cannot be scheduled" in event["text"] for event in fewer["events"] + status["events"]
    )
    assert {"worker": 0, "server": 0, "master": 0} == {
        k: status["restarts"][k] for k in ("worker", "server", "master")
    }
    assert serving == [pod["metadata"]["name"] for pod in job.pods("ps")] or not job.pods("ps")


@in_turn(1)
def test_api_server_master_and_server_are_lost_in_one_job(cluster, ready, folder):
    """Lose one after the other without a word.

    The API server is away and comes back as another (410 Gone), the master's pod is deleted, then a
    server's.
    """
    job = Run(cluster, ready, folder, "lost", 3)
    job.under_way(0.05)

    with cluster.outage():
        job.writes_a_snapshot()  # nothing can be asked of anybody, and training goes on
    job.delete("worker")
    job.wait(lambda s: s["restarts"]["preemptions"] >= 1)
    job.under_way(0.1)
    before = {pod["metadata"]["name"] for role in ("worker", "ps") for pod in job.pods(role)}
    job.delete("master")
    job.wait(lambda s: s["restarts"]["master"] >= 1)
    after = {pod["metadata"]["name"] for role in ("worker", "ps") for pod in job.pods(role)}
    job.under_way(0.2)
    job.delete("ps", "--grace-period=0", "--force")
    job.wait(lambda s: s["restarts"]["server_preemptions"] >= 1)
    status = job.ends_exact()

    assert before == after  # the new master has adopted what ran
    assert status["restarts"]["worker"] == status["restarts"]["server"] == 0


@in_turn(2)
def test_an_all_reduce_group_loses_its_first_member(cluster, ready, folder):
    """Members find each other as pods do; the state that all would lose is on the volume."""
    flags = {
        "strategy": "allreduce",
        "model_def": "tally",
        "model_params": f"records={RECORDS},delay_s=0.05",
        "envs": "MINIBATCH=16",
        "use_async": "false",
        "num_minibatches_per_task": 16,
    }
    job = Run(cluster, ready, folder, "group", 1, num_workers=3, **flags)
    job.under_way(0.1)

    first = min(job.pods("worker"), key=lambda pod: pod["metadata"]["labels"]["edl.dev/index"])
    name = first["metadata"]["name"]
    ready.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    job.wait(lambda s: s["restarts"]["preemptions"] >= 1)
    status, checkpoint = job.ends()

    assert {1.0} == set(np.round(dense(checkpoint, "counts"), 3).tolist())
    assert status["restarts"]["worker"] == 0
    assert list((folder / "job").glob("*/group/version-*/MANIFEST.json"))


@in_turn(3)
def test_workers_come_and_go_as_the_user_wants(cluster, ready, folder):
    released = folder / "released"  # until then there is work for a minute and a half
    slow = f"delay_s=0.5,until={released}"
    job = Run(cluster, ready, folder, "scaled", 2, num_workers=1, model_params=slow)
    job.under_way(0.05)

    job.edl("scale", "scaled", f"--namespace={ready.name}", "--num_workers=3")
    job.wait(lambda s: sum(bool(w["pid"]) for w in s["workers"]) == 3)
    metrics = {role: job.metrics(role) for role in ("master", "ps", "worker")}
    job.edl("scale", "scaled", f"--namespace={ready.name}", "--num_workers=1")
    released.touch()
    status = job.ends_exact()
    job.edl("delete", "scaled", f"--namespace={ready.name}")

    assert status["restarts"]["preemptions"] == 0
    for kind in ("jobs", "pods", "configmaps", "secrets", "services"):
        ready.wait(kind, lambda found: not found, labels="edl.dev/job-name=scaled")
    _promtool_finds_no_fault(metrics)


def _promtool_finds_no_fault(metrics: dict[str, str]) -> None:
    try:
        tool = promtool()
    except Unreachable as why:
        pytest.skip(f"no promtool: {why}")
    for role, text in metrics.items():
        command = [tool, "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, check=False, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), (role, text)
