"""An EdlJob becomes settings and templates, or one error; what there is becomes its status."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import edl
from edl.common.errors import UsageError
from edl.common.report import Bounds, Report, Resize, write
from edl.common.resolve import resolve
from edl.common.settings import JobSettings, knobs
from edl.k8s import job as edljob_module
from edl.k8s import names, pods
from edl.k8s.allowed import Allowed, Installed
from edl.k8s.conditions import Problem
from edl.k8s.confined import confined
from edl.k8s.job import adopted, outlives, wanted
from edl.k8s.job_status import Situation, difference, exit_code, status
from edl.k8s.outside.submit import plan

from .edljobs import edljob, ended, pod, told

pytestmark = pytest.mark.fast

MANIFESTS = Path(edl.__file__).parent / "k8s" / "manifests"
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def container(template):
    return pods.container_of(template)


# -- settings


def test_fields_and_settings_become_what_the_flags_would():
    job = edljob(
        envs={"A": "1"},
        worker={"replicas": 6, "minReplicas": 2, "maxReplicas": 5, "highFraction": 0.5},
        settings={"model_def": "iris", "training_data": "/d", "minibatch_size": 32, "epochs": 3},
    )

    settings = wanted(job).settings

    assert settings == JobSettings(
        job_name="demo",
        runtime="kubernetes",
        job_volume="claim_name=jobs",
        port=names.GRPC_PORT,
        model_def="iris",
        training_data="/d",
        minibatch_size=32,
        num_epochs=3,
        envs={"A": "1"},
        num_workers=5,
        min_workers=2,
        num_ps=2,
        image_name="edl:1",
        worker_pod_priority="0.5",
    )


def test_the_example_of_the_manifests_is_understood():
    job = {**edljob("deepfm"), **yaml.safe_load((MANIFESTS / "examples/deepfm.yaml").read_text())}

    made = wanted(job)

    assert made.templates["worker_high"]["spec"]["priorityClassName"] == "edl-high"
    assert made.templates["worker_low"]["spec"]["priorityClassName"] == "edl-low"
    assert made.templates["ps"]["spec"]["priorityClassName"] == "edl-high"


def test_what_the_command_line_submits_comes_out_as_it_went_in():
    """Compare `edl train --as edljob` with its inverse, the controller; lists in any order."""
    said = {
        "runtime": "kubernetes",
        "job_name": "x",
        "image_name": "i:1",
        "model_def": "iris",
        "training_data": "/d",
        "minibatch_size": 7,
        "worker_pod_priority": "0.5",
        "ps_pod_priority": "high",
        "master_pod_priority": "own",
        "volume": "claim_name=c,mount_path=/p,sub_path=s;claim_name=c,mount_path=/q",
        "job_volume": "claim_name=j",
        "num_workers": 3,
        "min_workers": 2,
        "worker_resource_request": "cpu=2,memory=1Gi,gpu=1",
        "num_teachers": "1:3",
        "teacher_pod_priority": "low",
        "teacher_resource_request": "cpu=2,memory=2Gi",
        "envs": "A=1",
    }
    settings = dataclasses.replace(resolve("train", said), port=names.GRPC_PORT)

    (job,) = plan(settings, "edljob")
    job["metadata"]["uid"] = "u"
    made = wanted(job, installed=Installed(Allowed(priority_classes=("edl-*", "own"))))
    base = pods.templates(settings)
    base["master"] = confined(base, "u", "i:1", "IfNotPresent", ())

    computes = {k.name for k in knobs() if k.group != "Cluster"}
    before, after = dataclasses.asdict(settings), dataclasses.asdict(made.settings)
    assert {k for k in computes if before[k] != after[k]} == set()
    assert unordered(made.templates) == unordered(base)


def unordered(value):
    if isinstance(value, dict):
        return {key: unordered(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted((unordered(each) for each in value), key=repr)
    return value


BAD = [
    ({"settings": {"model_def": "iris"}}, "--training_data"),
    ({"settings": {"model_def": "iris", "modeldef": 1}}, "no setting --modeldef"),
    (
        {"settings": {"model_def": "iris", "training_data": "/d", "minibatch_size": "many"}},
        "--minibatch_size (spec.settings.minibatch_size)",
    ),
    (
        {"settings": {"model_def": "iris", "training_data": "d.csv"}},
        "--training_data (spec.settings.training_data)",
    ),
    (
        {"worker": {"replicas": 1, "minReplicas": 2}},
        "spec.worker.minReplicas is more than spec.worker.replicas",
    ),
    (
        {"worker": {"replicas": 9, "minReplicas": 4, "maxReplicas": 3}},
        "spec.worker.minReplicas is more than spec.worker.maxReplicas",
    ),
    ({"worker": {"highFraction": 0.5, "priorityClassName": "x"}}, "leave out one of them"),
    ({"worker": {"low": {"nodeSelector": {"a": "b"}}}}, "spec.worker.low is of the workers that"),
    ({"volumes": [{"name": "shm", "emptyDir": {}}]}, "the name shm is edl's own"),
    ({"worker": {"replicas": 10**6}}, "spec.worker.replicas is at most 10000, not 1000000."),
    (
        {"worker": {"replicas": 2, "maxReplicas": 10**9}},
        "spec.worker.maxReplicas is at most 10000, not 1000000000.",
    ),
    ({"ps": {"replicas": 1025}}, "--num_ps (spec.ps.replicas) is at most 1024, not 1025."),
    (
        {"teacher": {"replicas": 1, "maxReplicas": 10**6}},
        "spec.teacher.maxReplicas is at most 10000, not 1000000.",
    ),
    ({"ps": {"resources": {"limits": {"memory": "1e30"}}}}, "is more than a cluster counts to"),
    ({"ps": {"resources": {"limits": {"memory": "1e999999999"}}}}, "is no quantity"),
    (
        {"settings": {"model_def": "iris", "training_data": "/d", "oom_memory_cap": "lots"}},
        "--oom_memory_cap: 'lots' is no quantity",
    ),
    ({"worker": {"resources": {"requests": {"cpu": "2u"}}}}, "spec.worker.resources: '2u'"),
    (
        {"ps": {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}},
        "below what is asked for",
    ),
    ({"worker": {"podTemplate": {"spec": {"containers": "edl"}}}}, "podTemplate"),
    ({"settings": {"model_def": "iris", "training_data": "/d", "job_name": "x"}}, "metadata.name"),
    ({"settings": {"model_def": "iris", "training_data": "/d", "image": "x"}}, "spec.image"),
]


@pytest.mark.parametrize(("spec", "said"), BAD, ids=lambda each: str(each)[:40])
def test_a_bad_spec_is_one_sentence_that_names_the_field(spec, said):
    with pytest.raises(UsageError) as found:
        wanted(edljob(**spec))

    assert said in str(found.value)


ABOVE = [  # of each setting that is a number the first that is too much
    (knob, value)
    for knob in knobs()
    if knob.kind in (int, float, int | None)
    for value in (knob.most + 1, 1e30 if knob.kind is float else 10**30)
]


@pytest.mark.parametrize(("knob", "value"), ABOVE, ids=lambda each: getattr(each, "name", ""))
def test_every_number_has_a_bound_on_the_command_line_and_in_an_edljob(knob, value):
    """Broken once: a pod with a grace of 1e9 s, which stays for decades when it is deleted."""
    said = {"model_def": "iris", "training_data": "/d", knob.name: value}

    with pytest.raises(UsageError, match=f"^--{knob.name} is at most {knob.most}( s)?, not "):
        resolve("train", {"runtime": "kubernetes", "image_name": "i:1", **said})
    with pytest.raises(UsageError) as refused:
        wanted(edljob(settings=said))
    assert "at most" in str(refused.value) or "does not stand in an EdlJob" in str(refused.value)
    assert "\n" not in str(refused.value)


SCRIPT = {"script": "train.py", "checkpoint_dir": "/saves"}
LAUNCH = {
    "command": "launch",
    "ps": None,
    "worker": {"replicas": 1},
    "volumes": [{"name": "saves", "persistentVolumeClaim": {"claimName": "saves"}}],
    "volumeMounts": [{"name": "saves", "mountPath": "/saves"}],
}


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("stop_timeout", "2h", "3600s"),
        ("stop_timeout", "9" * 400, "3600s"),
        ("lease", "61m", "3600s"),
        ("last_call", "200h", "604800s"),
        ("freeze", "200h", "604800s"),
        ("nearly_done", "200h", "604800s"),
        ("nproc_per_node", 1025, "1024, not 1025"),
        ("max_restarts", 2**31, "2147483647, not 2147483648"),
    ],
)
def test_every_number_of_a_script_has_a_bound_too(name, value, most):
    said = {**SCRIPT, name: value}

    with pytest.raises(UsageError, match=rf"^--{name} .*at most {most}\.$"):
        resolve("launch", {"runtime": "kubernetes", "image_name": "i:1", "nodes": "1", **said})
    with pytest.raises(UsageError, match=rf"^--{name} \(spec\.settings\.{name}\) .*at most"):
        wanted(edljob(**LAUNCH, settings=said))


def test_the_longest_grace_of_a_pod_is_of_an_hour():
    train = {"model_def": "iris", "training_data": "/d", "drain_grace_s": 3600}
    script = {**SCRIPT, "stop_timeout": "1h"}

    made = [wanted(edljob(settings=train)), wanted(edljob(**LAUNCH, settings=script))]
    longest = [
        max(each["spec"]["terminationGracePeriodSeconds"] for each in one.templates.values())
        for one in made
    ]

    assert longest == [3660, 3610]


def test_a_name_that_is_too_long_for_pods_is_refused():
    with pytest.raises(UsageError, match="metadata.name is made of at most 50"):
        wanted(edljob("a" * 51))


def test_every_setting_that_has_a_field_is_refused_among_the_settings():
    """Broken once: the alias of a setting gets through."""
    elsewhere = [
        spelled
        for knob in knobs()
        if knob.name in edljob_module._ELSEWHERE
        for spelled in (knob.name, *knob.aliases)
    ]
    for name in elsewhere:
        with pytest.raises(UsageError, match="does not stand in an EdlJob"):
            wanted(edljob(settings={"model_def": "iris", "training_data": "/d", name: "1"}))

    assert len(elsewhere) >= 24


# -- templates


def test_resources_are_those_of_the_spec_alone():
    """Broken once: the defaults of the flags show through."""
    job = edljob(
        worker={"resources": {"requests": {"cpu": "500m", "nvidia.com/gpu": 1}}},
        ps={"resources": {"limits": {"memory": "2Gi"}}},
    )

    made = wanted(job).templates

    assert container(made["worker"])["resources"] == {
        "requests": {"cpu": "500m", "nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    assert container(made["ps"])["resources"] == {
        "requests": {"memory": "2Gi"},
        "limits": {"memory": "2Gi"},
    }


def test_what_has_no_flag_is_laid_over_the_pods_of_its_role():
    job = edljob(
        imagePullSecrets=[{"name": "registry"}],
        worker={
            "priorityClassName": "high",
            "nodeSelector": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "podTemplate": {
                "metadata": {"labels": {"team": "a", "edl.dev/role": "master"}},
                "spec": {"containers": [{"name": "edl", "workingDir": "/w"}]},
            },
        },
    )

    some = Allowed(pull_secrets=("registry",), priority_classes=("high",), labels=("team",))
    made = wanted(job, installed=Installed(some)).templates
    worker, ps = made["worker"], made["ps"]

    assert worker["spec"]["priorityClassName"] == "high"  # a class of the cluster, no word of ours
    assert worker["spec"]["nodeSelector"] == {"pool": "spot"}
    assert {"key": "spot", "operator": "Exists"} in worker["spec"]["tolerations"]
    assert container(worker)["workingDir"] == "/w"
    assert container(worker)["image"] == "edl:1"
    assert (worker["metadata"]["labels"]["team"], worker["metadata"]["labels"]["edl.dev/role"]) == (
        "a",
        "worker",
    )
    assert all(each["spec"]["imagePullSecrets"] == [{"name": "registry"}] for each in made.values())
    assert "nodeSelector" not in ps["spec"]
    assert "priorityClassName" not in ps["spec"]


def test_a_fraction_of_the_workers_may_be_on_other_nodes():
    market, toleration = "karpenter.sh/capacity-type", {"key": "spot", "operator": "Exists"}
    low = {"nodeSelector": {market: "spot"}, "tolerations": [toleration]}
    worker = {"highFraction": 0.25, "nodeSelector": {market: "on-demand", "a": "b"}, "low": low}

    made = wanted(edljob(worker=worker)).templates

    places = {role: made[role]["spec"].get("nodeSelector") for role in names.TEMPLATES}
    assert places["worker_high"] == {market: "on-demand", "a": "b"}
    assert places["worker_low"] == {market: "spot", "a": "b"}
    assert toleration in made["worker_low"]["spec"]["tolerations"]
    assert toleration not in made["worker_high"]["spec"]["tolerations"]
    assert places["master"] is None


def test_a_volume_may_be_mounted_twice():
    """Broken once: mounts are merged by the name of their volume."""
    job = edljob(
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        volumeMounts=[
            {"name": "data", "mountPath": "/a", "subPath": "a"},
            {"name": "data", "mountPath": "/b", "subPath": "b"},
        ],
    )

    for template in wanted(job).templates.values():
        mounts = {m["mountPath"]: m for m in container(template)["volumeMounts"]}
        assert (mounts["/a"]["subPath"], mounts["/b"]["subPath"]) == ("a", "b")
        source = {"persistentVolumeClaim": {"claimName": "c"}}
        assert {"name": "data", **source} in template["spec"]["volumes"]


@pytest.mark.parametrize(
    "source",
    [{"persistentVolumeClaim": {"claimName": "c"}}, {"nfs": {"server": "n", "path": "/"}}],
)
def test_any_volume_holds_the_jobs_folder_of_master_and_servers(source):
    """And keeps its checkpoints."""
    some = Installed(Allowed(fields=("spec.jobVolume.nfs",)))
    told = wanted(edljob(jobVolume=source), installed=some)
    made = told.templates

    assert told.settings.keeps_checkpoints
    assert JobSettings.from_json(told.settings.to_json()) == told.settings
    assert names.volume(told.settings.job_volume, "") == source

    for role in ("master", "ps"):
        (mount,) = [m for m in container(made[role])["volumeMounts"] if m["name"] == "job"]
        assert {"name": "job", **source} in made[role]["spec"]["volumes"]
        assert mount["subPath"] == "edl-demo"
    assert "job" not in [each["name"] for each in made["worker"]["spec"]["volumes"]]


@pytest.mark.parametrize("source", [None, {"emptyDir": {"sizeLimit": "1Gi"}}])
def test_what_ends_with_a_pod_keeps_no_checkpoints(source):
    assert not wanted(edljob(jobVolume=source)).settings.keeps_checkpoints


def test_a_path_outlives_the_pod_where_a_lasting_volume_is_mounted():
    job = edljob(
        volumes=[
            {"name": "kept", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "lost", "emptyDir": {}},
        ],
        volumeMounts=[
            {"name": "kept", "mountPath": "/kept"},
            {"name": "lost", "mountPath": "/lost"},
        ],
    )
    template = wanted(job).templates["ps"]

    paths = ["/kept/a", "/kept", "/lost/a", "/elsewhere", "/keptnot", "s3://b/a", ""]

    assert [p for p in paths if outlives(p, template)] == ["/kept/a", "/kept", "s3://b/a"]


def test_a_job_that_has_begun_takes_how_it_runs_and_keeps_what_it_computes():
    begun = wanted(edljob()).settings
    changed = edljob(
        image="edl:2",
        ps={"replicas": 3},
        settings={"model_def": "iris", "training_data": "/data/iris.csv", "minibatch_size": 9},
    )

    settings, refused = adopted(begun, wanted(changed).settings)

    assert refused == ["minibatch_size"]
    assert (settings.image_name, settings.num_ps, settings.minibatch_size) == ("edl:2", 3, 64)


def test_only_a_job_that_trains_on_servers_alone_may_have_others():
    begun = dataclasses.replace(wanted(edljob()).settings, strategy="hybrid")
    changed = dataclasses.replace(begun, num_ps=3)

    settings, refused = adopted(begun, changed)

    assert (settings.num_ps, refused) == (2, ["num_ps"])


def test_a_job_of_an_earlier_edl_listens_where_its_next_masters_pod_says():
    asked = wanted(edljob())
    begun = dataclasses.replace(asked.settings, port=50001)  # among those that calls take

    settings, refused = adopted(begun, asked.settings)

    (port,) = [p for p in container(asked.templates["master"])["ports"] if p["name"] == "grpc"]
    assert (settings.port, refused) == (port["containerPort"], [])


# -- status


def situation(job=None, found=(), said=None, **more):
    return Situation(
        job=job or edljob(), pods=list(found), told=said, masters=1, **{"begun": True, **more}
    )


def running(job):
    pods_there = [pod(job, "ps", i) for i in range(2)] + [pod(job, "worker", i) for i in range(4)]
    return [pod(job, "master"), *pods_there]


def test_a_job_that_runs():
    job = edljob()

    found = status(situation(job, running(job), told(message="")), NOW)

    assert {k: v for k, v in found.items() if k != "conditions"} == {
        "phase": "Running",
        "observedGeneration": 1,
        "selector": "edl.dev/job-name=demo,edl.dev/role in (worker)",
        "masters": 1,
        "workers": 4,
        "workersReady": "4/4",
        "ps": 2,
        "psReady": "2/2",
        "restarts": 3,  # preemption never counts
        "progress": "27 %",
        "progressPercentage": 27,
        "epoch": 2,
        "startTime": NOW,
    }


def test_who_is_told_to_work_in_a_pod_that_is_gone_does_not_count():
    """Broken once: the master's word alone counts, which is old while it is away."""
    job = edljob()
    there = [
        pod(job, "worker", 0),
        pod(job, "worker", 1, "Pending"),
        pod(job, "worker", 2, "Failed"),
    ]
    said = told()
    said["workers"][3]["heartbeat_age_s"] = None

    found = status(situation(job, there, said), NOW)

    assert (found["workersReady"], found["workers"]) == ("1/4", 2)


PHASES = [
    ("Pending", {}, [], None),
    ("Pending", {}, ["master"], {"state": "starting"}),
    ("Running", {}, ["master", "worker"], {"state": "running"}),
    ("Pending", {}, ["master"], {"state": "running"}),  # nothing trains
    ("Pending", {}, ["master", "ps"], {"state": "running"}),
    ("Running", {}, ["worker"], {"state": "running"}),  # without a master for a while
    ("Pending", {}, [], {"state": "running"}),  # what it said before it was suspended
    ("Stopping", {}, ["master"], {"state": "stopping"}),
    ("Stopping", {"suspend": True}, ["worker"], {"state": "running"}),
    ("Suspended", {"suspend": True}, [], {"state": "running"}),
    ("Succeeded", {}, ["master"], {"state": "done", "exit_code": 0}),
    ("Succeeded", {"suspend": True}, [], {"state": "done", "exit_code": 0}),
    ("Failed", {}, [], {"state": "failed", "exit_code": 1}),
    ("Failed", {}, [], {"state": "stopped", "exit_code": 130}),
    ("Failed", {}, [], {"state": "done", "exit_code": 3}),
]


@pytest.mark.parametrize(("phase", "spec", "there", "said"), PHASES)
def test_the_phase(phase, spec, there, said):
    job = edljob(**spec)
    pods_there = [pod(job, role) for role in there]

    found = status(situation(job, pods_there, said and told(**said)), NOW)

    so = {each["type"]: each["status"] == "True" for each in found["conditions"]}
    assert found["phase"] == phase
    assert so == {
        "Accepted": True,
        "Durable": True,
        "Ready": phase in ("Running", "Suspended", "Succeeded"),
        "Stalled": phase == "Failed",
        **{kind: kind == phase for kind in ("Running", "Suspended", "Succeeded", "Failed")},
    }


def test_a_bad_spec_fails_what_has_not_begun_and_leaves_alone_what_has():
    job = edljob()
    problem = Problem("InvalidSpec", "mend it")

    before = status(situation(job, problem=problem, begun=False), NOW)
    after = status(situation(job, running(job), told(), problem=problem), NOW)

    accepted, failed = before["conditions"][0], before["conditions"][-1]
    assert (before["phase"], before["message"]) == ("Failed", "mend it")
    assert (accepted["status"], accepted["reason"], accepted["message"]) == (
        "False",
        "InvalidSpec",
        "mend it",
    )
    assert (failed["status"], failed["reason"], failed["message"]) == (
        "True",
        "InvalidSpec",
        "mend it",
    )
    assert "completionTime" not in before
    assert (after["phase"], after["message"]) == ("Running", "mend it")


def test_a_condition_keeps_its_time_until_it_turns():
    job = edljob()
    job["status"] = status(situation(job), NOW)

    found = status(situation(job, running(job), told()), LATER)

    times = {each["type"]: each["lastTransitionTime"] for each in found["conditions"]}
    assert (times.pop("Running"), times.pop("Ready")) == (LATER, LATER)
    assert set(times.values()) == {NOW}


def test_the_times_of_start_and_end_are_kept():
    job = edljob()
    job["status"] = status(situation(job, running(job), told()), NOW)
    job["status"] = status(situation(job, [], told("done", exit_code=0)), LATER)

    found = status(situation(job, [], told("done", exit_code=0)), "2026-01-01T00:09:00Z")

    assert (found["startTime"], found["completionTime"], found["exitCode"]) == (NOW, LATER, 0)
    assert found["progress"] == "100 %"


def test_the_message_says_what_a_pod_waits_for():
    job = edljob()
    waits = pod(job, "worker", phase="Pending")
    why = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    waits["status"]["conditions"] = [why]

    found = status(situation(job, [pod(job, "master"), waits], told()), NOW)

    assert found["message"] == "a worker cannot be scheduled: 0/4 nodes are available"
    (runs,) = [each for each in found["conditions"] if each["type"] == "Running"]
    assert (runs["status"], runs["reason"]) == ("False", "Unschedulable")
    assert runs["message"] == found["message"]


NOT_READY = {
    "type": "PodReadyToStartContainers",
    "status": "False",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
IN_TIME, LATE = "2026-01-01T00:00:19Z", "2026-01-01T00:00:20Z"


def creating(role, *conditions, node="n1", **status):
    """Return a pod of a real kubelet that does not get on, as for want of a ConfigMap."""
    found = pod(edljob(), role, phase="Pending")
    waiting = {"name": "check", "state": {"waiting": {"reason": "PodInitializing"}}}
    found["status"] |= {"conditions": [*conditions], "initContainerStatuses": [waiting], **status}
    found["spec"] = {"nodeName": node}
    return found


@pytest.mark.parametrize(
    ("role", "word"), [("master", "the master"), ("ps", "a server"), ("worker", "a worker")]
)
def test_a_pod_whose_node_lacks_its_volumes_for_long_is_told_of(role, word):
    """Broken once: the job is Pending without a word."""
    there = situation(found=[creating(role, NOT_READY)])

    assert "message" not in status(there, IN_TIME)
    assert status(there, LATE)["message"] == (
        f"{word}'s pod waits on node n1 for its volumes, ConfigMaps, Secrets or network: "
        f"see kubectl describe pod edl-demo-{role}-0"
    )


IS_CHECKED = [{"name": "check", "state": {"running": {}}}]


@pytest.mark.parametrize(
    "there",
    [
        creating("master", {**NOT_READY, "status": "True"}),
        creating("master"),
        creating("master", NOT_READY, node=None),
        creating("master", NOT_READY, initContainerStatuses=IS_CHECKED),
        creating("master", NOT_READY)
        | {"metadata": pod(edljob(), "master", deletionTimestamp="x")["metadata"]},
    ],
    ids=["it has them, and pulls", "nobody says so", "no node", "it has begun", "it goes"],
)
def test_a_pod_says_nothing_of_volumes_where_they_may_be_there(there):
    assert "its volumes" not in status(situation(found=[there]), LATE).get("message", "")


def test_a_job_does_not_run_while_a_quota_keeps_its_workers_out():
    """Broken once: the master's word that it runs is enough."""
    job = edljob()
    said = "worker 0 (and 3 more) waits: a quota leaves no room: exceeded quota: small"
    rows = [{"index": i, "state": "starting", "heartbeat_age_s": None} for i in range(4)]

    found = status(situation(job, [pod(job, "master")], told(workers=rows, message=said)), NOW)

    (runs,) = [each for each in found["conditions"] if each["type"] == "Running"]
    assert (found["phase"], found["message"]) == ("Pending", said)
    assert (runs["status"], runs["reason"], runs["message"]) == ("False", "QuotaExceeded", said)


def test_a_job_that_somebody_suspends_under_the_scheduler_says_who_and_what_to_do():
    """A manifest that is applied again, say. Broken once: it waits for a `suspend` of false."""
    job = edljob(suspend=True, scheduling={})
    job["status"] = {"startTime": NOW}
    spec = {"f:spec": {"f:suspend": {}}}
    job["metadata"]["managedFields"] = [
        {"manager": "edl-scheduler", "fieldsV1": spec},
        {"manager": "argocd-controller", "fieldsV1": spec},
        {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:worker": {}}}},
    ]

    found = status(Situation(job, [], None, 1, True), NOW)

    assert found["phase"] == "Suspended"
    assert found["message"].startswith("no pod runs: suspended by argocd-controller and not by")
    assert "edl resume" in found["message"]


@pytest.mark.parametrize(
    ("code", "deleted", "decided"),
    [(0, False, 0), (3, False, 3), (1, False, None), (0, True, None)],
)
def test_a_lost_status_is_made_up_for_by_a_pod_that_ended_by_itself(code, deleted, decided):
    job = edljob()
    about = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 9} if deleted else {}
    master = pod(job, "master", phase="Failed" if code else "Succeeded", **about)
    master["status"]["containerStatuses"] = ended(code, "Error" if code else "Completed")

    assert exit_code(told(), [master], {}) == decided
    over = {"phase": "Failed", "exitCode": 3}  # as it was told before the pod went
    assert exit_code(told(), [], over) == 3
    assert exit_code(told(), [], {"phase": "Running", "exitCode": 3}) is None


VALUES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
STATUSES = st.dictionaries(
    st.sampled_from("abcdef"),
    VALUES | st.dictionaries(st.sampled_from("ghi"), VALUES, max_size=3),
    max_size=6,
)


def patched_by(before, patch):
    """What an API server makes of an object by a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    made = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = patched_by(made.get(name), value)
    return made


@given(STATUSES, STATUSES)
def test_the_difference_makes_one_status_of_the_other_and_is_empty_for_the_same(before, after):
    patched = patched_by(before, difference(before, after))

    assert patched == after
    assert (difference(before, after) == {}) == (before == after)


SCHEMA = yaml.safe_load((MANIFESTS / "chart/files/edljobs.yaml").read_text())["spec"]["versions"][
    0
]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]


ROLE = st.sampled_from(["master", "ps", "worker"])
POD_PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"])
STATES = st.sampled_from(["starting", "running", "stopping", "done", "failed"])
SAID = write(
    Report(
        1, 7, 9, 2, (), None, Resize(), Bounds(), Bounds(), None, nearly_done=True, suspended=False
    )
)
TYPES = {"string": str, "integer": int, "array": list, "object": dict}


@given(
    st.lists(st.tuples(ROLE, st.integers(0, 5), POD_PHASES), max_size=8, unique_by=lambda p: p[:2]),
    st.none() | STATES,
    st.none() | st.integers(0, 3),
    st.booleans(),
)
def test_every_status_fits_the_resource_and_is_stable(there, state, code, suspend):
    """What is written once is not written again, and the API server takes it."""
    job = edljob(suspend=suspend)
    found = [pod(job, role, index, phase) for role, index, phase in there]
    said = None if state is None else told(state, exit_code=code, report=SAID)

    made = status(situation(job, found, said), NOW)
    job["status"] = made
    again = status(situation(job, found, said), LATER)

    assert made.keys() <= SCHEMA.keys()
    assert all(isinstance(made[name], TYPES[SCHEMA[name]["type"]]) for name in made)
    assert made["phase"] in SCHEMA["phase"]["enum"]
    assert difference(made, again) == {}
