"""The scheduler holds EdlJobs to a queue of Kueue on a real control plane, as its role lets it.

Kueue is a small stand-in (tools/kueue.py) that speaks to the same API server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.jobs import ZOO, write_records
from tools.kube import ROOT
from tools.kube_api import GROUPS, ApiError, Object, path_of
from tools.kube_namespace import Namespace
from tools.kube_objects import IMAGE, condition, phase
from tools.kueue import Kueue, crd
from tools.today import on_day

from edl.scheduler.workloads import QUEUE_LABEL

pytestmark = pytest.mark.pod_security("privileged")  # its jobs have hostPath
VERSION = "v1beta2"
GROUPS["workloads"] = f"apis/kueue.x-k8s.io/{VERSION}"
CPU = 2.5  # a base is 1.5: a master, a server and a worker; a piece 0.5
TURN_S = 0.3


@pytest.fixture
def kueue(cluster, namespace) -> Iterator[None]:
    """Let the stand-in serve the queue of the test's namespace."""
    cluster.apply(crd(VERSION))
    cluster.wait(
        "customresourcedefinitions",
        lambda found: condition(found.get("workloads.kueue.x-k8s.io", {}), "Established") == "True",
    )
    over, queue = threading.Event(), Kueue({"cpu": CPU}, "team")
    problems: list[ApiError] = []

    def serve() -> None:
        while not over.wait(TURN_S):
            try:
                found = list(namespace.objects("workloads").values())
                for each in queue.look(found, time.time()):
                    name = f"{each['metadata']['name']}/status"
                    namespace.api.call("PUT", path_of("workloads", namespace.name, name), each)
            except ApiError as error:
                if error.code not in (404, 409):  # it was deleted or changed meanwhile
                    problems.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()
    assert problems == []
    cluster.kubectl("delete", "customresourcedefinition", "workloads.kueue.x-k8s.io")


@pytest.fixture
def scheduler(namespace: Namespace, kueue, controller, folder) -> Iterator[Path]:
    """Run the scheduler with the token of its own account; return the file of what it says."""
    text = (ROOT / "k8s/manifests/scheduler/role.yaml").read_text()
    roles = list(yaml.safe_load_all(text))
    for each in roles:
        if each["kind"].startswith("ClusterRole"):
            each["metadata"]["name"] = f"edl-scheduler-{namespace.name}"
        if each["kind"] == "ClusterRoleBinding":
            each["roleRef"]["name"] = f"edl-scheduler-{namespace.name}"
            each["subjects"][0]["namespace"] = namespace.name
    namespace.apply(*roles)
    log, command = folder / "scheduler.log", "schedule serve --runtime kubernetes --every 2"
    config = namespace.kubeconfig("edl-scheduler")
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "edl", *command.split()],
            env={**os.environ, "KUBECONFIG": str(config)},
            stdout=file,
            stderr=file,
        )
    yield log
    process.terminate()
    code = process.wait(30.0)
    print(log.read_text())
    for kind in ("clusterrole", "clusterrolebinding"):
        namespace.cluster.kubectl("delete", kind, f"edl-scheduler-{namespace.name}")
    assert code == 0


def job(name: str, folder: Path) -> Object:
    small = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    about = {"name": name, "labels": {QUEUE_LABEL: "team"}}
    spec = {
        "image": IMAGE,
        "suspend": True,
        "scheduling": {},
        "settings": {
            "model_zoo": str(ZOO),
            "model_def": "counting",
            "model_params": {"delay_s": 0.1},
            "training_data": str(write_records(folder / f"{name}.npz", 4096)),
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "num_epochs": 99,
            "use_async": True,
        },
        "jobVolume": {"hostPath": {"path": str(folder / name), "type": "DirectoryOrCreate"}},
        "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
        "volumeMounts": [{"name": "data", "mountPath": str(folder)}],
        "master": {"resources": small},
        "ps": {"replicas": 1, "resources": small},
        "worker": {"replicas": 1, "minReplicas": 1, "maxReplicas": 3, "resources": small},
    }
    return {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": about, "spec": spec}


def other(name: str, cpu: str, priority: int) -> Object:
    """Return a Workload of somebody else in the same queue."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    pods = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": f"kueue.x-k8s.io/{VERSION}",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"queueName": "team", "priority": priority, "podSets": [pods]},
    }


@on_day(1)
def test_others_take_its_pieces_one_by_one_and_its_base_as_a_whole(namespace, scheduler, folder):
    """A job begins with its minimum, grows by pieces, and loses one of them, then all.

    It is queued again, and its pods are gone before its base gives its quota back.
    """

    def runs(workers):
        def look(jobs):
            status = jobs["one"].get("status", {})
            return status if status.get("workersReady") == f"{workers}/{workers}" else None

        return namespace.wait("edljobs", look, within_s=300.0)

    def mine():
        return sorted(each for each in namespace.objects("workloads") if each.startswith("edl-"))

    def is_admitted(name, wanted="True"):
        def look(found):
            return name in found and condition(found[name], "Admitted") == wanted

        return namespace.wait("workloads", look, within_s=120.0)

    namespace.apply(job("one", folder))
    runs(3)
    alone = mine()
    namespace.apply(other("small", "400m", 0))
    is_admitted("small")
    fewer = runs(2)
    namespace.apply(other("large", "2", 9))
    is_admitted("large")
    left = namespace.objects("pods", "edl.dev/job-name=one")
    is_admitted("edl-one-base", "")  # it is another one, and waits
    again = mine()
    namespace.kubectl("delete", "edljob", "one")
    namespace.wait("workloads", lambda found: set(found) == {"large", "small"})

    said = scheduler.read_text()
    assert alone == ["edl-one-base", "edl-one-piece-1", "edl-one-piece-2"]
    assert (fewer["restarts"], fewer["masters"]) == (0, 1)
    assert [phase(pod) for pod in left.values() if phase(pod) == "Running"] == []
    assert again == ["edl-one-base"]
    assert said.count("one: is suspended, it waits for the queue team of Kueue: evicted") == 1
