"""A job whose pods hold other containers: a sidecar, and a proxy that never ends by itself."""

from __future__ import annotations

import pytest
from tools.kube_api import Object
from tools.kube_objects import IMAGE, phase
from tools.servers import assert_exact
from tools.turns import in_turn

from edl.common import storage
from edl.k8s.api import Api
from edl.k8s.outside.job import ClusterJobs

from .test_controller import EPOCHS, MINE, RECORDS, spec

FOREVER = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("beside", flush=True)
time.sleep(1e6)
"""


@pytest.fixture
def allow(allow) -> Object:
    return {**allow, "fields": ["*"]}


def beside(name: str, **more: str) -> Object:
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    command = ["python", "-c", FOREVER]
    return {"name": name, "image": IMAGE, "command": command, "securityContext": restricted, **more}


@in_turn(0, 2)
def test_a_job_ends_and_leaves_nothing_whatever_its_pods_hold_besides(
    cluster, namespace, controller, folder, monkeypatch
):
    """Broken once: the worker's end is seen when all containers have ended, which never is."""
    template = {
        "initContainers": [beside("mesh", restartPolicy="Always")],
        "containers": [beside("proxy")],
    }
    asked = spec(folder)
    asked["settings"]["model_params"] = {"delay_s": 0.05}
    del asked["settings"]["checkpoint_dir"]  # its model is kept in the jobVolume all the same
    asked["worker"] = {**asked["worker"], "podTemplate": {"spec": template}}
    proxies = {"containers": template["containers"]}
    asked["ps"] = {**asked["ps"], "replicas": 1, "podTemplate": {"spec": template}}
    asked["master"] = {**asked["master"], "podTemplate": {"spec": proxies}}
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "counted"}}
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))

    def status_is(until):
        def look(jobs):
            status = jobs["counted"].get("status", {})
            assert status.get("phase") != "Failed", status
            return status if until(status) else None

        return namespace.wait("edljobs", look, within_s=500.0)

    namespace.apply({**about, "spec": asked})
    status_is(lambda s: s.get("workersReady") == "2/2")
    api = Api.connect(namespace.name)
    job = ClusterJobs(api).find("counted")
    lines = list(job.lines(role="worker", index=0, tail=None, follow=False))
    status_is(lambda s: s["phase"] == "Succeeded")
    namespace.wait(
        "pods", lambda pods: all(phase(each) != "Running" for each in pods.values()), labels=MINE
    )
    api.close()

    assert lines
    assert "beside" not in lines
    kept = storage.latest(str(folder / "job/edl-counted/checkpoints"))
    assert_exact(kept.directory, RECORDS, EPOCHS)
