"""Teachers of a job as pods: what is made, allowed, told and ended of them as of other replicas."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from edl.common.errors import UsageError
from edl.common.resolve import resolve
from edl.common.settings import JobSettings
from edl.k8s import home, job_config, names, objects, pods
from edl.k8s.allowed import Allowed, Installed, NotAllowed
from edl.k8s.home import Home
from edl.k8s.job import adopted, wanted
from edl.k8s.job_status import Situation, status
from edl.k8s.outside import events, state
from edl.k8s.outside.submit import plan
from edl.k8s.reflector import Change
from edl.scheduler import workloads

from .edljobs import edljob, pod, told
from .test_decide import look, settled

NOW = "2026-01-01T00:00:00Z"
SAID = {
    "runtime": "kubernetes",
    "job_name": "demo",
    "image_name": "edl:1",
    "model_def": "iris",
    "training_data": "/d",
    "num_teachers": "1:3",
    "teacher_resource_request": "cpu=2,memory=1Gi,gpu=1",
    "teacher_resource_limit": "cpu=4,memory=2Gi,gpu=1",
    "teacher_pod_priority": "low",
    "volume": "claim_name=c,mount_path=/weights",
    "job_volume": "claim_name=j",
    "image_pull_secret": "registry",
}


def settings(**more):
    return resolve("train", {**SAID, **more})


def taught(**teacher):
    return edljob(teacher={"replicas": 2, **teacher})


def test_the_pod_of_a_teacher_is_made_as_that_of_other_replicas():
    spec = pods.templates(settings())["teacher"]["spec"]
    (container,) = spec["containers"]

    env = {each["name"]: each.get("valueFrom", each.get("value")) for each in container["env"]}
    assert ["python", "-m", "edl.distill"] == container["command"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"},
        "limits": {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": "1"},
    }
    assert ("edl-low", pods.REPLICA_ACCOUNT, False) == (
        spec["priorityClassName"],
        spec["serviceAccountName"],
        spec["automountServiceAccountToken"],
    )
    assert {"secretKeyRef": {"name": "edl-demo", "key": "identity"}} == env["EDL_IDENTITY"]
    assert {"fieldRef": {"fieldPath": "status.podIP"}} == env["EDL_HOST"]
    assert [{"name": "registry"}] == spec["imagePullSecrets"]
    assert ["/weights", "/dev/shm", pods.JOB_DIR] == [
        each["mountPath"] for each in container["volumeMounts"]
    ]
    assert {"startupProbe", "livenessProbe"} <= container.keys()


@pytest.mark.parametrize(
    ("role", "named"), [("teacher", "edl-demo-teacher-1-a1"), ("server", "edl-demo-ps-1-a1")]
)
def test_a_master_takes_the_template_of_the_role(role, named, tmp_path, monkeypatch):
    here = object.__new__(Home)
    here._job, here._settings, here._owner = "demo", settings(), None
    here._templates = pods.templates(settings())
    monkeypatch.setattr(Home, "address", "edl-demo:1")

    made = here._make(role, 1, "a1", {}, (), "")

    assert named == made["metadata"]["name"]
    assert names.COMPONENTS[role] == made["metadata"]["labels"][names.ROLE_LABEL]


def test_a_master_is_told_what_is_wanted_once_until_it_is_something_else(monkeypatch):
    """A ConfigMap of a controller before this one says nothing of teachers."""
    heard, looks = [], []

    class Watch:
        def __init__(self, api, kind, selector, look):
            looks.append(look)

        def start(self):
            pass

    monkeypatch.setattr(home, "Reflector", Watch)
    here = object.__new__(Home)
    here._api, here._job = SimpleNamespace(connection=SimpleNamespace()), "demo"
    here._leadership = type("", (), {"keep": lambda self, fence: None})()
    here.serve(lambda *numbers: heard.append(numbers), lambda why: None, lambda why: None)

    before = {"num_workers": 2, "num_ps": 1, "stop": ""}
    of_now = objects.wanted(JobSettings(num_teachers=1, max_teachers=3))
    for said in (before, of_now, of_now, {**of_now, "num_teachers": 0}):
        found = {"data": {objects.WANTED: json.dumps(said)}}
        looks[0](Change(before=None, after=found, gone=False))

    assert [(2, 1, 0, 0), (2, 1, 1, 3), (2, 1, 0, 3)] == heard


def test_an_edljob_says_its_teachers_where_it_has_some():
    """What the controller makes of it: test_job.py, by the inverse."""
    specs = [plan(each, "edljob")[0]["spec"] for each in (settings(), settings(num_teachers="0"))]

    taught, without = (each.get("teacher") for each in specs)
    assert (1, 3, "edl-low", None) == (
        *(taught[name] for name in ("replicas", "maxReplicas", "priorityClassName")),
        without,
    )
    assert not {"num_teachers", "max_teachers"} & specs[0]["settings"].keys()


def test_places_and_classes_of_a_spec_are_those_of_its_pods():
    toleration = {"key": "spot", "operator": "Exists"}
    job = taught(
        priorityClassName="edl-low",
        nodeSelector={"pool": "gpu"},
        tolerations=[toleration],
        podTemplate={"metadata": {"labels": {"team": "a"}}},
    )

    made = wanted(job, installed=Installed(Allowed(labels=("team",)))).templates

    spec = made["teacher"]["spec"]
    assert ("edl-low", {"pool": "gpu"}) == (spec["priorityClassName"], spec["nodeSelector"])
    assert toleration in spec["tolerations"]
    assert "a" == made["teacher"]["metadata"]["labels"]["team"]
    assert "nodeSelector" not in made["worker"]["spec"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"teacher": {"replicas": 3, "maxReplicas": 2}}, "spec.teacher.maxReplicas is below"),
        ({"settings": {"num_teachers": 1}}, "num_teachers does not stand in an EdlJob: spec.teach"),
        ({"command": "evaluate", "teacher": {"replicas": 1}}, "only a job that trains has"),
        (
            {"command": "launch", "ps": {}, "teacher": {"replicas": 1}},
            "only a job that trains has teach",
        ),
        ({"settings": {"teacher_pod_priority": "low"}}, "spec.teacher.priorityClassName"),
        ({"settings": {"teacher_resource_limit": "cpu=1"}}, "spec.teacher.resources"),
    ],
)
def test_a_wrong_spec_is_one_sentence(spec, why):
    known = edljob()["spec"]["settings"]

    with pytest.raises(UsageError) as found:
        wanted(edljob(**{**spec, "settings": {**known, **spec.get("settings", {})}}))

    assert why in str(found.value)


@pytest.mark.parametrize(
    ("teacher", "where"),
    [
        ({"podTemplate": {"spec": {"hostNetwork": True}}}, "spec.teacher.podTemplate.spec.hostNet"),
        ({"priorityClassName": "system-node-critical"}, "spec.teacher.priorityClassName"),
    ],
)
def test_a_teacher_may_not_be_more_than_a_worker(teacher, where):
    with pytest.raises(NotAllowed) as found:
        wanted(taught(**teacher))

    assert where in str(found.value)


# -- of a job that runs


def test_how_many_is_told_apart_from_what_the_job_began_with():
    """Settings without teachers are those of a job that has none: its workers would not ask."""
    begun = wanted(taught())
    config = {"data": {objects.WANTED: json.dumps(objects.wanted(begun.settings))}}
    config["data"] |= {objects.SETTINGS: begun.settings.to_json()}
    config["data"] |= {objects.TEMPLATES: json.dumps(begun.templates)}
    none = edljob(teacher={"replicas": 0})

    parts, refused = job_config.changes(config, none["spec"], wanted(none), None, whole=True)

    assert ([objects.WANTED], []) == (list(parts), refused)
    assert 0 == json.loads(parts[objects.WANTED])["num_teachers"]
    assert ({}, []) == job_config.changes(
        {"data": {**config["data"], **parts}}, none["spec"], wanted(none), None, whole=True
    )


def test_a_job_that_began_without_teachers_gets_none():
    begun = wanted(edljob()).settings

    kept, refused = adopted(begun, wanted(taught()).settings)

    assert (0, ["num_teachers"]) == (kept.num_teachers, refused)


def rows(*states):
    return [
        {"index": index, "state": each, "heartbeat_age_s": 0.1} for index, each in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("job", "states", "ready"),
    [
        (taught(), ("teaching", "starting"), "1/2"),
        (taught(), (), "0/2"),
        (taught(replicas=1, maxReplicas=4), ("teaching", "teaching"), "2/2"),
    ],
)
def test_a_status_tells_who_teaches_of_those_wanted(job, states, ready):
    there = [pod(job, "teacher", index) for index, _ in enumerate(states)]
    said = told(teachers=rows(*states), restarts={"worker": 1, "teacher": 4})

    found = status(Situation(job=job, pods=there, told=said, masters=1, begun=True), NOW)

    assert (len(states), ready, 5) == (found["teachers"], found["teachersReady"], found["restarts"])


def test_a_status_says_why_a_teacher_waits():
    job = taught()
    waits = pod(job, "teacher", 0, "Pending")
    full = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    waits["status"]["conditions"] = [full]

    found = status(Situation(job=job, pods=[waits], told=told(), masters=1, begun=True), NOW)

    assert "a teacher cannot be scheduled: 0/4 nodes are available" == found["message"]


def test_teachers_end_with_their_job_and_while_it_is_suspended():
    def ends(change):
        world, looker = settled()
        world.put("Pod", pod(world.job, "teacher"))
        world.objects.pop(("Pod", "edl-demo-master-0"))
        change(world)
        _, actions = look(world, looker.memory)
        return {each.name: each.grace_s for each in actions if each.verb == "delete"}

    def over(world):
        text = json.dumps(told("done", exit_code=0))
        owner = world.objects["ConfigMap", "edl-demo"]["metadata"]["ownerReferences"]
        body = objects.status("demo", text)
        body["metadata"]["ownerReferences"] = owner
        world.put("ConfigMap", body)

    assert {"edl-demo-teacher-0": 1} == ends(lambda world: world.job["spec"].update(suspend=True))
    assert {"edl-demo-teacher-0": None} == ends(over)


def test_events_and_order_know_teachers():
    job = taught()
    about = {"kind": "Pod", "name": "edl-demo-teacher-0-a1"}

    assert events._is_about(about, "demo", set())
    assert ["master", "ps", "worker", "teacher"] == [
        each["metadata"]["labels"][names.ROLE_LABEL]
        for each in sorted((pod(job, role) for role in names.ROLES[::-1]), key=state.order)
    ]


def test_kueue_admits_a_job_with_its_teachers():
    job = taught()

    made = workloads.pod_sets(job, wanted(job).templates)

    counts = [(each["name"], each["count"]) for each in made]
    assert [("master", 1), ("ps", 2), ("teacher", 2), ("worker", 1)] == counts
