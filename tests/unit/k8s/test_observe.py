"""The words of a pod's state, as schedulers, controllers and kubelets really use them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edl.k8s import observe as observe_module
from edl.k8s.observe import (
    OUT_OF_MEMORY,
    Ended,
    Running,
    Waiting,
    deletion,
    is_checking,
    last_words,
    lingers,
    observe,
    takes_room,
)

pytestmark = pytest.mark.fast


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


SIDECAR = {"name": "mesh", "restartPolicy": "Always"}
RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def beside(found, *statuses, init=()):
    """Put other containers into a pod of `pod`: `statuses` as (name, state)."""
    status = found["status"]
    mine = status.get("containerStatuses") or []
    others = [{"name": name, "image": f"{name}:1", "state": state} for name, state in statuses]
    before = [{"name": name, "image": f"{name}:1", "state": state} for name, state in init]
    status |= {"containerStatuses": [*others, *mine], "initContainerStatuses": before}
    found["spec"] = {"initContainers": [SIDECAR, {"name": "setup"}, {"name": "check"}]}
    return found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # a sidecar is told to go when our container has ended, and how it ends is its own affair
        (beside(pod("Succeeded", state=ended(0)), init=[("mesh", ended(143))]), Ended(0, "")),
        (beside(pod("Failed", state=ended(7)), init=[("mesh", ended(137))]), Ended(7, "")),
        (
            beside(pod("Succeeded", state=ended(0)), init=[("mesh", ended(137, "OOMKilled"))]),
            Ended(0, ""),
        ),
        # a container beside ours may run on, have failed, or be out of memory
        (beside(pod("Running", state=ended(3)), ("proxy", RUNS)), Ended(3, "")),
        (beside(pod("Failed", state=ended(0)), ("proxy", ended(1))), Ended(0, "")),
        (beside(pod("Failed", state=ended(0)), ("p", ended(137, "OOMKilled"))), Ended(0, "")),
        (beside(pod("Running", state=RUNS), ("proxy", ended(1))), Running()),
        # another one's image keeps the phase at Pending
        (
            beside(
                pod("Pending", state=RUNS, podIP="10.0.0.1"),
                ("proxy", {"waiting": {"reason": "ErrImagePull"}}),
            ),
            Running("10.0.0.1"),
        ),
        # what comes before ours and fails is an end; what of it is ours grows with our memory
        (
            beside(pod("Failed"), init=[("setup", ended(4))]),
            Ended(1, "its init container setup failed (exit code 4)"),
        ),
        (
            beside(pod("Failed"), init=[("setup", ended(137, "OOMKilled"))]),
            Ended(1, "its init container setup failed (out of memory)"),
        ),
        (
            beside(pod("Failed"), init=[("check", ended(137, "OOMKilled"))]),
            Ended(OUT_OF_MEMORY, "ran out of memory"),
        ),
        (
            beside(pod("Failed", deleted=True), init=[("setup", ended(143))]),
            Ended(-9, "was deleted"),
        ),
        (
            beside(pod("Pending"), init=[("mesh", {"waiting": {"reason": "ErrImagePull"}})]),
            Waiting("image mesh:1: ErrImagePull", image=True),
        ),
    ],
)
def test_the_state_of_a_pod_is_that_of_our_container(found, expected):
    """Broken once: any container's exit is taken."""
    assert expected == observe(found)


def test_a_check_is_going_on_only_while_its_own_container_runs():
    waits = {"waiting": {"reason": "PodInitializing"}}

    assert not is_checking(beside(pod("Pending"), init=[("mesh", RUNS), ("check", waits)]))
    assert is_checking(beside(pod("Pending"), init=[("mesh", RUNS), ("check", RUNS)]))


def test_a_pod_lingers_whose_other_containers_run_on():
    mesh = ("mesh", RUNS)  # which its node ends by itself
    found = {
        "runs": beside(pod(state=RUNS), ("proxy", RUNS)),
        "lingers": beside(pod(state=ended(0)), ("proxy", RUNS)),
        "ends": beside(pod(state=ended(0)), ("proxy", ended(0)), init=[mesh]),
        "over": pod("Failed", state=ended(1)),
    }

    assert ["lingers"] == [name for name, each in found.items() if lingers(each)]
    assert ["runs", "lingers"] == [name for name, each in found.items() if takes_room(each)]


def test_the_last_line_of_what_failed_is_told_without_escapes():
    said = "starts\n\x1b[31medl: error: pods is forbidden\x1b[0m\n\n"

    assert last_words(pod("Failed", state=ended(1, message=said))) == (
        "[31medl: error: pods is forbidden [0m"
    )
    assert last_words(pod("Failed", state=ended(0, message=said))) == ""
    assert last_words(pod("Failed", state=ended(1))) == last_words(pod("Running")) == ""


def test_nobody_else_reads_the_state_of_a_pods_containers():
    """Broken once: `edl describe` counts the restarts itself."""
    root = Path(observe_module.__file__).parents[1]
    folders = ("cli", "dashboard", "distill", "jobs", "k8s", "registry", "scheduler", "serve")
    sources = [path for folder in folders for path in (root / folder).rglob("*.py")]

    readers = {path.name for path in sources if "ontainerStatuses" in path.read_text()}
    phases = re.compile(r"\bpod\b[^\n]*[\"']phase[\"']")
    readers |= {path.name for path in sources if phases.search(path.read_text())}

    assert readers == {"observe.py"}
