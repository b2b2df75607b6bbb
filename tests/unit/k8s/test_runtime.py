"""The runtime against an API server that fails as real ones do: each end is told once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Queue

import pytest
from tools.apiserver import ApiServer

from edl.common.settings import JobSettings
from edl.k8s import names, pods
from edl.k8s import runtime as module
from edl.k8s.runtime import KubernetesRuntime
from edl.runtime.base import Exit, Note, Replica, Running

WAIT_S = 300.0
JOB = "demo"
TEMPLATES = pods.templates(JobSettings(job_name=JOB, image_name="edl:1"))


def make(role, index, incarnation, env, arguments, memory):
    return pods.replica(
        TEMPLATES[names.COMPONENTS[role]],
        Replica(role, index, incarnation),
        job=JOB,
        arguments=arguments,
        env=env,
        owner=None,
        memory=memory,
    )


@pytest.fixture
def runtime(api, told) -> Iterator[KubernetesRuntime]:
    found = KubernetesRuntime(api, JOB, make=make, cap=lambda *_: "8Gi", report=told.put)
    yield found
    found.detach()


def start(
    runtime, server: ApiServer, index=0, incarnation="a1", count=1, role="worker"
) -> tuple[Replica, str]:
    replica = runtime.start(role, index, incarnation, {"X": "1", "EDL_TOKEN": "secret"}, ("--x",))
    server.wait_for_pods(count)
    return replica, names.pod_name(JOB, role, index, incarnation)


def next_exit(told: Queue) -> Exit:
    while True:
        found = told.get(timeout=WAIT_S)
        if isinstance(found, Exit):
            return found


def none_more(told: Queue) -> bool:
    """Tell whether no further end was reported (what could be has been: the threads are joined)."""
    try:
        found = told.get_nowait()
    except Empty:
        return True
    return not isinstance(found, Exit)


def terminated(code, reason="Error"):
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return [{"name": "edl", "image": "edl:1", "state": state}]


def test_a_replica_becomes_a_pod_without_its_secrets(runtime, server):
    replica, name = start(runtime, server)

    (pod,) = server.pods()
    container = pod["spec"]["containers"][0]
    env = {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}

    assert replica == Replica("worker", 0, "a1")
    assert pod["metadata"]["name"] == name == "edl-demo-worker-0-a1"
    assert pod["metadata"]["labels"][names.INCARNATION_LABEL] == "a1"
    assert container["args"] == ["--x"]
    assert env["X"] == "1"
    assert env["EDL_TOKEN"] == {"secretKeyRef": {"name": "edl-demo", "key": "token"}}
    assert "secret" not in str([v for k, v in env.items() if k != "EDL_TOKEN"]).replace(
        "secretKey", ""
    )


@pytest.mark.parametrize("role", ["worker", "server", "teacher"])
def test_it_runs_and_ends_and_both_are_told_once(runtime, server, told, role):
    replica, name = start(runtime, server, role=role)

    server.set_status(name, phase="Running", podIP="10.0.0.1")
    assert told.get(timeout=WAIT_S) == Running(replica)
    server.set_status(name, podIP="10.0.0.1", hostIP="10.0.0.2")
    server.set_status(name, phase="Failed", containerStatuses=terminated(3))
    found = told.get(timeout=WAIT_S)
    server.remove(name)
    runtime.close()

    assert found == Exit(replica, 3)
    assert none_more(told)


@pytest.mark.parametrize(("other", "there"), [(None, True), ({"running": {}}, False)])
def test_a_failed_pod_is_kept_for_its_log_unless_its_other_containers_run_on(
    runtime, server, told, other, there
):
    """Nobody else would ever end it. Broken once: it holds its node's room for ever."""
    replica, name = start(runtime, server)
    others = [{"name": "proxy", "image": "p", "state": other}] if other else []

    phase = "Running" if other else "Failed"
    server.set_status(name, phase=phase, containerStatuses=[*others, *terminated(7)])
    found = next_exit(told)
    runtime.start("worker", 1, "b1", {})  # made after what was asked for before
    next_one = names.pod_name(JOB, "worker", 1, "b1")
    server.wait_until(lambda: ("pods", next_one) in server.objects)

    assert Exit(replica, 7) == found
    assert there == ("deletionTimestamp" not in server.objects["pods", name]["metadata"])


def test_a_creation_whose_answer_was_lost_is_found_made(runtime, server, told):
    """Broken once: 409 is taken for a refusal."""
    server.fail("POST", "/pods", 0, do_it_first=True)
    replica, name = start(runtime, server)

    server.set_status(name, phase="Running")

    assert told.get(timeout=WAIT_S) == Running(replica)
    assert len(server.pods()) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_creations_are_tried_until_the_api_server_takes_them(runtime, server, told, status):
    server.fail("POST", "/pods", status, times=2, headers={"Retry-After": "1"})

    start(runtime, server)

    asked = [path for method, path in server.requests if method == "POST"]
    assert len(asked) == 3


def test_what_the_api_server_refuses_is_a_failure_that_says_why(runtime, server, told):
    server.fail("POST", "/pods", 422, message="spec.containers: Required value")

    replica = runtime.start("worker", 0, "a1", {})

    assert told.get(timeout=WAIT_S) == Exit(
        replica, 1, False, "cannot be made: spec.containers: Required value; mend what it asks for"
    )


@pytest.mark.parametrize(
    "why",
    [
        "exceeded quota: compute, requested: cpu=1",
        "maximum memory usage per Container is 512Mi, but limit is 600Mi",
        'violates PodSecurity "restricted:latest": runAsNonRoot != true',
        'User "system:serviceaccount:a:edl-master" cannot create resource "pods"',
    ],
)
def test_what_is_forbidden_is_waited_for_and_told(runtime, server, told, monkeypatch, why):
    monkeypatch.setattr(module, "_QUOTA_S", 0.0)
    server.fail("POST", "/pods", 403, message=why)

    replica, _ = start(runtime, server)

    note = told.get(timeout=WAIT_S)
    assert isinstance(note, Note)
    assert why in note.text
    assert note.replica == replica


def test_who_stops_before_it_was_made_is_not_made(runtime, server, told, monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(module, "_CALL_S", 0.0)
    server.fail("POST", "/pods", 503, times=1)
    replica = runtime.start("worker", 0, "a1", {})

    runtime.stop(replica, 5.0)

    assert next_exit(told).replica == replica
    assert server.pods() == []


def test_a_stopped_replica_has_its_grace_and_then_is_gone(runtime, server, told):
    replica, name = start(runtime, server)
    server.set_status(name, phase="Running")
    assert told.get(timeout=WAIT_S) == Running(replica)

    runtime.stop(replica, 20.0)
    server.wait_until(lambda: "deletionTimestamp" in server.objects["pods", name]["metadata"])
    grace = server.objects["pods", name]["metadata"]["deletionGracePeriodSeconds"]
    server.set_status(name, phase="Failed", containerStatuses=terminated(0, "Completed"))

    assert next_exit(told) == Exit(replica, 0, False, "was deleted")
    assert grace == 20


def test_preempted_is_no_failure_and_says_by_what(runtime, server, told):
    replica, name = start(runtime, server)

    server.set_status(name, phase="Failed", reason="Preempting", message="for a better one")

    assert next_exit(told) == Exit(
        replica, -9, False, "was taken away (Preempting: for a better one)"
    )


def test_a_node_that_never_says_that_a_deleted_pod_ended(runtime, server, told, monkeypatch):
    monkeypatch.setattr(module, "_GIVE_UP_S", 0.0)
    _replica, name = start(runtime, server)

    with server.lock:
        about = server.objects["pods", name]["metadata"]
        about |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    server.set_status(name, phase="Running")
    found = next_exit(told)

    assert found.unknown
    assert found.code == -9
    assert found.why == "was deleted, and its node does not say that it ended"


def test_an_end_that_no_event_told_is_found_by_the_list(runtime, server, told):
    replica, name = start(runtime, server)
    server.set_status(name, phase="Running")
    assert told.get(timeout=WAIT_S) == Running(replica)

    server.remove(name, tell=False)
    server.forget_history()
    found = next_exit(told)

    assert found.replica == replica
    assert found.unknown


def test_memory_grows_after_it_ran_out_up_to_the_cap(runtime, server, told):
    def oom(incarnation: str) -> tuple[str, Exit]:
        _, name = start(runtime, server, incarnation=incarnation)
        pod = next(p for p in server.pods() if p["metadata"]["name"] == name)
        limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        server.set_status(name, phase="Failed", containerStatuses=terminated(137, "OOMKilled"))
        found = next_exit(told)
        with server.lock:
            server.objects.pop(("pods", name), None)
        return limit, found

    found = [oom("a1"), oom("a2"), oom("a3")]

    assert [limit for limit, _ in found] == ["4096Mi", "8Gi", "8Gi"]
    assert [exit.code for _, exit in found] == [-9, 137, 137]
    assert found[0][1].why == "ran out of memory (4096Mi); the next one gets 8Gi"
    assert "--oom_memory_cap" in found[1][1].why


def test_an_image_that_never_can_be_is_a_failure_at_once(runtime, server, told):
    _replica, name = start(runtime, server)

    waiting = {"waiting": {"reason": "InvalidImageName", "message": "bad"}}
    server.set_status(name, containerStatuses=[{"name": "edl", "image": "x y", "state": waiting}])
    found = next_exit(told)
    server.wait_for_pods(0)

    assert (found.code, found.why) == (1, "image x y: InvalidImageName: bad")


def test_an_image_that_cannot_be_pulled_for_long_is_a_failure(runtime, server, told, monkeypatch):
    monkeypatch.setattr(module, "_IMAGE_S", 0.0)
    _, name = start(runtime, server)

    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    server.set_status(name, containerStatuses=[{"name": "edl", "image": "x", "state": waiting}])

    assert next_exit(told).code == 1


def test_why_a_pod_is_not_scheduled_is_told_once(runtime, server, told):
    replica, name = start(runtime, server)
    about = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}

    server.set_status(name, conditions=[about])
    found = [told.get(timeout=WAIT_S)]  # the pod has been seen to wait before it runs
    server.set_status(name, conditions=[about])
    server.set_status(name, phase="Running")
    found.append(told.get(timeout=WAIT_S))

    waits = Note(replica, "waits: cannot be scheduled: 0/4 nodes are available")
    assert found == [waits, Running(replica)]


def test_a_new_master_adopts_what_runs_and_learns_who_is_gone(api, server, told):
    first = KubernetesRuntime(api, JOB, make=make, cap=lambda *_: "8Gi", report=lambda _: None)
    alive, name = start(first, server, 0, "a1")
    gone, other = start(first, server, 1, "b1", count=2)
    first.detach()
    server.remove(other)
    server.set_status(name, phase="Running")

    second = KubernetesRuntime(api, JOB, make=make, cap=lambda *_: "8Gi", report=told.put)
    second.adopt(alive)
    second.adopt(gone)
    found = {told.get(timeout=WAIT_S), told.get(timeout=WAIT_S)}
    server.set_status(name, phase="Failed", containerStatuses=terminated(1))
    last = next_exit(told)
    second.detach()

    unknown = Exit(gone, -9, True, "is gone; nobody knows how it ended")
    assert found == {Running(alive), unknown}
    assert last == Exit(alive, 1)


def test_close_takes_away_what_runs(runtime, server):
    start(runtime, server, 0, "a1")
    start(runtime, server, 1, "b1", count=2)

    runtime.close()

    assert server.pods() == []
    assert not [t for t in threading.enumerate() if t.name == "kubernetes"]


def test_the_api_server_is_away_for_a_while_and_then_all_is_as_wanted(runtime, server, told):
    """Training goes on meanwhile: no call of the runtime waits."""
    replica, name = start(runtime, server)
    server.fail("", "/pods", 503, times=10**6)
    for method in ("GET", "POST", "DELETE"):
        server.fail(method, "/pods", 503, times=10**6)
    server.forget_history()

    second = runtime.start("worker", 1, "b1", {})
    runtime.stop(replica, 5.0)
    server.remove(name, tell=False)
    notes = [told.get(timeout=300.0)]
    server.faults.clear()
    found = next_exit(told)
    server.wait_for_pods(1)

    assert isinstance(notes[0], Note)
    assert "training goes on" in notes[0].text
    assert found.replica == replica
    assert second.incarnation == "b1"
