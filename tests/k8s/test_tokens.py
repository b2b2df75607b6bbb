"""A job outlives the tokens of its master, of the controller and of the scheduler."""

from __future__ import annotations

import threading

import pytest
from tools.kube_api import ApiError, path_of
from tools.kube_jobs import counting, statuses
from tools.kube_objects import phase
from tools.schedulers import controller, deployment, install
from tools.servers import assert_exact

RECORDS, EPOCHS = 8192, 4
LASTS_S = 900.0
TOKEN_S = 600  # of those that process nodes give; they are renewed after 480


def job(folder, name):
    small = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    return counting(
        folder,
        name,
        RECORDS,
        {
            "model_params": {"delay_s": 1.0, "until": str(folder / "go")},
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "num_epochs": EPOCHS,
        },
        jobVolume={"persistentVolumeClaim": {"claimName": name}},
        master={"resources": small},
        ps={"replicas": 1, "resources": small},
        worker={"replicas": 1, "minReplicas": 1, "maxReplicas": 2, "resources": small},
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_job_of_15_minutes_is_exact_though_tokens_live_10(cluster, namespace, folder):
    """At the end the master makes a worker anew, and a second job is begun.

    All three are pods with the tokens of their own accounts.
    """
    install(namespace)
    namespace.claim("data", folder)
    for name in ("long", "late"):
        namespace.claim(name, folder / f"{name}-job")
    cluster.establish("edljobs.edl.dev")
    namespace.apply(controller(folder), deployment())
    request = {"spec": {"audiences": [], "expirationSeconds": TOKEN_S}}
    path = path_of("serviceaccounts", namespace.name, "edl-controller/token")
    first = cluster.api_as(cluster.api.call("POST", path, request)["status"]["token"])
    asks = path_of("pods", namespace.name)
    first.call("GET", asks)

    def are_so(until, within_s=500.0):
        return statuses(namespace, until, within_s)

    namespace.apply(job(folder, "long"))
    are_so(lambda s: s["long"].get("workersReady") == "2/2")
    threading.Event().wait(LASTS_S)
    with pytest.raises(ApiError) as refused:
        first.call("GET", asks)
    mine = "edl.dev/job-name=long,edl.dev/role=worker"
    before = namespace.objects("pods", mine)
    namespace.kubectl("delete", "pod", min(before), "--grace-period=0", "--force", "--wait=false")
    namespace.wait(
        "pods",
        lambda pods: (
            sum(phase(each) == "Running" for each in pods.values()) == 2
            and pods.keys() - before.keys()
        ),
        labels=mine,
    )
    namespace.apply(job(folder, "late"))
    are_so(lambda s: s.get("late", {}).get("workersReady", "0/0") != "0/0" and s["late"]["masters"])
    (folder / "go").touch()
    done = are_so(lambda s: all(each["phase"] == "Succeeded" for each in s.values()), 300.0)

    parts = namespace.objects("pods", "app.kubernetes.io/component in (controller,scheduler)")
    restarts = [each["status"]["containerStatuses"][0]["restartCount"] for each in parts.values()]
    assert refused.value.code == 401
    assert restarts == [0, 0]
    assert {each["masters"] for each in done.values()} == {1}
    for name in done:
        assert_exact(folder / name, RECORDS, EPOCHS)
