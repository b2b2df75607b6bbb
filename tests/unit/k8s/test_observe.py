"""The words of a pod's state, as schedulers, controllers and kubelets really use them."""

from __future__ import annotations

import pytest

from edl.k8s.observe import OUT_OF_MEMORY, Ended, Running, Waiting, deletion, observe


def pod(phase="Running", *, state=None, deleted=False, **status):
    about = {"name": "p", "uid": "1"}
    if deleted:
        about |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    found = {"phase": phase, **status}
    if state is not None:
        found["containerStatuses"] = [{"name": "edl", "image": "edl:1", "state": state}]
    return {"metadata": about, "status": found}


def ended(code, reason="Error", **more):
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod("Pending"), Waiting()),
        (pod("Pending", state={"waiting": {"reason": "ContainerCreating"}}), Waiting()),
        (pod("Running", podIP="10.0.0.1"), Running("10.0.0.1")),
        (pod("Succeeded", state=ended(0, "Completed")), Ended(0, "")),
        (pod("Failed", state=ended(7)), Ended(7, "")),
        (pod("Failed", state=ended(139, signal=11)), Ended(-11, "")),
        (pod("Failed", state=ended(137)), Ended(-9, "")),
        (pod("Failed", state=ended(137, "OOMKilled")), Ended(OUT_OF_MEMORY, "ran out of memory")),
        (pod("Failed", state=ended(0), deleted=True), Ended(0, "was deleted")),
        (pod("Failed", state=ended(143), deleted=True), Ended(-9, "was deleted")),
        (pod("Failed", state=ended(137), deleted=True), Ended(-9, "was deleted")),
        (pod("Failed", state=ended(3), deleted=True), Ended(3, "")),
        (pod("Failed", deleted=True), Ended(-9, "was deleted")),
        # a node may tell the end of the container first
        (pod("Running", state=ended(1)), Ended(1, "")),
        # deleted, and it runs yet: it hands back what it has
        (pod("Running", deleted=True), Running()),
    ],
)
def test_state_of_a_pod(found, expected):
    assert observe(found) == expected


@pytest.mark.parametrize(
    "reason", ["Evicted", "NodeLost", "NodeShutdown", "Preempting", "OutOfcpu", "Terminated"]
)
def test_what_lies_outside_the_process_is_no_failure(reason):
    found = observe(pod("Failed", state=ended(1), reason=reason, message="no room"))

    assert found == Ended(-9, f"was taken away ({reason}: no room)")


def test_preemption_by_the_scheduler_is_told_by_a_condition():
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempting to accommodate a higher priority pod",
    }

    found = observe(pod("Failed", state=ended(143), conditions=[condition]))

    assert found == Ended(
        -9,
        "was taken away (PreemptionByScheduler: preempting to accommodate a higher priority pod)",
    )


def test_a_pod_that_is_gone_without_a_word():
    assert observe(pod("Running"), gone=True) == Ended(
        -9, "is gone; nobody knows how it ended", unknown=True
    )
    assert observe(pod("Running", deleted=True), gone=True) == Ended(-9, "was deleted")


def test_why_a_pod_is_not_scheduled():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes are available: 4 Insufficient cpu.",
    }

    found = observe(pod("Pending", conditions=[condition]))

    assert found == Waiting("cannot be scheduled: 0/4 nodes are available: 4 Insufficient cpu.")


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        ("ErrImagePull", False),
        ("ImagePullBackOff", False),
        ("InvalidImageName", True),
        ("ErrImageNeverPull", True),
    ],
)
def test_an_image_that_cannot_be_pulled(reason, hopeless):
    found = observe(pod("Pending", state={"waiting": {"reason": reason, "message": "no such"}}))

    assert found == Waiting(f"image edl:1: {reason}: no such", hopeless, image=True)


def test_grace_of_a_deletion():
    assert deletion(pod()) is None
    assert deletion(pod(deleted=True)) == 30
