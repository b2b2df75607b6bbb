"""Two jobs share a real control plane by the scheduler, a pod with the rights of its role."""

from __future__ import annotations

import json

from tools.kube_jobs import counting, statuses
from tools.schedulers import deployment, install
from tools.servers import assert_exact
from tools.turns import in_turn

RECORDS = 1200
FITS = 4  # workers of 3 cores: one on each node


def job(folder, name):
    return counting(
        folder,
        name,
        RECORDS,
        {
            "model_params": {"record_s": 0.05},
            "minibatch_size": 8,
            "num_minibatches_per_task": 2,
        },
        ps={"resources": {"requests": {"cpu": "200m", "memory": "512Mi"}}},
        worker={
            "maxReplicas": FITS,
            "resources": {"requests": {"cpu": "3", "memory": "512Mi"}},
        },
    )


@in_turn(1)
def test_a_second_job_gets_workers_of_the_first_and_both_end_exact(
    cluster, namespace, controller, folder
):
    """Broken once: Looker gave pods that no node has taken yet no room, so both jobs were full."""
    install(namespace)
    namespace.apply(deployment())

    def are_so(until, within_s=600.0):
        return statuses(namespace, until, within_s)

    namespace.apply(job(folder, "first"))
    are_so(lambda s: s["first"].get("phase") == "Running" and s["first"]["workers"] >= 2)
    namespace.apply(job(folder, "second"))
    are_so(lambda s: s.get("second", {}).get("masters"))
    mine = "app.kubernetes.io/component=scheduler"
    (pod,) = namespace.objects("pods", mine)
    namespace.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    done = are_so(lambda s: all(each["phase"] == "Succeeded" for each in s.values()))
    plan = namespace.objects("configmaps")["edl-scheduler"]["data"]["plan.json"]

    told = [line for log in namespace.logs().values() for line in log.splitlines()]
    began = next(i for i, line in enumerate(told) if line.startswith("second: starts with"))
    (before,) = [line for line in told[:began] if line.startswith("first: ")][-1:]
    assert " -> " in before, told  # it gave up workers for the second one
    assert {(each["masters"], each["restarts"]) for each in done.values()} == {(1, 0)}
    for name in done:
        assert_exact(folder / name, RECORDS, 1)
    assert {row["name"] for row in json.loads(plan)["jobs"]} <= {"first", "second"}
    new = namespace.wait("pods", lambda pods: pods.keys() - {pod}, labels=mine)
    assert len(new) == 1
