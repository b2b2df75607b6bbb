"""An EdlJob whose command is launch: its nodes are workers' pods, its coordinator the master's."""

from __future__ import annotations

import json

import pytest

from edl.common.errors import UsageError
from edl.common.launched import LaunchedSettings, read
from edl.common.report import VERSION, Bounds, Report, Resize, write
from edl.common.resolve import resolve
from edl.k8s import job_config, objects, pods
from edl.k8s.decide import decide
from edl.k8s.job import wanted
from edl.k8s.job_status import Situation, status
from edl.k8s.masters import Memory
from edl.k8s.outside.submit import plan
from edl.k8s.plans import Seen
from edl.launch.settings import LaunchSettings

from .edljobs import edljob, pod

SETTINGS = {"script": "/code/train.py", "arguments": [20, "--lr", 0.1], "nproc_per_node": 2}
WORKER = {"replicas": 3, "minReplicas": 2, "maxReplicas": 8}
NOW = "2026-01-01T00:00:00Z"
FLAGS = {
    "runtime": "kubernetes",
    "image_name": "edl:1",
    "script": "/code/train.py",
    "job_volume": "claim_name=jobs",
}


def script_job(**spec):
    given = {"settings": SETTINGS, "worker": WORKER, "ps": {"replicas": 1}, **spec}
    return edljob(command="launch", **given)


def test_replicas_are_nodes_and_what_stays_is_as_of_edl_launch():
    settings = wanted(script_job(envs={"A": "1"})).settings

    assert isinstance(settings, LaunchedSettings)
    assert (settings.bounds, settings.num_workers) == ((2, 8), 3)
    ours = LaunchSettings.in_pods(settings, "/state")
    assert (ours.min_nodes, ours.max_nodes, ours.nproc_per_node) == (2, 8, 2)
    assert ours.python == ["/code/train.py", "20", "--lr", "0.1"]
    assert LaunchSettings.from_json(ours.to_json()) == ours


def test_its_settings_are_read_back_as_what_they_were():
    settings = wanted(script_job()).settings

    assert read(settings.to_json()) == settings


def test_nodes_and_coordinator_share_the_jobs_volume_and_only_the_coordinator_has_a_token():
    made = wanted(script_job()).templates

    for role in ("master", "worker", "worker_high"):
        container = pods.container_of(made[role])
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "job"]
        apart = "" if role == "master" else "/files"  # a script has no business with the journal
        assert mount == {"name": "job", "mountPath": pods.JOB_DIR, "subPath": f"edl-demo{apart}"}
        assert container["command"] == ["python", "-m", "edl.launch"]
        assert made[role]["spec"]["automountServiceAccountToken"] == (role == "master")
    assert made["worker"]["spec"]["terminationGracePeriodSeconds"] == 40  # --stop_timeout, and more


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"ps": {"replicas": 2}}, "spec.ps: a script's job has no parameter servers: leave it out"),
        (
            {"settings": {"nproc_per_node": 2}},
            "There is no script: name what .*spec.settings.script",
        ),
        ({"settings": {**SETTINGS, "nproc_per_node": 0}}, "nproc_per_node .* at least 1, not 0"),
        ({"settings": {**SETTINGS, "last_call": "soon"}}, "last_call .*'soon' is no time"),
        ({"settings": {**SETTINGS, "lease": "1s"}}, "lease .*1s: at least 4s"),
        ({"settings": {**SETTINGS, "nodes": "1:2"}}, "settings.nodes does not stand in an EdlJob"),
        ({"settings": {**SETTINGS, "model_def": "iris"}}, "model_def.* is not of a script's job"),
        ({"settings": {**SETTINGS, "arguments": {"a": 1}}}, "takes a list of texts and numbers"),
        ({"worker": {**WORKER, "minReplicas": 9}}, "minReplicas is more than .*maxReplicas"),
        (
            {"worker": {**WORKER, "replicas": 1}},
            "spec.worker.minReplicas is more than spec.worker.replicas",
        ),
        ({"jobVolume": None}, "spec.jobVolume: a script keeps its state in .*give a volume"),
    ],
)
def test_what_is_wrong_is_told_with_its_field_and_what_would_be_right(spec, said):
    with pytest.raises(UsageError, match=said):
        wanted(script_job(**spec))


def test_a_state_in_another_volume_does_without_a_volume_of_the_job():
    where = {
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
        "volumeMounts": [{"name": "d", "mountPath": "/data"}],
    }
    made = {**SETTINGS, "checkpoint_dir": "/data/state"}

    assert wanted(script_job(jobVolume=None, settings=made, **where)).settings.checkpoint_dir


def test_of_a_job_that_has_begun_the_number_of_nodes_may_change_and_the_script_may_not():
    job = script_job()
    config = objects.config(wanted(job).settings, wanted(job).templates)
    more = script_job(worker={**WORKER, "replicas": 5, "maxReplicas": 9})
    other = script_job(settings={**SETTINGS, "script": "/code/other.py"})

    parts, refused = job_config.changes(config, more["spec"], wanted(more), None, whole=True)
    _, of_other = job_config.changes(config, other["spec"], wanted(other), None, whole=True)

    assert json.loads(parts[objects.WANTED])["num_workers"] == 5
    assert read(parts[objects.SETTINGS]).bounds == (2, 9)
    assert (refused, of_other) == ([], ["script"])


def told(**more):
    report = Report(
        VERSION, None, None, None, (), None, Resize(), Bounds(), Bounds(1, 3), None, False, False
    )
    row = {"state": "running", "heartbeat_age_s": 0.1}
    return {
        "command": "launch",
        "state": "running",
        "exit_code": None,
        "nproc_per_node": 2,
        "nodes": [{**row, "index": 7 + i, "place": i} for i in range(2)],
        "report": write(report),
        "restarts": {"worker": 1},
        **more,
    }


def test_its_status_counts_nodes_and_its_report_has_the_bounds_of_the_spec():
    job = script_job()
    there = [pod(job, "master"), *(pod(job, "worker", i) for i in range(3))]

    made = status(Situation(job=job, pods=there, told=told(), masters=1, begun=True), NOW)

    assert (made["phase"], made["workersReady"], made["psReady"]) == ("Running", "2/3", "0/0")
    assert made["restarts"] == 1
    assert made["report"]["nodes"] == {"minimum": 2, "maximum": 8}
    assert made["report"]["workers"] == {"minimum": 4, "maximum": 16}  # of 2 on a node


@pytest.mark.parametrize(("command", "grace_s"), [("launch", None), ("train", 1)])
def test_suspended_a_scripts_pods_have_their_grace_to_save_in(command, grace_s):
    job = script_job(suspend=True) if command == "launch" else edljob(suspend=True)
    seen = Seen(job, [pod(job, "worker")], None, None)

    made = decide(seen, Memory(), 0.0, NOW, None)

    (action,) = [each for each in made.actions if each.verb == "delete"]
    assert action.grace_s == grace_s


def test_what_edl_submit_gives_a_cluster_means_the_same_to_the_controller():
    settings = resolve("launch", {**FLAGS, "job_name": "demo", "nodes": "1:4", "arguments": ["7"]})

    (made,) = plan(settings, "edljob")
    back = wanted({**made, "metadata": {"name": "demo", "namespace": "n"}}).settings

    assert (
        made["spec"]["worker"].items()
        >= {
            "replicas": 4,
            "minReplicas": 1,
            "maxReplicas": 4,
        }.items()
    )
    assert "ps" not in made["spec"]
    same = ("script", "arguments", "bounds", "num_workers", "nproc_per_node")
    assert [getattr(back, n) for n in same] == [getattr(settings, n) for n in same]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"nodes": "4:1"}, "--nodes 4:1: MIN is above MAX; did you mean 1:4?"),
        ({"nodes": "few"}, "--nodes few is no range"),
        ({"minibatch_size": "8"}, "--minibatch_size is not of a script's job: leave it out"),
        ({"scrpt": "x"}, "There is no setting --scrpt; did you mean --script"),
        ({"image_name": ""}, "name the --image_name that they run"),
    ],
)
def test_flags_of_a_script_that_cannot_be(flags, said):
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        resolve("launch", {**FLAGS, **flags})


def test_what_its_pods_print_is_in_their_logs_at_once():
    made = wanted(script_job()).templates

    for template in made.values():
        (container,) = [c for c in template["spec"]["containers"] if c["name"] == "edl"]
        assert {"name": "PYTHONUNBUFFERED", "value": "1"} in container["env"]
