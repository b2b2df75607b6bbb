"""Commands on a job that is in a cluster, through the real entry."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tools.apiserver import ApiServer
from tools.clustered import NOW, add_pod, say, the_job, waiting, wanted

from edl.cli import dashboard
from edl.k8s.connection import Refused
from edl.k8s.outside import rights
from edl.k8s.outside.job import ClusterJobs, connected
from edl.k8s.reflector import Reflector

Run = Callable[..., tuple[int, str, str]]
AT = ("demo", "-n", "lab")
EVALUATION = {"model_def": "iris", "validation_data": "/d.csv", "checkpoint_dir_for_init": "/c"}


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def state(run: Run) -> dict[str, Any]:
    _, out, _ = run("status", *AT, "-o", "json")
    found: dict[str, Any] = json.loads(out)
    return found


# -- what there is


def test_list_is_a_table_and_names(run: Run, demo: Run) -> None:
    _, table, _ = run("list", "-n", "lab")
    _, wide, _ = run("list", "-n", "lab", "-o", "wide")
    _, said, _ = run("list", "-n", "lab", "-o", "yaml")
    code, name, _ = run("list", "-n", "lab", "-o", "name")

    assert lines(table) == [
        "job state done epoch records/s loss workers time",
        "demo running 60 % 2/3 1,930 0.4821 2 0:42",
    ]
    assert lines(wide)[0].endswith("time servers version restarts message")
    assert [("demo", "running")] == [(e["job_name"], e["state"]) for e in yaml.safe_load(said)]
    assert (0, "demo\n") == (code, name)


@pytest.mark.usefixtures("edljobs")
def test_list_has_edljobs_and_jobs(run: Run, submitted: Run, server: ApiServer) -> None:
    submitted("--as=job")
    status = {"phase": "Running"}
    server.add("edljobs", "other", metadata={"labels": {}}, spec={}, status=status)

    _, out, _ = run("list", "-n", "lab", "-o", "name")

    assert ["other", "demo"] == out.split() or ["demo", "other"] == out.split()


@pytest.mark.usefixtures("edljobs")
def test_who_may_see_edljobs_only_lists_these(run: Run, server: ApiServer) -> None:
    server.forbidden = {("list", "jobs"), ("get", "jobs")}
    server.add("edljobs", "demo", spec={}, status={"phase": "Pending"})

    code, out, _ = run("list", "-n", "lab", "-o", "name")

    assert (0, "demo\n") == (code, out)


def test_no_jobs_in_a_namespace_says_how_to_make_one(run: Run, server: ApiServer) -> None:
    code, out, _ = run("list", "-n", "lab")

    assert (0, "No jobs in the namespace lab: `edl submit -n lab` starts one.\n") == (code, out)


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (None, "the master has no pod yet"),
        (waiting(), "the master cannot be scheduled: 0/4 nodes are available: 4 Insufficient cpu."),
        ({"phase": "Pending"}, "the master's pod is being started"),
        (
            {"phase": "Failed", "reason": "Evicted"},
            "the master's pod ended (was taken away (Evicted)); another one comes",
        ),
    ],
)
def test_status_without_a_master_says_what_is_waited_for(
    run: Run, submitted: Run, server: ApiServer, pod: Any, message: str
) -> None:
    submitted()
    if pod is not None:
        add_pod(server, "master", **pod)

    found = state(run)

    assert ("starting", message) == (found["state"], found["message"])


# Pod Security's own words, of 1.37.
REFUSED = 'pods "edl-demo-x" is forbidden: violates PodSecurity "restricted:latest": hostPath'


def refuse(server: ApiServer, message: str = REFUSED, uid: str = "") -> None:
    """Tell, as Kubernetes' own controller of Jobs does, that a pod was refused."""
    about = {"kind": "Job", "name": "edl-demo", "uid": uid or the_job(server)["metadata"]["uid"]}
    server.add(
        "events",
        f"edl-demo.{len(server.objects)}",
        involvedObject=about,
        type="Warning",
        reason="FailedCreate",
        message=f"Error creating: {message}",
        lastTimestamp=NOW,
    )


def test_status_of_a_job_whose_pod_is_refused_says_by_what(
    run: Run, submitted: Run, server: ApiServer
) -> None:
    submitted("--as=job")
    refuse(server)

    assert f"the master's pod is refused: {REFUSED}" == state(run)["message"]


def test_who_may_not_read_events_sees_the_state_all_the_same(
    run: Run, submitted: Run, server: ApiServer
) -> None:
    submitted("--as=job")
    refuse(server)
    server.forbidden = {("list", "events")}

    assert "the master has no pod yet" == state(run)["message"]


def test_status_of_a_master_that_is_gone_is_not_its_last_word(
    run: Run, demo: Run, server: ApiServer
) -> None:
    server.remove("edl-demo-master-0-abc")

    found = state(run)

    assert ("starting", [], 38912) == (found["state"], found["workers"], found["records_done"])


def test_status_of_a_job_that_failed_without_a_word_is_the_clusters(
    run: Run, submitted: Run, server: ApiServer
) -> None:
    submitted()
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "x"}
    the_job(server)["status"] = {"conditions": [condition]}

    found = state(run)

    assert ("failed", 1, "DeadlineExceeded: x") == (
        found["state"],
        found["exit_code"],
        found["message"],
    )


@pytest.mark.usefixtures("edljobs")
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Succeeded", "exitCode": 3, "message": "m"}, ("done", 3, "m")),
        ({"phase": "Failed", "message": "bad spec"}, ("failed", 1, "bad spec")),
    ],
)
def test_status_of_an_edljob_that_is_over_is_its_phase(
    run: Run, server: ApiServer, status: Any, expected: Any
) -> None:
    server.add("edljobs", "demo", spec={}, status=status)

    found = state(run)

    assert expected == (found["state"], found["exit_code"], found["message"])


def add_event(server: ApiServer, name: str, kind: str = "Pod", **more: Any) -> None:
    server.add(
        "events",
        f"{name}.{len(server.objects)}",
        involvedObject={"kind": kind, "name": name},
        **{"type": "Normal", "reason": "Pulled", "message": "m", "lastTimestamp": NOW, **more},
    )


def test_describe_has_state_pods_and_events(run: Run, demo: Run, server: ApiServer) -> None:
    add_pod(server, "worker", 0)
    add_pod(server, "worker", 1, **waiting())
    add_event(server, "edl-demo-worker-1-abc", type="Warning", reason="FailedScheduling", count=3)

    code, out, _ = run("describe", *AT)
    _, told, _ = run("describe", *AT, "-o", "json")

    shown = lines(out)
    assert (0, True) == (code, "edl train · demo · running" in shown[0])
    assert any(line.startswith("edl-demo-worker-0-abc running 0 ") for line in shown)
    assert any("cannot be scheduled: 0/4 nodes are available" in line for line in shown)
    assert any(line.startswith("Warning FailedScheduling") for line in shown)
    found = json.loads(told)
    assert ["master", "worker", "worker"] == [pod["role"] for pod in found["pods"]]
    assert [3] == [event["count"] for event in found["events"]]


def test_events_are_of_this_job_alone_and_by_time(run: Run, demo: Run, server: ApiServer) -> None:
    add_event(server, "edl-demo-xk2v9", reason="second", lastTimestamp="2026-01-01T00:00:02Z")
    add_event(server, "edl-demo-worker-7-gone", reason="first")
    add_event(server, "edl-demo", "Job", reason="third", lastTimestamp="2026-01-01T00:00:03Z")
    for other in ("edl-demo2-worker-0-a", "edl-demo-b-worker-0-a", "edl-demo-other-master-a"):
        add_event(server, other)

    code, out, _ = run("events", *AT, "-o", "json")

    assert (0, ["first", "second", "third"]) == (code, [e["reason"] for e in json.loads(out)])


def test_events_of_a_local_job_are_the_masters(run: Run, ended: Any) -> None:
    ended("old", {"state": "done"})

    code, out, _ = run("events", "old")

    assert (0, "0:01 worker-0 is here") == (code, lines(out)[0])


def test_top_shows_a_job_of_a_cluster_as_one_of_this_machine(run: Run, demo: Run) -> None:
    _, listed, _ = run("top", "-n", "lab")
    _, told, _ = run("top", *AT)
    _, found, _ = run("top", *AT, "-o", "json")

    assert "demo running 60 % 2/3 1,930" in lines(listed)[3]
    assert "worker-1 is lost: task 17 is leased again from position 128" in told
    assert state(run).items() >= json.loads(found)["status"].items()
    assert ["scale", "checkpoint", "stop", "suspend", "resume"] == json.loads(found)["actions"]


def test_top_adds_up_what_pods_ask_for(run: Run, demo: Run, server: ApiServer) -> None:
    add_pod(server, "worker", 0)

    code, out, _ = run("top", "--pods", *AT)

    assert 0 == code
    assert lines(out) == [
        "pod cpu asked memory asked records/s",
        "edl-demo-master-0-abc 0.5 1,024Mi -",
        "edl-demo-worker-0-abc 0.5 1,024Mi 960",
        "2 pods 1 2,048Mi 960",
        "What they use is not known: this cluster has no metrics API (metrics-server).",
    ]


def test_top_has_what_pods_use_where_it_is_measured(run: Run, demo: Run, server: ApiServer) -> None:
    server.unknown.discard("podmetrics")
    usage = [{"name": "edl", "usage": {"cpu": "123456789n", "memory": "262144Ki"}}]
    labels = server.pods()[0]["metadata"]["labels"]
    server.add("podmetrics", "edl-demo-master-0-abc", metadata={"labels": labels}, containers=usage)

    _, out, _ = run("top", "--pods", *AT)

    assert lines(out)[:2] == [
        "pod cpu asked used memory asked used records/s",
        "edl-demo-master-0-abc 0.5 0.12 1,024Mi 256Mi -",
    ]


# -- logs


@pytest.fixture
def logged(demo: Run, server: ApiServer) -> None:
    for role, index in (("worker", 1), ("worker", 0), ("ps", 0)):
        name = add_pod(server, role, index)
        server.logs[name] = f"{role}{index} a\n{role}{index} b\n".encode()
    server.logs["edl-demo-master-0-abc"] = b"m a\nm b"


@pytest.mark.usefixtures("logged")
def test_a_log_is_followed_until_nobody_reads_it() -> None:
    with connected("lab") as api:
        job = ClusterJobs(api).find("demo")
        asked: Any = {"role": "worker", "index": 0, "tail": None, "follow": True}
        over = threading.Event()
        lines = job.lines(**asked, until=over.is_set)

        assert ["worker0 a", "worker0 b"] == [next(lines), next(lines)]
        over.set()
        assert [] == list(lines)
        assert [] == list(job.lines(**asked, until=lambda: True))


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--tail", "1"],
            ["master | m b", "server-0 | ps0 b", "worker-0 | worker0 b", "worker-1 | worker1 b"],
        ),
        (["--role", "worker", "--index", "1"], ["worker1 a", "worker1 b"]),
        (["--role", "server"], ["ps0 a", "ps0 b"]),
        (["--role", "master"], ["m a", "m b"]),
    ],
)
def test_logs_are_told_by_replica(run: Run, arguments: list[str], expected: list[str]) -> None:
    code, out, _ = run("logs", *AT, *arguments)

    assert (0, expected) == (code, lines(out))


def test_log_of_a_pod_that_waits_says_for_what(run: Run, demo: Run, server: ApiServer) -> None:
    add_pod(server, "worker", 0, **waiting())

    code, out, _ = run("logs", *AT, "--role", "worker")

    assert (0, True) == (code, out.startswith("(cannot be scheduled: 0/4 nodes"))


@pytest.mark.parametrize("more", [[], ["-f"]])
def test_logs_are_those_of_our_container_whatever_stands_beside_it(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], more: list[str]
) -> None:
    """Broken once: "a container name must be specified"."""
    name = add_pod(server, "worker", 0)
    server.objects["pods", name]["spec"]["containers"].insert(0, {"name": "proxy"})
    server.logs |= {f"{name}/proxy": b"p\n", f"{name}/edl": b"w\n"}
    say(server, {**status, "state": "done", "exit_code": 0})

    code, out, _ = run("logs", *AT, "--role", "worker", "--index", "0", *more)

    assert (0, ["w"]) == (code, lines(out))


def test_logs_of_a_job_that_is_over_are_read_before_any_event_has_told_of_its_pods(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken once: where the API server was slow, nothing was printed."""
    monkeypatch.setattr("edl.k8s.outside.logs.Reflector.start", lambda self: None)
    monkeypatch.setattr("edl.k8s.outside.logs.Reflector.close", lambda self: None)
    server.logs |= {add_pod(server, "worker", 0): b"w\n"}
    say(server, {**status, "state": "done", "exit_code": 0})

    code, out, _ = run("logs", *AT, "--role", "worker", "--index", "0", "-f")

    assert (0, ["w"]) == (code, lines(out))


@pytest.mark.parametrize("more", [[], ["-f"]])
def test_log_of_a_master_whose_check_has_ended_it_is_that_of_the_check(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], more: list[str]
) -> None:
    name = "edl-demo-master-0-abc"
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    waits = {"waiting": {"reason": "PodInitializing"}}
    server.objects["pods", name]["spec"]["initContainers"] = [{"name": "check"}]
    server.objects["pods", name]["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "check", "state": ended}],
        "containerStatuses": [{"name": "edl", "state": waits}],
    }
    server.logs |= {f"{name}/check": b"counts\n", f"{name}/edl": b""}
    say(server, {**status, "state": "failed", "exit_code": 1})

    code, out, _ = run("logs", *AT, "--role", "master", *more)

    assert (0, ["counts"]) == (code, lines(out))


def test_log_that_is_not_there_is_an_error(run: Run, demo: Run) -> None:
    code, _, err = run("logs", *AT, "--role", "worker", "--index", "7")

    assert (2, True) == (code, "has no such pod: `edl describe demo -n lab`" in err)


def test_index_without_a_role_is_an_error(run: Run, demo: Run) -> None:
    code, _, err = run("logs", *AT, "--index", "7")

    assert (2, True) == (code, "--index needs --role" in err)


def test_logs_are_followed_to_the_end_of_the_job_with_pods_that_come_later(
    run: Run,
    demo: Run,
    server: ApiServer,
    status: dict[str, Any],
    meanwhile: Callable[[Callable[[], None]], None],
) -> None:
    server.logs["edl-demo-master-0-abc"] = b"m a\n"

    def later() -> None:
        asked = ("GET", "/edl-demo-master-0-abc/log")
        server.wait_until(lambda: any(m == asked[0] and asked[1] in p for m, p in server.requests))
        server.logs["edl-demo-worker-0-abc"] = b"w a\n"
        add_pod(server, "worker", 0)
        server.wait_until(lambda: any("worker-0-abc/log" in p for _, p in server.requests))
        say(server, {**status, "state": "done", "exit_code": 0})

    meanwhile(later)
    code, out, _ = run("logs", *AT, "-f")

    assert (0, ["master | m a", "worker-0 | w a"]) == (code, sorted(lines(out)))


# -- wait


def ends_with(server: ApiServer, status: dict[str, Any], **more: Any) -> Callable[[], None]:
    """Return a function that tells the job's status once the command has asked for one."""

    def act() -> None:
        path = "/configmaps/edl-demo-status"
        server.wait_until(lambda: any(p.endswith(path) for m, p in server.requests if m == "GET"))
        say(server, {**status, **more})

    return act


def test_wait_ends_when_the_job_is_done(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], meanwhile: Any
) -> None:
    meanwhile(ends_with(server, status, state="done", exit_code=0))

    assert (0, "demo is done\n", "") == run("wait", *AT, "--timeout", "20s")


def test_wait_for_a_job_that_fails_is_1_and_says_why(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], meanwhile: Any
) -> None:
    meanwhile(ends_with(server, status, state="failed", exit_code=1, message="no room"))

    code, _, err = run("wait", *AT, "--for", "done")

    assert (1, "edl: error: Job 'demo': It is not done, but failed: no room\n") == (code, err)


@pytest.mark.parametrize(
    ("goal", "ended", "expected"),
    [("running", {}, 0), ("running", {"state": "done"}, 0), ("ended", {"state": "failed"}, 0)],
)
def test_what_has_come_is_not_waited_for(
    run: Run, demo: Run, server: ApiServer, status: Any, goal: str, ended: Any, expected: int
) -> None:
    say(server, {**status, **ended})

    code, _, _ = run("wait", *AT, "--for", goal)

    assert expected == code


def test_wait_gives_up_at_its_timeout(run: Run, demo: Run) -> None:
    code, _, err = run("wait", *AT, "--timeout", "100ms")

    assert (1, "edl: error: Job 'demo': It is not done after 0.1 s, but running.\n") == (code, err)


def test_wait_outlives_a_server_that_is_away(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], meanwhile: Any
) -> None:
    say(server, {**status, "state": "done"})
    server.fail("GET", "/configmaps/edl-demo-status", 0, times=4)

    code, _, _ = run("wait", *AT, "--timeout", "30s")

    assert 0 == code


def test_wait_for_the_end_of_a_deletion(
    run: Run, demo: Run, server: ApiServer, meanwhile: Any
) -> None:
    def delete() -> None:
        server.wait_until(lambda: len(server.requests) > 12)
        server.remove("edl-demo", plural="jobs")

    meanwhile(delete)

    code, out, _ = run("wait", *AT, "--for", "deleted", "--timeout", "20s")

    assert (0, "demo is deleted\n") == (code, out)


def test_wait_for_a_local_job(run: Run, ended: Any) -> None:
    ended("old", {"state": "failed", "message": "m"})

    failed, _, _ = run("wait", "old", "--for", "failed")
    done, _, err = run("wait", "old")

    assert (0, 1, True) == (failed, done, "It is not done, but failed: m" in err)


def test_mistyped_time_is_a_usage_error(run: Run, demo: Run) -> None:
    code, _, err = run("wait", *AT, "--timeout", "soon")

    assert (2, "edl: error: --timeout: 'soon' is no time such as 20s, 500ms or 1m.\n") == (
        code,
        err,
    )


# -- what is done to them


def test_scale_says_what_is_wanted(run: Run, demo: Run, server: ApiServer) -> None:
    code, out, _ = run("scale", *AT, "--num_workers", "5")

    assert (0, "demo: 2 -> 5 workers wanted\n", 5) == (code, out, wanted(server)["num_workers"])


def test_scale_is_tried_again_where_another_change_crossed_it(
    run: Run, demo: Run, server: ApiServer
) -> None:
    server.fail("PUT", "/configmaps/edl-demo", 409)

    code, _, _ = run("scale", *AT, "--num_workers", "5")

    assert (0, 5) == (code, wanted(server)["num_workers"])


def test_a_job_without_teachers_gets_none(run: Run, demo: Run, server: ApiServer) -> None:
    code, _, err = run("scale", *AT, "--num_teachers", "2")

    assert 1 == code
    assert "this job has no teachers of its own: start one with --num_teachers" in err
    assert 0 == wanted(server)["num_teachers"]


def test_teachers_are_scaled_alone(run: Run, submitted: Run, server: ApiServer) -> None:
    submitted("--as=job", "--num_teachers=2", "--without_teachers=fail")

    code, out, _ = run("scale", *AT, "--num_teachers", "1:4")
    by_need = wanted(server)
    refused = run("scale", *AT, "--num_teachers", "0:4")
    none = run("scale", *AT, "--num_teachers", "0")

    assert (0, "demo: 1:4 teachers wanted\n") == (code, out)
    assert (1, 4, 2) == tuple(
        by_need[name] for name in ("num_teachers", "max_teachers", "num_workers")
    )
    assert (1, 0) == (refused[0], none[0])
    assert "none would be waited for" in refused[2]
    assert (0, 0) == tuple(wanted(server)[name] for name in ("num_teachers", "max_teachers"))


@pytest.mark.parametrize(
    ("ended", "code", "told"),
    [
        ({"checkpoint": "/c/version-7", "refused": ""}, 0, "/c/version-7\n"),
        ({"checkpoint": "", "refused": "the disk is full"}, 1, "edl: error: the disk is full\n"),
    ],
)
def test_a_checkpoint_is_asked_of_the_master_who_says_how_it_ended(
    run: Run,
    demo: Run,
    server: ApiServer,
    meanwhile: Any,
    monkeypatch: pytest.MonkeyPatch,
    ended: dict[str, str],
    code: int,
    told: str,
) -> None:
    monkeypatch.setattr("edl.k8s.outside.checkpoint._LOOK_S", 0.02)
    status = state(run)

    def master() -> None:
        server.wait_until(lambda: bool(wanted(server)["checkpoints"]))
        (question,) = wanted(server)["checkpoints"]
        others = {"id": "another", "checkpoint": "/c/version-1", "refused": ""}
        say(server, {**status, "requested": [others, {"id": question, **ended}]})

    meanwhile(master)

    found, out, err = run("checkpoint", "write", *AT)

    assert (code, told) == (found, out + err)


def test_a_checkpoint_that_no_master_writes_is_said_in_time(
    run: Run, demo: Run, server: ApiServer
) -> None:
    code, _, err = run("checkpoint", "write", *AT, "--timeout", "0s")

    assert (1, True, 1) == (
        code,
        "not written after 0 s" in err,
        len(wanted(server)["checkpoints"]),
    )


def test_stop_asks_the_master(run: Run, demo: Run, server: ApiServer) -> None:
    code, out, _ = run("stop", *AT)

    assert (0, "edl stop") == (code, wanted(server)["stop"])
    assert out == "demo is stopping: `edl status demo -n lab` shows when it has.\n"


def test_suspend_ends_the_master_first_then_the_others(
    run: Run, demo: Run, server: ApiServer, meanwhile: Any
) -> None:
    add_pod(server, "worker", 0)
    add_pod(server, "ps", 0)
    before: list[int] = []
    before_it = len(server.requests)

    def job_controller() -> None:
        def looked_for_the_master() -> bool:
            asked = [path for _, path in server.requests]
            methods = [method for method, _ in server.requests]
            after = (
                asked[methods.index("PATCH", before_it) :] if "PATCH" in methods[before_it:] else []
            )
            return any("%28master%29" in path for path in after)

        server.wait_until(looked_for_the_master)
        before.append(len([p for p in server.pods() if "deletionTimestamp" in p["metadata"]]))
        server.remove("edl-demo-master-0-abc")

    meanwhile(job_controller)
    code, out, _ = run("suspend", *AT)

    assert (0, [0], "demo is suspended: `edl resume demo -n lab` goes on\n") == (code, before, out)
    assert {"edl-demo-worker-0-abc", "edl-demo-ps-0-abc"} == {
        p["metadata"]["name"] for p in server.pods() if "deletionTimestamp" in p["metadata"]
    }
    found = state(run)
    assert ("suspended", []) == (found["state"], found["workers"])


def suspended(run: Run, server: ApiServer) -> None:
    server.remove("edl-demo-master-0-abc")
    code, _, err = run("suspend", *AT)
    assert (0, "") == (code, err)


def test_resume_lets_the_master_run_again(run: Run, demo: Run, server: ApiServer) -> None:
    suspended(run, server)

    code, out, _ = run("resume", *AT)

    assert (0, "demo goes on: `edl status demo -n lab`\n") == (code, out)
    assert 1 == the_job(server)["spec"]["parallelism"]
    assert "starting" == state(run)["state"]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("suspend", "Job 'demo' is suspended already"),
        ("stop", "is suspended, so that nobody is there to end it in order"),
    ],
)
def test_what_a_suspended_job_cannot_do(
    run: Run, demo: Run, server: ApiServer, command: str, part: str
) -> None:
    suspended(run, server)

    code, _, err = run(command, *AT)

    assert (1, True) == (code, part in err)


def test_resume_of_what_is_not_suspended_is_an_error(run: Run, demo: Run) -> None:
    assert (1, "", "edl: error: Job 'demo' is not suspended.\n") == run("resume", *AT)


def test_job_that_would_begin_anew_is_suspended_by_force_only(
    run: Run, submitted: Run, server: ApiServer
) -> None:
    submitted()

    refused, _, err = run("suspend", *AT)
    forced, _, _ = run("suspend", *AT, "--force")

    assert (2, True, 0) == (refused, "has no --job_volume" in err, forced)


def test_cancel_ends_all_pods_at_once_and_keeps_the_record(
    run: Run, demo: Run, server: ApiServer, meanwhile: Any
) -> None:
    add_pod(server, "worker", 0)

    def kubelet() -> None:
        def told() -> bool:
            about = server.objects["pods", "edl-demo-master-0-abc"]["metadata"]
            return about.get("deletionGracePeriodSeconds") == 1

        server.wait_until(told)
        server.remove("edl-demo-master-0-abc")
        server.remove("edl-demo-worker-0-abc")

    meanwhile(kubelet)
    code, out, _ = run("cancel", *AT)

    found = state(run)
    assert (0, "demo is cancelled\n") == (code, out)
    assert ("stopped", 130, "edl cancel", 38912) == (
        found["state"],
        found["exit_code"],
        found["message"],
        found["records_done"],
    )
    assert 0 == the_job(server)["spec"]["parallelism"]


@pytest.mark.parametrize("command", ["stop", "suspend", "resume", "cancel", "scale"])
def test_job_that_is_over_is_left_alone(
    run: Run, demo: Run, server: ApiServer, status: dict[str, Any], command: str
) -> None:
    say(server, {**status, "state": "done"})
    flags = ["--num_workers=3"] if command == "scale" else []

    code, _, err = run(command, *AT, *flags)

    assert (1, "edl: error: Job 'demo' is over: done.\n") == (code, err)


def test_delete_deletes_the_owner_of_all(run: Run, demo: Run, server: ApiServer) -> None:
    code, out, _ = run("delete", *AT)

    assert (0, "demo is deleted\n") == (code, out)
    assert ("jobs", "edl-demo") not in server.objects


# -- of an EdlJob


@pytest.fixture
def edljob(edljobs: None, submitted: Run, server: ApiServer) -> dict[str, Any]:
    """Submit an EdlJob, and return its spec."""
    submitted("--job_volume=claim_name=c")
    spec: dict[str, Any] = server.objects["edljobs", "demo"]["spec"]
    return spec


def test_scale_of_an_edljob_changes_its_spec(run: Run, edljob: dict[str, Any]) -> None:
    code, out, _ = run("scale", *AT, "--num_workers", "5")

    assert (0, "demo: 2 -> 5 workers wanted\n", 5) == (code, out, edljob["worker"]["replicas"])


@pytest.mark.parametrize(
    ("fields", "flags", "said"),
    [
        (
            {"worker": {"replicas": 2, "maxReplicas": 2}},
            ["5"],
            "spec.worker.maxReplicas is 2: ask for 2 at most, or raise it.",
        ),
        (
            {"worker": {"replicas": 3, "minReplicas": 2}},
            ["1"],
            "spec.worker.minReplicas is 2: ask for 2 at least, or lower it.",
        ),
        (
            {"command": "launch", "settings": {"script": "a.py"}, "ps": None},
            ["--num_ps", "2"],
            "spec.ps: a script's job has no parameter servers: leave it out.",
        ),
        (
            {"command": "evaluate", "settings": EVALUATION},
            ["--num_teachers", "2"],
            "spec.teacher: only a job that trains has teachers: leave it out.",
        ),
    ],
    ids=["most", "least", "servers", "teachers"],
)
def test_scale_beyond_what_the_spec_allows_is_refused_before_a_change(
    run: Run, edljob: dict[str, Any], fields: Any, flags: Any, said: str
) -> None:
    """Broken once: it is wanted, fewer are made, or the spec is one that the controller refuses."""
    edljob.update(fields)
    before = json.dumps(edljob)

    code, out, err = run("scale", *AT, *flags)

    assert (2, "", f"edl: error: demo: {said}\n") == (code, out, err)
    assert before == json.dumps(edljob)


def test_scale_within_the_bounds_of_the_spec_is_taken(run: Run, edljob: dict[str, Any]) -> None:
    edljob["worker"].update(minReplicas=2, maxReplicas=4)

    codes = [run("scale", *AT, str(number))[0] for number in (2, 4)]

    assert ([0, 0], 4) == (codes, edljob["worker"]["replicas"])


def test_scale_of_a_spec_that_is_refused_anyhow_is_the_controllers_to_judge(
    run: Run, edljob: dict[str, Any]
) -> None:
    """A newer controller may know settings that this command does not."""
    edljob["settings"]["of_tomorrow"] = 1

    code, _, _ = run("scale", *AT, "5")

    assert (0, 5) == (code, edljob["worker"]["replicas"])


def test_teachers_of_an_edljob_change_in_its_spec(
    run: Run, edljobs: None, submitted: Run, server: ApiServer
) -> None:
    submitted("--job_volume=claim_name=c", "--num_teachers=2", "--teacher_pod_priority=low")
    teacher = server.objects["edljobs", "demo"]["spec"]["teacher"]
    before = dict(teacher)

    run("scale", *AT, "--num_teachers", "1:4")
    by_need = dict(teacher)
    code, out, _ = run("scale", *AT, "--num_teachers", "0")

    assert (2, "edl-low") == (before["replicas"], before["priorityClassName"])
    assert (1, 4) == (by_need["replicas"], by_need["maxReplicas"])
    assert (0, "demo: 0 teachers wanted\n", 0) == (code, out, teacher["replicas"])
    assert "maxReplicas" not in teacher


def test_suspend_and_resume_of_an_edljob_change_its_spec(run: Run, edljob: dict[str, Any]) -> None:
    run("suspend", *AT)
    first = (edljob["suspend"], state(run)["state"])
    run("resume", *AT)

    assert ((True, "suspended"), False) == (first, edljob["suspend"])


def test_cancel_of_an_edljob_ends_it_and_keeps_the_record(
    run: Run, edljob: dict[str, Any], server: ApiServer, status: dict[str, Any], meanwhile: Any
) -> None:
    """The controller makes no master while a job is suspended; when it no longer is, it is over."""
    say(server, status)
    add_pod(server, "master", 0)
    suspended = []

    def kubelet() -> None:
        def told() -> bool:
            about = server.objects["pods", "edl-demo-master-0-abc"]["metadata"]
            return about.get("deletionGracePeriodSeconds") == 1

        server.wait_until(told)
        suspended.append(edljob["suspend"])
        server.remove("edl-demo-master-0-abc")

    meanwhile(kubelet)
    code, out, _ = run("cancel", *AT)

    said = json.loads(server.objects["configmaps", "edl-demo-status"]["data"]["status.json"])
    assert (0, "demo is cancelled\n", [True]) == (code, out, suspended)
    assert ("stopped", 130, "edl cancel") == (said["state"], said["exit_code"], said["message"])
    assert not edljob["suspend"]


def test_delete_of_an_edljob_deletes_it(
    run: Run, edljob: dict[str, Any], server: ApiServer
) -> None:
    run("delete", *AT)

    assert ("edljobs", "demo") not in server.objects


def test_delete_of_what_has_finalizers_says_that_it_waits(
    run: Run, edljob: dict[str, Any], server: ApiServer
) -> None:
    """Broken once: it is said to be deleted, while it still exists."""
    server.objects["edljobs", "demo"]["metadata"]["finalizers"] = ["example.com/x", "b.io/y"]

    code, out, _ = run("delete", *AT)

    told = "demo is being deleted: it waits for its finalizers example.com/x, b.io/y\n"
    assert (0, told) == (code, out)
    assert ("edljobs", "demo") in server.objects


def test_stop_of_an_edljob_that_has_not_begun_says_so(run: Run, edljob: dict[str, Any]) -> None:
    code, _, err = run("stop", *AT)

    assert (1, True) == (code, "has not begun yet" in err)


# -- follow


def before_watching(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something be so when the command that follows lists what there is.

    What happens between its list and its watch may come after what another watch tells.
    """
    start, acted = Reflector.start, []

    def late(self: Reflector) -> None:
        if not acted:
            acted.append(act())
        start(self)

    monkeypatch.setattr(Reflector, "start", late)


def watched(server: ApiServer) -> None:
    """Wait until each of a Job's four watches has taken in what was there before it."""
    server.wait_until(lambda: sum("watch=1" in path for _, path in server.requests) >= 4)


def test_follow_shows_what_the_master_waits_for_and_the_end(
    submitted: Run,
    server: ApiServer,
    status: dict[str, Any],
    meanwhile: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cluster() -> None:
        watched(server)
        server.set_status("edl-demo-master-0-abc", phase="Running", conditions=[])
        say(server, {**status, "job_name": "demo", "events": [], "quarantined": []})
        end = {
            "state": "done",
            "exit_code": 3,
            "resume": "/x",
            "events": [{"t": 50.0, "text": "all is done"}],
        }
        say(server, {**status, "job_name": "demo", "quarantined": [], **end})

    before_watching(monkeypatch, lambda: add_pod(server, "master", **waiting()))
    meanwhile(cluster)
    code, out, err = submitted("--follow")

    assert (3, "") == (code, err)
    told = out.splitlines()
    assert "submitted to the namespace lab" == told[0]
    assert "the master cannot be scheduled: 0/4 nodes are available: 4 Insufficient cpu." in told
    assert "[0:50] all is done" in told
    assert "state        finished with quarantined data" in told
    assert "checkpoint" == told[-1].split()[0]  # and no command of this machine


def test_follow_of_a_job_whose_pod_is_refused_says_so_until_it_comes(
    submitted: Run,
    server: ApiServer,
    status: dict[str, Any],
    meanwhile: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        refuse(server, "of another one", uid="another")
        refuse(server)

    def cluster() -> None:
        watched(server)
        add_pod(server, "master", **waiting())
        say(server, {**status, "job_name": "demo", "state": "done", "exit_code": 0})

    before_watching(monkeypatch, refused)
    meanwhile(cluster)
    code, out, err = submitted("--follow", "--as=job")

    assert (0, "") == (code, err)
    assert [f"the master's pod is refused: {REFUSED}"] == [
        line for line in out.splitlines() if "refused" in line
    ]


def test_follow_of_a_job_that_fails_before_its_master_speaks_is_an_error(
    submitted: Run, server: ApiServer, meanwhile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.k8s.outside.follow._LAST_STATUS_S", 0.2)

    def cluster() -> None:
        server.wait_until(lambda: ("networkpolicies", "edl-demo") in server.objects)
        with server.lock:
            reason = {"reason": "BackoffLimitExceeded", "message": "it has failed"}
            failed = {"type": "Failed", "status": "True", **reason}
            the_job(server)["status"] = {"conditions": [failed]}
            server._note("jobs", "MODIFIED", the_job(server))

    meanwhile(cluster)
    code, _, err = submitted("--follow")

    assert 1 == code
    assert err == (
        "edl: error: Job 'demo' failed before it began: BackoffLimitExceeded: it has failed (`edl "
        "logs demo -n lab --role master` may say more)\n"
    )


def test_follow_of_a_definition_that_is_refused_is_a_usage_error(
    submitted: Run, server: ApiServer, meanwhile: Any
) -> None:
    def cluster() -> None:
        server.wait_until(lambda: ("networkpolicies", "edl-demo") in server.objects)
        said = {"state": "failed", "exit_code": 2, "message": "the definition lacks loss"}
        say(server, {"job_name": "demo", **said})

    meanwhile(cluster)
    code, _, err = submitted("--follow")

    assert (2, True) == (code, "the definition lacks loss" in err)


def test_follow_of_a_job_that_is_deleted_is_an_error(
    submitted: Run, server: ApiServer, meanwhile: Any
) -> None:
    def cluster() -> None:
        server.wait_until(lambda: sum("watch=1" in path for _, path in server.requests) >= 3)
        server.remove("edl-demo", plural="jobs")

    meanwhile(cluster)
    code, _, err = submitted("--follow")

    assert (1, "edl: error: Job 'demo' was deleted.\n") == (code, err)


def test_follow_of_a_job_that_is_gone_before_it_is_watched_is_an_error(
    submitted: Run, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken once: no change tells of it, so the command waited for ever."""
    before_watching(monkeypatch, lambda: server.remove("edl-demo", plural="jobs"))
    code, _, err = submitted("--follow")

    assert (1, "edl: error: Job 'demo' was deleted.\n") == (code, err)


def test_follow_outlives_a_server_that_is_away(
    submitted: Run, server: ApiServer, status: dict[str, Any], meanwhile: Any
) -> None:
    def cluster() -> None:
        server.wait_until(lambda: sum("watch=1" in path for _, path in server.requests) >= 3)
        server.fail("GET", "/configmaps[?]limit", 503, times=2)  # of one watch of four
        server.forget_history()
        server.wait_until(lambda: all(fault.times == 0 for fault in server.faults))
        say(server, {**status, "state": "done", "exit_code": 0, "quarantined": []})

    meanwhile(cluster)
    code, out, _ = submitted("--follow")

    assert (0, 1) == (code, out.count("; the job goes on without it, and is followed again then"))


def test_first_interrupt_stops_the_job_the_second_ends_it(
    submitted: Run, server: ApiServer, status: dict[str, Any], meanwhile: Any
) -> None:
    def user() -> None:
        server.wait_until(lambda: sum("watch=1" in path for _, path in server.requests) >= 3)
        add_pod(server, "master")
        say(server, {**status, "job_name": "demo", "quarantined": []})
        os.kill(os.getpid(), signal.SIGINT)
        server.wait_until(lambda: wanted(server)["stop"] == "Ctrl-C")
        os.kill(os.getpid(), signal.SIGINT)
        server.wait_until(lambda: the_job(server)["spec"]["parallelism"] == 0)
        server.remove("edl-demo-master-0-abc")

    meanwhile(user)
    code, out, _ = submitted("--follow")

    assert (130, True) == (code, "state        stopped: killed" in out)
    assert "next         edl logs demo --runtime kubernetes" in out


# -- rights


def test_table_of_rights_is_that_of_the_manifests() -> None:
    from pathlib import Path

    base = Path(__file__).parents[3] / "k8s" / "manifests" / "base"
    found: dict[str, set[rights.Right]] = {}
    for path in ("role-user.yaml", "role-master.yaml"):
        for role in yaml.safe_load_all((base / path).read_text()):
            for rule in role.get("rules", []):
                found.setdefault(role["metadata"]["name"], set()).update(
                    (verb, group, resource)
                    for verb in rule["verbs"]
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                )

    assert found == {role: set(rights.rights(table)) for role, table in rights.ROLES.items()}


@pytest.mark.parametrize("kind", ["job", "edljob"])
def test_every_right_that_is_needed_has_a_role(kind: str) -> None:
    assert [] == [r for r in rights.rights(rights.NEEDED[kind]) if not rights.role_of(r)]


@pytest.mark.usefixtures("demo")
def test_a_page_ends_with_the_credentials_of_its_cluster() -> None:
    told, refused = threading.Event(), Refused("here", "me")
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())

    def page(jobs: ClusterJobs) -> None:
        with dashboard._until_refused(jobs):
            assert jobs.api.connection.on_end is not None
            jobs.api.connection.on_end(refused)
            told.wait(60.0)

    try:
        with connected("lab") as api, pytest.raises(Refused, match="credentials"):
            page(ClusterJobs(api))
    finally:
        signal.signal(signal.SIGTERM, before)

    assert told.is_set()
