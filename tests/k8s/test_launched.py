"""A script of the user's as an EdlJob, on a real control plane: its nodes are pods.

kubectl and the command line are the user; whatever dies, each record counts once a pass.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.kube import ROOT
from tools.kube_api import Object
from tools.kube_objects import IMAGE, phase, volumes
from tools.schedulers import deployment, install
from tools.turns import in_turn
from tools.waiting import until

from edl.common import report
from edl.launch import state

SCRIPT = Path(ROOT) / "tests" / "launched" / "counting.py"
MINE = "edl.dev/job-name=counted"
WORKERS = f"{MINE},edl.dev/role=worker"


def spec(folder: Path, **settings: object) -> Object:
    small = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return {
        "image": IMAGE,
        "command": "launch",
        "settings": {
            "script": str(SCRIPT),
            "arguments": [str(folder), "drain"],
            "last_call": "0s",
            "stop_timeout": "10s",
            **settings,
        },
        **volumes(folder),
        "master": {"resources": small},
        "worker": {"replicas": 1, "minReplicas": 1, "maxReplicas": 4, "resources": small},
    }


class Counted:
    """The EdlJob `counted`, and what is known of it."""

    def __init__(self, cluster, namespace, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder

    def apply(self, spec: Object) -> None:
        about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob"}
        self.namespace.apply({**about, "metadata": {"name": "counted"}, "spec": spec})

    def patch(self, **spec: object) -> None:
        change = json.dumps({"spec": spec})
        self.namespace.kubectl("patch", "edljob", "counted", "--type=merge", f"-p={change}")

    def is_so(self, until, within_s: float = 500.0) -> Object:
        def look(jobs):
            status = jobs["counted"].get("status", {})
            assert status.get("phase") != "Failed", status
            return status if until(status) else None

        return self.namespace.wait("edljobs", look, within_s=within_s)

    def trains_on(self, nodes: int) -> Object:
        """Wait until so many nodes train, and the script says so."""
        ready = f"{nodes}/{nodes}"
        found = self.is_so(lambda s: s.get("phase") == "Running" and s["workersReady"] == ready)
        self.started_on(nodes)
        steps = len(self.steps())
        until(lambda: len(self.steps()) > steps)
        return found

    def started_on(self, nodes: int) -> None:
        """Wait until the script has been started last on so many nodes."""
        until(lambda: " ".join(self.seen()[-1:]).startswith(f"{nodes} {nodes}"))

    def seen(self) -> list[str]:
        path = self.folder / "seen"
        return path.read_text().splitlines() if path.exists() else []

    def steps(self) -> list[int]:
        path = self.folder / "steps"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def counted_once_per_pass(self) -> bool:
        passes, counts = (self.folder / "counts").read_text().split(" ", 1)
        return int(passes) > 0 and counts == f"[{passes}]"

    def pods(self, role: str) -> list[str]:
        found = self.namespace.objects("pods", f"{MINE},edl.dev/role={role}")
        return [name for name, pod in sorted(found.items()) if phase(pod) == "Running"]

    @functools.cached_property
    def anna(self) -> Path:
        """Make a user with the roles of the manifests, who may make no pods and run nothing there.

        To stop a job in order it takes edl-submitter.
        """
        who = f"--serviceaccount={self.namespace.name}:anna"
        self.namespace.kubectl("create", "serviceaccount", "anna")
        for role in ("edl-user", "edl-submitter"):
            self.namespace.kubectl("create", "rolebinding", role, f"--role={role}", who)
        return self.namespace.kubeconfig("anna")

    def edl(self, verb: str, *arguments: object, code: int = 0) -> str:
        """Run the command line as that user."""
        done = subprocess.run(
            [sys.executable, "-m", "edl", verb, "-n", self.namespace.name, *map(str, arguments)],
            env={**os.environ, "KUBECONFIG": str(self.anna)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def job(cluster, namespace, controller, folder) -> Counted:
    return Counted(cluster, namespace, folder)


@pytest.mark.slow
def test_a_script_from_apply_to_delete(job, namespace, folder):
    job.apply(spec(folder))
    job.trains_on(1)
    namespace.kubectl("scale", "edljob", "counted", "--replicas=3")
    scaled = job.trains_on(3)

    (master,) = job.pods("master")
    before = job.pods("worker")
    namespace.kubectl("delete", "pod", master, "--wait=false")
    job.is_so(lambda s: s["masters"] == 2 and s["workersReady"] == "3/3")
    adopted = job.pods("worker")
    namespace.kubectl("delete", "pod", before[0], "--wait=false")
    namespace.wait("pods", lambda pods: before[0] not in pods, labels=WORKERS)
    job.trains_on(3)
    job.patch(worker={"replicas": 2})
    job.trains_on(2)
    job.patch(suspend=True)
    suspended = job.is_so(lambda s: s["phase"] == "Suspended")
    left, steps = job.pods("worker") + job.pods("master"), job.steps()
    job.patch(suspend=False)
    job.trains_on(2)
    namespace.kubectl("delete", "pod", job.pods("worker")[0], "--grace-period=0", "--force")
    job.trains_on(2)

    (folder / "finish").touch()
    done = job.is_so(lambda s: s["phase"] == "Succeeded")
    namespace.kubectl("delete", "edljob", "counted")
    for kind in ("pods", "configmaps", "secrets", "services", "leases"):
        namespace.wait(kind, lambda objects: not objects, labels=MINE)

    assert adopted == before
    assert left == []
    assert steps == list(range(1, len(steps) + 1))  # nothing was lost, and nothing twice
    assert (done["exitCode"], done["masters"], done["restarts"]) == (0, 3, 0)
    assert job.counted_once_per_pass()
    reports = [report.read(each["report"]) for each in (scaled, suspended, done)]
    assert [each.suspended for each in reports] == [False, True, False]
    assert {each.nodes for each in reports} == {report.Bounds(1, 4)}
    assert {sample.nodes for sample in reports[-1].samples} <= {1, 2, 3}


@in_turn(2)
def test_all_verbs_on_a_script_by_a_user_of_the_manifests(job, folder, tmp_path):
    small = "cpu=0.5,memory=1Gi"
    job.edl(
        "submit",
        *("--job_name", "counted", "--image_name", IMAGE, "--nodes", "1:2", "--num_workers", 1),
        *("--job_volume", "claim_name=job"),
        *("--volume", f"claim_name=data,mount_path={folder}", "--last_call", "0s"),
        *("--master_resource_request", small, "--worker_resource_request", small),
        *(SCRIPT, "--", folder, "drain"),
    )
    job.trains_on(1)
    scaled = job.edl("scale", "counted", 2)
    job.trains_on(2)
    too_many = job.edl("scale", "counted", 3, code=2)
    status = job.edl("status", "counted")
    nowhere = job.edl("cp", "counted:chekpoints", tmp_path, code=2)
    job.edl("stop", "counted")
    job.edl("wait", "counted", "--for", "ended", "--timeout", "60s")
    steps = job.steps()
    copied = job.edl("cp", "counted:checkpoints", tmp_path)
    printed = job.edl("logs", "counted")
    listed = job.edl("list", "-o", "json")
    job.edl("delete", "counted")

    assert "counted: 1 -> 2 nodes wanted" in scaled
    assert "counted: spec.worker.maxReplicas is 2: ask for 2 at most, or raise it." in too_many
    assert "nodes 2 · workers 2" in status
    assert "There is no chekpoints in the job's files; in" in nowhere
    assert copied.startswith(f"counted:checkpoints -> {tmp_path}/checkpoints (")
    assert "master     | " in printed
    assert "round 1 begins" in printed
    assert "worker-1" in printed  # its pod has ended, and stays for its log
    (row,) = json.loads(listed)
    assert (row["state"], row["exit_code"]) == ("stopped", 130)
    kept = saved(tmp_path / "checkpoints")
    assert kept.progress["passes"] * 10 + kept.progress["position"] // 6 == len(steps)
    assert sum(kept.state["counts"].tolist()) == 6 * len(steps)


def saved(folder: Path) -> state.Saved:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDL_CHECKPOINT_PATH", str(folder))
        return state.load()


TUTORIAL = {
    "adaptive_linear.py": ["--epochs", "12"],
    "tutorial/step_6.py": ["--epochs", "20", "--fixed-batch"],
}


@pytest.mark.slow
@pytest.mark.parametrize("example", TUTORIAL)
def test_a_script_of_adaptdls_is_rescaled_and_computes_as_if_nothing_had_been(
    job, namespace, folder, example
):
    """The scheduler has it go from 1 node to 4 to 2, and each epoch has the loss of one that stays.

    As many as it may have, since nobody else is there.
    """
    install(namespace)
    namespace.apply(deployment())
    script = Path(ROOT) / "docs" / "examples" / example
    environment = {"EDL_SHARE_PATH": str(folder), "EDL_TENSORBOARD_LOGDIR": str(folder)}
    alone = subprocess.run(
        [sys.executable, str(script), *TUTORIAL[example]],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    slowly = Path(ROOT) / "tests" / "launched" / "slowly.py"
    told = [0.03, str(script), *TUTORIAL[example]]
    asked = spec(folder, script=str(slowly), arguments=told, stop_timeout="30s")
    asked["worker"]["maxReplicas"] = 1
    asked |= {"suspend": True, "scheduling": {}, "envs": {"EDL_TEST_FOLDER": str(folder)}}
    job.apply(asked)
    job.started_on(1)
    for nodes in (4, 2):
        job.patch(worker={"maxReplicas": nodes})
        job.started_on(nodes)
    done = job.is_so(lambda s: s["phase"] == "Succeeded", within_s=500.0)
    printed = "\n".join(namespace.logs(10_000).values())

    expected, found = figures(alone.stdout), figures(printed)
    assert len(expected) > 9
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=2e-4), name
    starts = [each.split() for each in job.seen()]
    assert [each[0] for each in starts] == ["1", "4", "2"]
    samples = report.read(done["report"]).samples
    if example == "adaptive_linear.py":  # why step_6 has told no speed here is not known yet
        assert 2 in {sample.nodes for sample in samples}
    assert all(sample.records_per_s > 0 for sample in samples)
    assert {tuple(each[2:]) for each in starts} == {("counted", "/var/lib/edl/job/share")}


def figures(printed: str) -> dict[str, list[float]]:
    """Return the figures of each epoch that was told, and of the end."""
    lines = re.findall(r"(epoch [0-9]+|weights)[: ](.*)", printed)
    number = r"-?[0-9]+(?:\.[0-9]+)?"
    return {name: [float(each) for each in re.findall(number, said)] for name, said in lines}


def test_a_script_that_is_not_there_fails_before_any_node_is_made(job, namespace, folder):
    job.apply(spec(folder, script="/code/train.py"))

    namespace.wait("edljobs", lambda jobs: phase(jobs["counted"]) == "Failed")
    status = namespace.objects("edljobs")["counted"]["status"]
    workers = namespace.objects("pods", WORKERS)

    assert status["exitCode"] == 2
    assert "The script /code/train.py is not there, in the image" in status["message"]
    assert workers == {}


@in_turn(0)
def test_a_failing_script_fails_the_job_with_its_rank_its_node_and_its_words(
    job, namespace, folder
):
    script = folder / "fails.py"
    script.write_text("raise ValueError('too hot')\n")
    job.apply(spec(folder, script=str(script), max_restarts=1))

    namespace.wait("edljobs", lambda jobs: phase(jobs["counted"]) == "Failed")
    status = namespace.objects("edljobs")["counted"]["status"]

    assert (status["exitCode"], status["restarts"], status["masters"]) == (1, 1, 1)
    assert "rank 0 on node-0 (" in status["message"]
    assert "ended with exit code 1, after 1 restarts." in status["message"]
    assert "ValueError: too hot" in status["message"]
