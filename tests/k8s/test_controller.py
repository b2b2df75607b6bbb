"""The controller on a real control plane, as the role of the manifests lets it.

kubectl is the user.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.jobs import ZOO, write_records
from tools.kube_api import Object, path_of
from tools.kube_jobs import counting
from tools.kube_objects import IMAGE, phase, volumes
from tools.servers import assert_exact
from tools.turns import in_turn

from edl.common import report, storage

RECORDS, EPOCHS = 4096, 2
MINE = "edl.dev/job-name=counted"


def spec(folder: Path) -> Object:
    small = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return {
        "image": IMAGE,
        "settings": {
            "model_zoo": str(ZOO),
            "model_def": "counting",
            "model_params": {"delay_s": 0.1},
            "training_data": str(write_records(folder / "records.npz", RECORDS)),
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "num_epochs": EPOCHS,
            "use_async": True,
            "lease_s": 4,
            "snapshot_s": 2,
            "checkpoint_dir": str(folder / "checkpoints"),
        },
        **volumes(folder),
        "master": {"priorityClassName": "edl-master", "resources": small},
        "ps": {"replicas": 2, "priorityClassName": "edl-high", "resources": small},
        "worker": {"replicas": 2, "highFraction": 0.5, "resources": small},
    }


@pytest.mark.slow
def test_an_edljob_from_apply_to_delete(cluster, namespace, controller, folder):
    """Apply, scale, delete its master, suspend, resume, await and delete an EdlJob.

    Each record counts once an epoch.
    """
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "counted"}}

    def is_so(until, within_s=500.0):
        def look(jobs):
            status = jobs["counted"].get("status", {})
            assert status.get("phase") != "Failed", status
            return status if until(status) else None

        return namespace.wait("edljobs", look, within_s=within_s)

    def percent(status):
        return status.get("progressPercentage", 0)

    namespace.apply({**about, "spec": spec(folder)})
    is_so(lambda s: s.get("workersReady") == "2/2" and s["psReady"] == "2/2" and percent(s) >= 2)
    head, line = namespace.kubectl("get", "edljobs").splitlines()

    namespace.kubectl("scale", "edljob", "counted", "--replicas=3")
    scaled = is_so(lambda s: s["workersReady"] == "3/3")
    scale = namespace.kubectl("get", "--raw", path_of("edljobs", namespace.name, "counted/scale"))

    (master,) = namespace.objects("pods", f"{MINE},edl.dev/role=master")
    before = set(namespace.objects("pods", f"{MINE},edl.dev/role in (ps,worker)"))
    namespace.kubectl("delete", "pod", master, "--wait=false")
    is_so(lambda s: s["masters"] == 2 and s["phase"] == "Running")
    namespace.wait("pods", lambda pods: master not in pods, labels=f"{MINE},edl.dev/role=master")
    after_master = is_so(lambda s: s["workersReady"] == "3/3")

    suspend = '{"spec": {"suspend": %s}}'
    namespace.kubectl("patch", "edljob", "counted", "--type=merge", f"-p={suspend % 'true'}")
    suspended = is_so(lambda s: s["phase"] == "Suspended")
    left = [pod for pod in namespace.objects("pods", MINE).values() if phase(pod) == "Running"]
    namespace.kubectl("patch", "edljob", "counted", "--type=merge", f"-p={suspend % 'false'}")
    resumed = is_so(lambda s: s["phase"] == "Running" and s["workersReady"] == "3/3")

    done = is_so(lambda s: s["phase"] == "Succeeded", within_s=500.0)
    namespace.kubectl("wait", "edljob/counted", "--for=condition=Succeeded", "--timeout=5s")
    found = storage.latest(str(folder / "checkpoints"))
    namespace.kubectl("delete", "edljob", "counted")
    for kind in ("pods", "configmaps", "secrets", "services", "leases", "networkpolicies"):
        namespace.wait(kind, lambda objects: not objects, labels=MINE)

    assert head.split() == ["NAME", "STATE", "WORKERS", "PS", "PROGRESS", "RESTARTS", "AGE"]
    assert line.split()[:4] == ["counted", "Running", "2/2", "2/2"]
    assert '"replicas":3' in scale
    assert scaled["workers"] == 3
    assert before
    assert after_master["phase"] == "Running"
    assert left == []
    assert suspended["workersReady"] == "0/3"
    assert percent(resumed) >= percent(suspended)  # it went on, from the journal
    assert (done["exitCode"], done["masters"], done["restarts"], percent(done)) == (0, 3, 0, 100)
    assert_exact(found.directory, RECORDS, EPOCHS)
    reports = [report.read(each["report"]) for each in (scaled, suspended, resumed, done)]
    assert [each.suspended for each in reports] == [False, True, False, False]
    assert {each.records_total for each in reports} == {EPOCHS * RECORDS}
    assert (reports[-1].records_left, reports[-1].nearly_done) == (0, True)
    assert reports[-1].workers == report.Bounds(1)  # the default of minReplicas


def test_a_bad_spec_is_told_to_whoever_looks_and_mended(namespace, controller, folder):
    good = spec(folder)
    bad = {**good, "settings": {**good["settings"], "minibatch_size": "many"}}
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "bad"}}

    namespace.apply({**about, "spec": bad})
    namespace.wait("edljobs", lambda jobs: phase(jobs["bad"]) == "Failed")
    told = namespace.kubectl("describe", "edljob", "bad")
    namespace.apply({**about, "spec": {**good, "suspend": True}})
    namespace.wait("edljobs", lambda jobs: phase(jobs["bad"]) == "Suspended")
    namespace.kubectl("delete", "edljob", "bad")

    assert "--minibatch_size (spec.settings.minibatch_size) takes a whole number" in told


@in_turn(0, 2)
def test_pods_that_are_forbidden_or_have_no_place_wait_for_whoever_mends_it(
    namespace, controller, folder
):
    """A LimitRange forbids first the master's pod, then a worker's; no node fits the master's."""

    def most(cpu):
        limits = [{"type": "Container", "max": {"cpu": cpu}, "defaultRequest": {"cpu": "100m"}}]
        about = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most"}}
        namespace.apply({**about, "spec": {"limits": limits}})

    def says(text):
        def look(jobs):
            status = jobs["kept"].get("status", {})
            assert status.get("phase") != "Failed", status
            return status if text in status.get("message", "") else None

        return namespace.wait("edljobs", look)

    limits = {"limits": {"cpu": "600m", "memory": "1Gi"}}
    made = counting(folder, "kept", 64, {"minibatch_size": 16}, suspend=False)
    made["spec"] |= {
        "master": {"resources": limits, "nodeSelector": {"nowhere": "here"}},
        "ps": {"replicas": 1, "resources": limits},
        "worker": {"replicas": 1, "resources": {"limits": {"cpu": "700m", "memory": "1Gi"}}},
    }
    del made["spec"]["scheduling"]
    most("500m")
    namespace.apply(made)
    refused = says("maximum cpu usage per Container is 500m")
    most("600m")
    placeless = says("didn't match Pod's node affinity/selector")
    change = '{"spec": {"master": {"nodeSelector": null}}}'
    namespace.kubectl("patch", "edljob", "kept", "--type=merge", f"-p={change}")
    waits = says("maximum cpu usage per Container is 600m")
    namespace.kubectl("delete", "limitrange", "most")
    done = namespace.wait(
        "edljobs", lambda jobs: phase(jobs["kept"]) == "Succeeded" and jobs["kept"]["status"]
    )
    found = storage.latest(str(folder / "kept"))

    assert (refused["phase"], placeless["phase"]) == ("Pending", "Pending")
    assert "worker 0 waits: the cluster forbids its pod" in waits["message"]
    assert (done["masters"], done["restarts"]) == (2, 0)
    assert_exact(found.directory, 64, 1)
