"""The controller against an API server that fails as real ones do.

The test plays scheduler, kubelet and master: it moves pods, and writes what a master would say.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
from collections.abc import Iterator

import pytest
from tools.apiserver import ApiServer
from tools.waiting import until

from edl.common.errors import UsageError
from edl.common.identity import Identity
from edl.common.retry import Backoff
from edl.k8s import decide, masters, names, objects, pods
from edl.k8s import keys as keys_module
from edl.k8s import reflector as reflector_module
from edl.k8s.api import Api
from edl.k8s.controller import Controller, Metrics
from edl.k8s.reflector import Change

from .edljobs import SPEC, ended, pod, told

JOB = ("edljobs", "demo")
BESIDE = ("leases", "events")
CONFIG, STATUS = ("configmaps", "edl-demo"), ("configmaps", "edl-demo-status")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Shorten the pauses, so that a test need not wait for them."""
    monkeypatch.setattr(keys_module, "_BACKOFF", Backoff(0.02, 60.0))
    monkeypatch.setattr(reflector_module, "_BACKOFF", Backoff(0.05, 0.05))
    monkeypatch.setattr(decide, "_LEFT_S", 0.05)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def controller(api, metrics) -> Iterator[Controller]:
    found = Controller(api, metrics)
    found.start()
    yield found
    found.close()


def submit(api: Api, name: str = "demo", **spec) -> dict:
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": name}}
    merged = {k: v for k, v in {**copy.deepcopy(SPEC), **spec}.items() if v is not None}
    return api.create("EdlJob", {**about, "spec": merged})


def names_of(server: ApiServer, plural: str) -> list[str]:
    with server.lock:
        return sorted(name for kind, name in server.objects if kind == plural)


def phase_is(server: ApiServer, phase: str, key=JOB) -> None:
    server.wait_until(lambda: server.objects[key].get("status", {}).get("phase") == phase)


def condition(server: ApiServer, kind: str, key=JOB) -> dict:
    with server.lock:
        found = server.objects[key].get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


def master_is(server: ApiServer, number: int) -> str:
    """Wait for the master's pod of this number; return its name."""
    name = f"edl-demo-master-{number}"
    server.wait_until(lambda: ("pods", name) in server.objects)
    return name


def says(api: Api, job: dict, state: str = "running", **more) -> None:
    """Tell a status as the job's master would."""
    body = objects.status(job["metadata"]["name"], json.dumps(told(state, **more)))
    body["metadata"]["ownerReferences"] = [objects.owner_reference(job)]
    if api.get("ConfigMap", body["metadata"]["name"]) is None:
        api.create("ConfigMap", body)
    else:
        api.patch("ConfigMap", body["metadata"]["name"], {"data": body["data"]})


def replicas(api: Api, server: ApiServer, job: dict, workers=4, servers=2) -> list[str]:
    """Make the job's pods of servers and workers, running; return their names."""
    made = [pod(job, "ps", i) for i in range(servers)]
    made += [pod(job, "worker", i) for i in range(workers)]
    for each in made:
        api.create("Pod", copy.deepcopy(each))
        server.set_status(each["metadata"]["name"], phase="Running", podIP="10.0.0.9")
    return [each["metadata"]["name"] for each in made]


def run(api: Api, server: ApiServer, job: dict, master: int = 0) -> list[str]:
    """Run the job; return the names of all its pods."""
    name = master_is(server, master)
    server.set_status(name, phase="Running")
    there = replicas(api, server, job)
    says(api, job)
    phase_is(server, "Running")
    return [name, *there]


def requested(server: ApiServer, method: str, part: str) -> int:
    with server.lock:
        return sum(m == method and part in path for m, path in server.requests)


# -- created


def test_an_edljob_gets_all_its_objects_and_a_master(controller, api, server):
    job = submit(api)

    name = master_is(server, 0)
    made = {
        key: value for key, value in server.objects.items() if key != JOB and key[0] not in BESIDE
    }

    assert set(made) == {
        ("secrets", "edl-demo"),
        CONFIG,
        ("services", "edl-demo"),
        ("networkpolicies", "edl-demo"),
        ("poddisruptionbudgets", "edl-demo-ps"),
        ("pods", name),
    }
    owner = {
        "apiVersion": "edl.dev/v1alpha1",
        "kind": "EdlJob",
        "name": "demo",
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    assert all(each["metadata"]["ownerReferences"] == [owner] for each in made.values())
    assert made["poddisruptionbudgets", "edl-demo-ps"]["apiVersion"] == "policy/v1"
    assert made["poddisruptionbudgets", "edl-demo-ps"]["spec"]["minAvailable"] == 1
    data = made["secrets", "edl-demo"]["data"]
    token, identity = (base64.b64decode(data[key]).decode() for key in ("token", "identity"))
    assert Identity.from_variable(identity).token == token != ""
    assert Identity.from_variable(identity).certificate_pem
    assert token not in json.dumps([v for k, v in made.items() if k[0] != "secrets"])


def test_health_is_asked_by_grpc(controller, api, server):
    submit(api)

    master_is(server, 0)

    templates = json.loads(server.objects[CONFIG]["data"][objects.TEMPLATES])
    for template in [server.objects["pods", "edl-demo-master-0"], *templates.values()]:
        container = pods.container_of(template)
        for kind in ("startupProbe", "livenessProbe"):
            assert container[kind]["grpc"] == {"port": names.HEALTH_PORT}


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("v1.28.15", True),
        ("v1.9.0", True),
        ("v1.29.0-gke.1", False),
        ("v2.0.0", False),
        ("", False),
    ],
)
def test_a_cluster_that_is_too_old_is_refused_in_a_sentence(api, server, version, old):
    server.git_version = version

    if old:
        words = f"This cluster is of Kubernetes {version}, and edl needs 1.29 or newer"
        with pytest.raises(UsageError, match=words):
            api.check_version()
    else:
        api.check_version()


def test_the_status_is_the_masters_word_and_what_the_pods_are(controller, api, server):
    job = submit(api)
    run(api, server, job)
    server.wait_until(lambda: server.objects[JOB]["status"].get("workersReady") == "4/4")

    found = server.objects[JOB]["status"]

    assert (found["progress"], found["psReady"], found["restarts"], found["workers"]) == (
        "27 %",
        "2/2",
        3,
        4,
    )


def test_what_is_deleted_beside_the_job_is_made_again(api, server):
    first = Controller(api)
    first.start()
    job = submit(api)
    run(api, server, job)
    first.close()
    server.remove("edl-demo", plural="services")
    second = Controller(api)
    second.start()

    server.wait_until(lambda: ("services", "edl-demo") in server.objects)
    second.close()

    assert names_of(server, "pods").count("edl-demo-master-1") == 0


# -- the master


def test_a_master_that_is_gone_is_made_again_under_another_name(controller, api, server):
    job = submit(api)
    name, *_ = run(api, server, job)

    server.remove(name)

    assert master_is(server, 1) != name
    assert requested(server, "POST", "/pods") == 2 + 6  # two masters; the test's own
    assert server.objects[JOB]["status"]["masters"] == 2


def test_a_master_that_is_being_deleted_is_replaced_at_once(controller, api, server):
    """The node may be lost, and the old pod there for ever. The Lease lets the new one wait.

    Broken once: the new one is made when the old one is gone."""
    job = submit(api)
    name, *_ = run(api, server, job)

    api.delete("Pod", name)

    master_is(server, 1)
    assert name in names_of(server, "pods")


def test_a_master_that_ended_without_a_decision_is_made_again(controller, api, server):
    job = submit(api)
    name, *_ = run(api, server, job)

    server.set_status(name, phase="Failed", containerStatuses=ended(1))

    assert master_is(server, 1) != name


@pytest.mark.parametrize(
    ("state", "code", "phase"), [("done", 0, "Succeeded"), ("failed", 1, "Failed")]
)
def test_a_decided_job_gets_no_other_master(controller, api, server, state, code, phase):
    """Broken once: the pod is looked at, not the status."""
    job = submit(api)
    name, *_ = run(api, server, job)

    says(api, job, state, exit_code=code, message="that is it")
    phase_is(server, phase)
    server.remove(name)
    server.wait_until(lambda: names_of(server, "pods") == ended_ones(server))

    found = server.objects[JOB]["status"]
    assert (found["exitCode"], found["message"]) == (code, "that is it")
    assert found["masters"] == 1


def ended_ones(server: ApiServer) -> list[str]:
    """Return the pods that have ended, or are told to."""
    return sorted(
        name
        for (plural, name), each in server.objects.items()
        if plural == "pods" and "deletionTimestamp" in each["metadata"]
    )


def masters_that_serve(server: ApiServer) -> list[str]:
    pods = [name for name in names_of(server, "pods") if "-master-" in name]
    return [name for name in pods if name not in ended_ones(server)]


def test_the_end_is_seen_although_the_copy_of_the_status_is_old(controller, api, server):
    """The event of the pod's end comes before that of the status: what is done is decided upon what
    the API server itself says. Broken once: the copies are believed."""
    job = submit(api)
    name, *_ = run(api, server, job)
    path = "/api/v1/namespaces/default/configmaps/edl-demo-status"
    with server.lock:  # the status changes, and no watch tells of it
        data = {objects.STATUS: json.dumps(told("done", exit_code=0))}
        server.objects[STATUS]["data"] = data

    server.set_status(name, phase="Failed", containerStatuses=ended(1))
    server.wait_until(lambda: ("GET", path) in server.requests)
    phase_is(server, "Succeeded")

    assert server.objects[JOB]["status"]["masters"] == 1


def test_masters_that_die_soon_after_their_start_are_made_after_growing_pauses(
    api, server, monkeypatch
):
    """Broken once: the pause does not grow."""
    times = [0.0]
    monkeypatch.setattr(masters, "PAUSES", Backoff(100.0, 1000.0))
    controller = Controller(api, clock=lambda: times[0])
    controller.start()
    submit(api)
    first = master_is(server, 0)
    server.set_status(first, phase="Failed", containerStatuses=ended(1))
    second = master_is(server, 1)  # the first time at once

    server.set_status(second, phase="Failed", containerStatuses=ended(7))
    server.wait_until(
        lambda: "2 times in a row" in server.objects[JOB]["status"].get("message", "")
    )
    said, before = server.objects[JOB]["status"]["message"], names_of(server, "pods")
    times[0] = 101.0
    controller._put(("default", "demo"), 0.0)
    master_is(server, 2)
    controller.close()

    assert "exit code 7" in said
    assert before == [first, second]
    assert names_of(server, "pods") == ["edl-demo-master-1", "edl-demo-master-2"]


def test_a_master_that_no_event_has_told_of_yet_did_not_die(controller, api, server):
    """Broken once: the copy of the pods is believed, and each new master counts as a death."""
    job = submit(api)
    name, *_ = run(api, server, job)
    key = ("default", "demo")

    def look():
        """Look at the job where events have come of the EdlJob, and none of its pods."""
        before = requested(server, "GET", "/secrets/edl-demo")
        controller._copies.take("EdlJob", Change(None, api.get("EdlJob", "demo")))
        controller._put(key, 0.0)
        server.wait_until(lambda: requested(server, "GET", "/secrets/edl-demo") > before)

    with server.lock:
        server.hold_watches = True
    server.set_status(name, phase="Failed", containerStatuses=ended(1))
    controller._copies.take("Pod", Change(None, api.get("Pod", name)))
    look()
    master_is(server, 1)
    with controller._lock:
        assert controller._lock.wait_for(lambda: not controller._keys._busy, 20.0)
    for _ in range(3):
        look()

    assert controller._known[key].memory.deaths == 1


# -- suspend, scale, delete


def test_a_suspended_job_loses_its_master_first_and_then_all_pods(controller, api, server):
    job = submit(api)
    there = run(api, server, job)

    api.patch("EdlJob", "demo", {"spec": {"suspend": True}})
    phase_is(server, "Stopping")
    server.wait_until(lambda: ended_ones(server) == [there[0]])
    server.remove(there[0])
    server.wait_until(lambda: ended_ones(server) == sorted(there[1:]))
    for name in there[1:]:
        server.remove(name)
    phase_is(server, "Suspended")

    assert condition(server, "Suspended")["status"] == "True"
    assert server.objects[JOB]["status"]["workersReady"] == "0/4"


def test_a_master_that_does_not_end_does_not_keep_the_room(controller, api, server, monkeypatch):
    """The master's node is lost, or the master still makes pods."""
    monkeypatch.setattr(decide, "GOES_S", 0.2)
    job = submit(api)
    there = run(api, server, job)
    api.patch("EdlJob", "demo", {"spec": {"suspend": True}})
    server.wait_until(lambda: ended_ones(server) == sorted(there))

    assert server.objects["pods", there[0]]["metadata"]["deletionGracePeriodSeconds"] == 1
    api.create("Pod", pod(job, "worker", 9))

    server.wait_until(lambda: ("pods", "edl-demo-worker-9") not in server.objects)


def test_a_resumed_job_gets_a_master_and_a_new_certificate_of_the_same_token(
    controller, api, server
):
    job = submit(api)
    there = run(api, server, job)
    before = dict(server.objects["secrets", "edl-demo"]["data"])
    api.patch("EdlJob", "demo", {"spec": {"suspend": True}})
    server.wait_until(lambda: ended_ones(server) == [there[0]])
    for name in there:
        server.remove(name)
    phase_is(server, "Suspended")

    api.patch("EdlJob", "demo", {"spec": {"suspend": False}})
    master_is(server, 1)
    phase_is(server, "Pending")

    after = server.objects["secrets", "edl-demo"]["data"]
    assert after["token"] == before["token"]
    assert after["identity"] != before["identity"]
    assert (
        server.objects["pods", "edl-demo-master-1"]["metadata"]["ownerReferences"][0]["uid"]
        == (job["metadata"]["uid"])
    )


def test_a_job_that_is_made_suspended_has_no_objects_yet(controller, api, server):
    """Kueue makes a job that way."""
    submit(api, suspend=True)

    phase_is(server, "Suspended")

    assert {key for key in server.objects if key[0] not in BESIDE} == {JOB}


def test_a_scaled_job_is_told_so_and_its_stop_is_kept(controller, api, server):
    job = submit(api)
    run(api, server, job)
    wanted = {
        "num_workers": 4,
        "stop": "enough",
        "checkpoints": ["q"],
    }  # as a controller before this one has it
    api.patch("ConfigMap", "edl-demo", {"data": {objects.WANTED: json.dumps(wanted)}})

    api.patch("EdlJob", "demo", {"spec": {"worker": {"replicas": 7}, "ps": {"replicas": 3}}})

    expected = {"num_workers": 7, "stop": "enough", "num_ps": 3, "checkpoints": ["q"]}
    expected |= {"num_teachers": 0, "max_teachers": 0}
    server.wait_until(
        lambda: json.loads(server.objects[CONFIG]["data"][objects.WANTED]) == expected
    )
    budget = ("poddisruptionbudgets", "edl-demo-ps")
    server.wait_until(lambda: server.objects[budget]["spec"]["minAvailable"] == 2)
    assert condition(server, "Accepted")["status"] == "True"


def test_a_master_is_made_with_the_templates_of_now_and_the_settings_it_began_with(
    controller, api, server
):
    job = submit(api)
    name, *_ = run(api, server, job)
    changed = {"image": "edl:2", "settings": {"minibatch_size": 9}}

    api.patch("EdlJob", "demo", {"spec": changed})
    server.wait_until(lambda: condition(server, "Accepted").get("reason") == "Fixed")
    server.remove(name)
    master_is(server, 1)

    data = server.objects[CONFIG]["data"]
    (container,) = server.objects["pods", "edl-demo-master-1"]["spec"]["containers"]
    worker = json.loads(data[objects.TEMPLATES])["worker"]["spec"]["containers"][0]
    assert (container["image"], worker["image"]) == ("edl:2", "edl:2")
    assert json.loads(data[objects.SETTINGS])["minibatch_size"] == 64
    assert "minibatch_size" in condition(server, "Accepted")["message"]


def test_without_a_volume_the_next_master_goes_on_with_the_last_checkpoint(controller, api, server):
    job = submit(
        api,
        jobVolume=None,
        settings={**SPEC["settings"], "checkpoint_dir": "/kept/c"},
        volumes=[{"name": "kept", "persistentVolumeClaim": {"claimName": "c"}}],
        volumeMounts=[{"name": "kept", "mountPath": "/kept"}],
    )
    name, *_ = run(api, server, job)
    says(api, job, checkpoint="/kept/c/version-40")

    server.remove(name)
    master_is(server, 1)

    settings = json.loads(server.objects[CONFIG]["data"][objects.SETTINGS])
    assert settings["resume"] == "/kept/c/version-40"
    assert condition(server, "Durable")["status"] == "False"


def test_a_deleted_job_is_left_to_its_owner_references(controller, api, server):
    job = submit(api)
    run(api, server, job)
    before = len(server.requests)

    server.remove("demo", plural="edljobs")
    server.remove("edl-demo-master-0")
    submit(api, "other")
    phase_is(server, "Pending", ("edljobs", "other"))
    server.wait_until(lambda: ("pods", "edl-other-master-0") in server.objects)

    touched = [r for r in server.requests[before:] if r[0] != "GET" and "demo" in r[1]]
    assert touched == []


# -- bad specs


def test_a_bad_spec_fails_with_what_to_mend_and_is_tried_again_when_it_is(controller, api, server):
    submit(api, settings={"model_def": "iris"})
    phase_is(server, "Failed")
    said = condition(server, "Failed")["message"]

    api.patch("EdlJob", "demo", {"spec": {"settings": {"training_data": "/d"}}})
    master_is(server, 0)
    phase_is(server, "Pending")

    assert "--training_data" in said
    assert condition(server, "Failed")["status"] == "False"
    assert "completionTime" not in server.objects[JOB]["status"]


def test_a_bad_spec_of_a_job_that_runs_is_told_and_its_master_is_still_replaced(
    controller, api, server
):
    job = submit(api)
    name, *_ = run(api, server, job)

    api.patch("EdlJob", "demo", {"spec": {"worker": {"replicas": 2, "minReplicas": 3}}})
    server.wait_until(lambda: condition(server, "Accepted").get("reason") == "InvalidSpec")
    server.remove(name)
    master_is(server, 1)

    assert server.objects[JOB]["status"]["phase"] == "Running"
    wanted = json.loads(server.objects[CONFIG]["data"][objects.WANTED])
    assert wanted["num_workers"] == 4


def test_a_name_that_somebody_else_has_is_left_alone(controller, api, server):
    taken = {"metadata": {"name": "edl-demo"}, "data": {}}
    api.create("ConfigMap", copy.deepcopy(taken))

    submit(api)
    phase_is(server, "Failed")

    assert condition(server, "Failed")["reason"] == "NameTaken"
    assert server.objects[CONFIG]["data"] == {}
    assert names_of(server, "pods") == []


def test_what_an_earlier_job_of_the_name_has_left_is_not_believed(controller, api, server):
    """The earlier job's status says that it is done. Broken once: owners are not compared."""
    earlier = {
        "apiVersion": "edl.dev/v1alpha1",
        "kind": "EdlJob",
        "metadata": {"name": "demo", "uid": "of-an-earlier-one"},
    }
    says(api, earlier, "done", exit_code=0)
    api.create("Pod", pod(earlier, "worker", 3))

    submit(api)
    master_is(server, 0)

    assert server.objects[JOB]["status"]["phase"] == "Pending"
    assert STATUS not in server.objects
    assert names_of(server, "pods") == ["edl-demo-master-0"]


# -- the API server


@pytest.mark.parametrize("kind", ["pods", "secrets"])
def test_what_is_refused_is_told_and_tried_again_without_a_storm(controller, api, server, kind):
    """Broken once: each try takes a new number, whose status is an event that calls for a try."""
    server.fail("POST", f"/{kind}$", 403, times=4, message="forbidden: exceeded quota")

    submit(api)
    server.wait_until(
        lambda: "exceeded quota" in server.objects[JOB].get("status", {}).get("message", "")
    )
    master_is(server, 0)
    server.wait_until(lambda: condition(server, "Accepted").get("status") == "True")

    assert requested(server, "POST", f"/{kind}") == 5
    assert server.objects[JOB]["status"]["masters"] == 1


@pytest.mark.parametrize("kind", ["secrets", "services", "pods", "configmaps"])
def test_a_creation_whose_answer_was_lost_is_not_made_twice(controller, api, server, kind):
    server.fail("POST", f"/{kind}$", 0, do_it_first=True)

    submit(api)
    master_is(server, 0)
    phase_is(server, "Pending")
    server.wait_until(lambda: ("poddisruptionbudgets", "edl-demo-ps") in server.objects)

    assert [n for n in names_of(server, "pods") if "master" in n] == ["edl-demo-master-0"]


def test_conflicts_are_looked_at_anew(controller, api, server, metrics):
    server.fail("PATCH", "/edljobs/demo/status", 409, times=3)

    submit(api)
    master_is(server, 0)

    assert server.objects[JOB]["status"]["masters"] == 1


def test_the_api_server_goes_away_and_comes_back(controller, api, server):
    job = submit(api)
    name, *_ = run(api, server, job)

    server.fail("GET", "", 503, times=10**6)
    server.forget_history()
    server.remove(name)
    server.faults.clear()

    master_is(server, 1)


def test_after_410_gone_what_was_missed_is_done(controller, api, server):
    job = submit(api)
    name, *_ = run(api, server, job)
    server.hold_watches = True
    server.remove(name)
    api.patch("EdlJob", "demo", {"spec": {"worker": {"replicas": 3}}})

    server.forget_history()

    assert master_is(server, 1) != name
    server.wait_until(
        lambda: json.loads(server.objects[CONFIG]["data"][objects.WANTED])["num_workers"] == 3
    )


def test_an_event_that_never_came_is_found_by_the_next_list(api, server):
    controller = Controller(api, resync_s=0.0)
    controller.start()
    job = submit(api)
    name, *_ = run(api, server, job)

    server.remove(name, tell=False)

    assert master_is(server, 1) != name
    controller.close()


def test_two_controllers_make_one_master(api, server):
    """The Lease keeps them apart; where that fails, names and versions do, and the next look."""
    with contextlib.closing(Controller(api)) as one, contextlib.closing(Controller(api)) as other:
        one.start()
        other.start()
        jobs = [submit(api, f"job{i}") for i in range(8)]
        for i in range(8):
            server.wait_until(lambda i=i: ("pods", f"edl-job{i}-master-0") in server.objects)
        for i, job in enumerate(jobs):
            says(api, job)
            with contextlib.suppress(KeyError):  # both had made one, and the older one went
                server.remove(f"edl-job{i}-master-0")
        wanted = [f"edl-job{i}-master" for i in range(8)]
        server.wait_until(
            lambda: sorted(name.rpartition("-")[0] for name in masters_that_serve(server)) == wanted
        )
    assert all(server.objects["edljobs", f"job{i}"]["status"]["masters"] > 1 for i in range(8))


def test_one_controller_looks_after_all_namespaces(api, server):
    controller = Controller(api.inside(""))
    controller.start()

    submit(api, "here")
    submit(api.inside("other"), "there")
    server.wait_until(lambda: ("pods", "edl-here-master-0") in server.objects)
    server.wait_until(lambda: ("pods", "edl-there-master-0") in server.objects)
    controller.close()

    made = server.objects["pods", "edl-there-master-0"]
    assert made["metadata"]["namespace"] == "other"


ACCOUNTS = [("serviceaccounts", "edl-master"), ("serviceaccounts", "edl-replica")]
ACCOUNTS += [("rolebindings", "edl-master")]


def test_the_first_job_of_a_namespace_brings_the_accounts_of_its_pods(api, server):
    """Each once, and not in the namespace where they are already, by whomever."""
    server.add(
        "serviceaccounts", "edl-master", metadata={"namespace": "team", "labels": {"of": "us"}}
    )
    with contextlib.closing(Controller(api.inside(""))) as controller:
        controller.start()
        submit(api.inside("team"), "one")
        server.wait_until(lambda: ("pods", "edl-one-master-0") in server.objects)
        submit(api.inside("team"), "two")
        server.wait_until(lambda: ("pods", "edl-two-master-0") in server.objects)

    asked = [path for method, path in server.requests if method == "POST" and "team" in path]
    for plural, name in ACCOUNTS:
        assert "team" == server.objects[plural, name]["metadata"]["namespace"]
        tried = sum(path.endswith(f"/{plural}") for path in asked)
        assert sum(kind == plural for kind, _ in ACCOUNTS) == tried
    assert {"of": "us"} == server.objects[ACCOUNTS[0]]["metadata"]["labels"]
    assert server.objects[ACCOUNTS[1]]["automountServiceAccountToken"] is False
    binding = server.objects[ACCOUNTS[2]]
    assert ("ClusterRole", "edl-master") == (binding["roleRef"]["kind"], binding["roleRef"]["name"])
    subject = {"kind": "ServiceAccount", "name": "edl-master", "namespace": "team"}
    assert [subject] == binding["subjects"]
    first = next(i for i, path in enumerate(asked) if path.endswith("/pods"))
    assert all(any(path.endswith(f"/{p}") for path in asked[:first]) for p, _ in ACCOUNTS)


def test_accounts_that_may_not_be_made_are_told_in_the_job(api, server):
    """Broken once: they were made outside of what is told of a refusal."""
    server.fail("POST", "/rolebindings$", 403, message="you may not bind edl-master")
    with contextlib.closing(Controller(api.inside(""))) as controller:
        controller.start()
        submit(api)
        told = "cannot be made: you may not bind edl-master"
        server.wait_until(lambda: told in server.objects[JOB].get("status", {}).get("message", ""))
        master_is(server, 0)  # tried again


def test_a_controller_of_one_namespace_makes_no_accounts(controller, api, server):
    submit(api)
    master_is(server, 0)

    assert not {key for key in server.objects if key in ACCOUNTS}


def test_an_error_of_the_controller_itself_stops_no_other_job(controller, api, server, metrics):
    """Broken once: the thread dies of it."""
    job = submit(api, "odd")
    server.wait_until(lambda: ("pods", "edl-odd-master-0") in server.objects)
    for _ in range(8):
        with server.lock:
            server.objects["edljobs", "odd"]["spec"] = None
            server._note("edljobs", "MODIFIED", server.objects["edljobs", "odd"])

    submit(api)

    master_is(server, 0)
    assert job
    count = metrics.registry.get_sample_value(
        "edl_controller_reconciles_total", {"outcome": "failed"}
    )
    assert count
    assert count >= 1


def test_it_counts_what_it_does(controller, api, server, metrics):
    job = submit(api)
    run(api, server, job)

    labels = {"verb": "create", "kind": "Pod"}
    running = {"phase": "Running"}  # counted after the last thing that the API server hears
    until(lambda: metrics.registry.get_sample_value("edl_controller_jobs", running) == 1)
    assert metrics.registry.get_sample_value("edl_controller_actions_total", labels) == 1
