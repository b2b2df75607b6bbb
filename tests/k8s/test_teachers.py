"""A teacher as a pod of low priority: a real scheduler takes its room, and it comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tools.jobs import NO_RESTARTS
from tools.kube_api import Object, path_of
from tools.kube_objects import make_pod
from tools.servers import dense
from tools.turns import in_turn

from edl.common import storage
from edl.k8s.names import METRICS_PORT

from .test_controller import RECORDS, spec

SLOW, FAST = "0.3", "0"  # seconds of a step: no more is trained than the test waits for
JOB, MINE = "pupils", "edl.dev/job-name=pupils"
PLACE = {"kubernetes.io/hostname": "pk-0"}  # of the teacher and of the service, of 4 cores


def pupils(folder: Path, rule: str) -> Object:
    """Return an EdlJob of one teacher, for which there is no room beside the service."""
    (folder / "pace").write_text(SLOW)
    made = spec(folder)
    made["settings"] |= {"model_def": "pupil", "model_params": {"records": RECORDS}}
    made["settings"] |= {"strategy": "allreduce", "use_async": False, "num_epochs": 1}
    made["settings"] |= {"without_teachers": rule}
    made["envs"] = {"PACE": str(folder / "pace"), "MINIBATCH": "16"}
    small = {"requests": {"cpu": "300m", "memory": "1Gi"}}
    made["worker"] = {"replicas": 1, "priorityClassName": "edl-high", "resources": small}
    made["teacher"] = {"replicas": 1, "nodeSelector": PLACE, "priorityClassName": "edl-low"}
    made["teacher"] |= {"resources": {"requests": {"cpu": "2"}}}
    about = {"name": JOB}
    return {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": about, "spec": made}


@in_turn(0)
@pytest.mark.parametrize("rule", ["hard_labels", pytest.param("wait", marks=pytest.mark.slow)])
def test_a_teacher_makes_room_for_a_service_and_comes_back(
    cluster, namespace, controller, folder, rule
):
    """The student goes on by its rule; each record is trained once, and nobody else restarts."""

    def told(until):
        def look(maps):
            if (found := maps.get(f"edl-{JOB}-status")) is None:
                return None
            status = json.loads(found["data"]["status.json"])
            assert status["state"] != "failed", status
            return status if until(status) else None

        return namespace.wait("configmaps", look, within_s=500.0)

    def of_others():
        labels = f"{MINE},edl.dev/role in (master,worker)"
        return {pod["metadata"]["uid"] for pod in namespace.objects("pods", labels).values()}

    def edl(*arguments):
        command = [sys.executable, "-m", "edl", *arguments, "-n", namespace.name]
        env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "EDL_RUNTIME": "kubernetes"}
        done = subprocess.run(command, env=env, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    namespace.apply(pupils(folder, rule))
    first = told(lambda s: s["teaching"]["records"])
    others = of_others()

    namespace.apply(make_pod("service", "sleep", "600", cpu="2500m", nodeSelector=PLACE))
    namespace.wait_phase("service", "Running")
    waits = namespace.wait(
        "edljobs", lambda jobs: _waits(jobs[JOB]["status"]) and jobs[JOB]["status"]
    )
    without = told(lambda s: s["restarts"]["teacher_preemptions"] and _goes_on(s, rule))
    namespace.kubectl("delete", "pod", "service", "--grace-period=0", "--force")
    again = told(lambda s: s["teaching"]["records"] >= without["teaching"]["records"] + 64)
    (pod,) = namespace.objects("pods", f"{MINE},edl.dev/role=teacher")
    said = edl("logs", JOB, "--role", "teacher")
    path = path_of("pods", namespace.name, f"{pod}:{METRICS_PORT}/proxy/metrics")
    metrics = namespace.kubectl("get", "--raw", path)
    same = of_others()

    edl("scale", JOB, "--num_teachers", "0")
    namespace.wait("pods", lambda pods: not pods, labels=f"{MINE},edl.dev/role=teacher")
    edl("scale", JOB, "--num_teachers", "1")
    (folder / "pace").write_text(FAST)
    done = told(lambda s: s["state"] == "done")

    taught, untaught = done["teaching"]["records"], done["teaching"]["untaught"]
    checkpoint = storage.latest(str(folder / "checkpoints")).directory
    of_each = dense(checkpoint, "lessons") / (np.arange(RECORDS) % 997 + 1)
    np.testing.assert_allclose(dense(checkpoint, "counts"), 1.0, rtol=1e-5)
    assert {0.0, 1.0} >= set(np.round(of_each, 4).tolist())
    assert (RECORDS, taught) == (taught + untaught, round(of_each.sum()))
    assert (untaught > 0) == (rule == "hard_labels")
    assert {**NO_RESTARTS, "teacher_preemptions": 1} == again["restarts"] == done["restarts"]
    assert others == same
    assert first["teachers"][0]["incarnation"] != again["teachers"][0]["incarnation"]
    assert pod.startswith(f"edl-{JOB}-teacher-0-")
    assert "serving address=" in said
    assert 'edl_records_processed_total{role="teacher"}' in metrics
    assert "0/1" == waits["teachersReady"]


def _waits(status):
    return "a teacher cannot be scheduled" in status.get("message", "")


def _goes_on(status, rule):
    return rule == "wait" or status["teaching"]["untaught"] >= 64
