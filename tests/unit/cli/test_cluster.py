"""The submission to a cluster, and the errors of every command, through the real entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.apiserver import ApiServer
from tools.clustered import FLAGS, NOW, the_job

from edl.common.settings import JobSettings
from edl.k8s import pods
from edl.k8s.layers import merged
from edl.k8s.outside import submit

Run = Callable[..., tuple[int, str, str]]


# -- submit


def test_submit_makes_all_of_a_job_and_lets_it_run_last(submitted: Run, server: ApiServer) -> None:
    code, out, err = submitted()

    made = [path.rpartition("/")[2] for method, path in server.requests if method == "POST"]
    assert (0, "") == (code, err)
    assert out == "demo is submitted: `edl status demo -n lab`, `edl logs -f demo -n lab`\n"
    assert [
        "jobs",
        "secrets",
        "configmaps",
        "services",
        "networkpolicies",
        "poddisruptionbudgets",
    ] == made
    runs = [each["spec"]["parallelism"] for _, plural, _, each in server.log if plural == "jobs"]
    assert [0, 1] == runs
    owners = server.objects["secrets", "edl-demo"]["metadata"]["ownerReferences"]
    assert [the_job(server)["metadata"]["uid"]] == [owner["uid"] for owner in owners]


def test_submit_leaves_nothing_where_a_part_is_refused(submitted: Run, server: ApiServer) -> None:
    server.forbidden = {("create", "services")}

    code, _, err = submitted()

    assert (1, False) == (code, ("jobs", "edl-demo") in server.objects)
    assert err == (
        "edl: error: anna may not create services in the namespace lab (403); the role "
        "edl-submitter gives it: kubectl -n lab create rolebinding anna-edl-submitter --role "
        "edl-submitter --user anna\n"
    )


def test_train_in_a_cluster_that_detaches_is_submit(run: Run, server: ApiServer) -> None:
    code, out, _ = run("train", *FLAGS, "--runtime=kubernetes", "--detach")

    assert (0, True) == (code, out.startswith("demo is submitted"))


@pytest.mark.parametrize(
    ("command", "flags"),
    [("evaluate", ["--validation_data=/v.csv"]), ("predict", ["--prediction_data=/p.csv"])],
)
def test_submit_evaluates_and_predicts(
    run: Run, server: ApiServer, command: str, flags: list[str]
) -> None:
    given = [flag for flag in FLAGS if not flag.startswith("--training_data")]
    code, _, _ = run("submit", *given, "--command", command, "--checkpoint_dir_for_init=/c", *flags)

    config = server.objects["configmaps", "edl-demo"]["data"]["settings.json"]
    assert (0, command) == (code, json.loads(config)["command"])


def test_second_job_of_a_name_is_refused(submitted: Run) -> None:
    submitted()

    code, _, err = submitted()

    assert (2, True) == (code, "a job named 'demo' is in the namespace lab already" in err)


def test_namespace_that_is_not_there_is_told_with_what_makes_it(
    submitted: Run, server: ApiServer
) -> None:
    server.fail("POST", "/jobs", 404, message='namespaces "lab" not found')

    code, _, err = submitted()

    assert (2, True) == (code, "`kubectl create namespace lab`" in err)


def test_submit_without_an_image_says_so(run: Run, server: ApiServer) -> None:
    code, _, err = run("submit", *FLAGS[:3])

    assert (2, True) == (code, "--image_name" in err)
    assert 1 == len(err.splitlines())


def test_submit_on_this_machine_is_a_contradiction(submitted: Run) -> None:
    code, _, err = submitted("--runtime=local")

    assert (2, True) == (code, "--runtime local is not of a cluster: leave it out" in err)


def test_mistyped_flag_of_submit_names_the_right_one(submitted: Run) -> None:
    code, _, err = submitted("--image-nmae=x")

    assert (2, 1) == (code, len(err.splitlines()))
    assert "'--image_nmae'" in err
    assert "--image_name" in err


def test_yaml_creates_nothing(submitted: Run, server: ApiServer) -> None:
    code, out, _ = submitted("--yaml", "--namespace=other")

    kinds = [each["kind"] for each in yaml.safe_load_all(out)]
    assert (0, []) == (code, server.requests)
    assert [
        "Job",
        "Secret",
        "ConfigMap",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
    ] == kinds
    assert {"other"} == {each["metadata"]["namespace"] for each in yaml.safe_load_all(out)}


def test_yaml_goes_to_a_file_as_elasticdl_has_it(submitted: Run, tmp_path: Path) -> None:
    code, out, _ = submitted("--yaml", str(tmp_path / "job.yaml"), "--as=edljob")

    found = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert (0, "", "EdlJob") == (code, out, found["kind"])


def test_flags_of_elasticdl_are_taken_by_their_names(
    submitted: Run, server: ApiServer, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("pod: {nodeSelector: {disk: ssd}}\n")
    roles = ("master", "worker", "ps")
    flags = [f"--{role}_resource_request=cpu=1,memory=1024Mi" for role in roles]
    flags += [f"--{role}_resource_limit=cpu=2,memory=2048Mi" for role in roles]
    flags += ["--master_pod_priority=high", "--ps_pod_priority=high", "--worker_pod_priority=0.5"]

    code, _, err = submitted(
        *flags,
        "--namespace=lab",
        "--volume=claim_name=c,mount_path=/data",
        "--envs=A=1,2,B=3",
        "--image_pull_policy=Always",
        f"--cluster_spec={spec}",
        "--restart_policy=OnFailure",
        "--distribution_strategy=ParameterServerStrategy",
    )

    master = the_job(server)["spec"]["template"]["spec"]
    assert (0, "") == (code, err)
    assert ({"disk": "ssd"}, "OnFailure", "Always") == (
        master["nodeSelector"],
        master["restartPolicy"],
        master["containers"][0]["imagePullPolicy"],
    )
    assert "2048Mi" == master["containers"][0]["resources"]["limits"]["memory"]
    assert {"name": "volume-0", "mountPath": "/data"} in master["containers"][0]["volumeMounts"]


# -- --cluster_spec FILE.py


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "spec.py").write_text(text)
        return f"--cluster_spec={tmp_path / 'spec.py'}"

    return write


OBJECT = """
class Cluster:
    def with_pod(self, pod):
        if pod["metadata"]["labels"]["edl.dev/role"] == "worker":
            pod["spec"]["tolerations"].append({"key": "spot", "operator": "Exists"})
        return pod

    def with_service(self, service):
        service["metadata"]["annotations"] = {"team": "ads"}
        return service

cluster = Cluster()
"""
IN_PLACE = """
def with_pod(pod):
    pod["metadata"]["labels"]["team"] = "ads"
    del pod["metadata"]["labels"]["edl.dev/role"]
"""
AWAY = """
def with_pod(pod):
    del pod["spec"]["tolerations"]
"""


def templates_of(server: ApiServer) -> Any:
    return json.loads(server.objects["configmaps", "edl-demo"]["data"]["templates.json"])


def test_object_cluster_of_a_python_file_changes_pods_and_service(
    submitted: Run, server: ApiServer, spec: Any
) -> None:
    code, _, err = submitted(spec(OBJECT))

    keys = {
        role: [each["key"] for each in template["spec"]["tolerations"]]
        for role, template in templates_of(server).items()
    }
    assert (0, "") == (code, err)
    assert {"worker", "worker_high", "worker_low"} == {r for r, k in keys.items() if "spot" in k}
    service = server.objects["services", "edl-demo"]
    assert {"team": "ads"} == service["metadata"]["annotations"]


def test_function_that_returns_nothing_has_changed_the_pod_and_labels_of_edl_stay(
    submitted: Run, server: ApiServer, spec: Any
) -> None:
    submitted(spec(IN_PLACE))

    ps = templates_of(server)["ps"]
    labels = ps["metadata"]["labels"]
    assert ("ads", "ps") == (labels["team"], labels["edl.dev/role"])
    (spread,) = ps["spec"]["topologySpreadConstraints"]
    assert "team" not in spread["labelSelector"]["matchLabels"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("def with_pod(pod):\n    pod.spec.x = 1\n", "What it gets is a dict"),
        ("import nothing_of_that_name\n", "fails: ModuleNotFoundError"),
        ("x = 1\n", "has neither with_pod(pod) nor"),
        ("def with_pod(pod):\n    return 1\n", "returns no dict, but 1"),
        ("def with_pod(pod):\n    return {}\n", ": pod is without spec."),
        (
            "def with_pod(pod):\n    pod['spec']['containers'] = {'name': 'edl'}\n",
            ": pod.spec.containers is a mapping, and must be a list.",
        ),
    ],
)
def test_mistake_in_a_python_file_is_one_line(
    submitted: Run, server: ApiServer, spec: Any, text: str, part: str
) -> None:
    code, _, err = submitted(spec(text))

    assert (2, True, 1) == (code, part in err, len(err.splitlines()))
    assert ("jobs", "edl-demo") not in server.objects


# -- EdlJob


@pytest.mark.usefixtures("edljobs")
def test_submit_makes_an_edljob_where_a_controller_runs(submitted: Run, server: ApiServer) -> None:
    code, _, _ = submitted("--num_workers=3", "--worker_pod_priority=0.5", "--min_workers=2")

    made = server.objects["edljobs", "demo"]["spec"]
    assert (0, False) == (code, ("jobs", "edl-demo") in server.objects)
    assert (3, 2, 0.5) == (
        made["worker"]["replicas"],
        made["worker"]["minReplicas"],
        made["worker"]["highFraction"],
    )
    assert {"model_def": "iris", "training_data": "/data/train.csv"} == made["settings"]


def test_submit_makes_a_job_where_the_controllers_lease_is_old(
    submitted: Run, server: ApiServer
) -> None:
    server.unknown.discard("edljobs")
    server.add("leases", "edl-controller", spec={"holderIdentity": "c-1", "renewTime": NOW})

    submitted()

    assert ("jobs", "edl-demo") in server.objects


def test_submit_makes_an_edljob_where_the_controller_of_all_is_in_another_namespace(
    submitted: Run, server: ApiServer, edljobs: None
) -> None:
    lease = server.objects["leases", "edl-controller"]
    lease["metadata"] |= {"namespace": "edl", "labels": {"edl.dev/serves": "all-namespaces"}}

    submitted()

    assert ("edljobs", "demo") in server.objects


def test_edljob_where_the_cluster_does_not_know_it_is_an_error(
    submitted: Run, server: ApiServer
) -> None:
    code, _, err = submitted("--as=edljob")

    assert (2, True) == (code, "helm install edl k8s/manifests/chart -n lab" in err)


def test_python_spec_becomes_a_template_of_the_edljob(submitted: Run, spec: Any) -> None:
    _, out, _ = submitted(spec(OBJECT), "--yaml", "--as=edljob")

    found = yaml.safe_load(out)["spec"]
    assert {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}} == (
        found["worker"]["podTemplate"]
    )
    assert "podTemplate" not in found["ps"]


def test_what_an_edljob_cannot_say_is_an_error(submitted: Run, spec: Any) -> None:
    code, _, err = submitted(spec(AWAY), "--yaml", "--as=edljob")

    assert (2, True) == (code, "say --as job" in err)


def test_difference_laid_over_the_base_gives_what_was_changed() -> None:
    base = pods.templates(JobSettings(job_name="demo", image_name="edl:1"))["worker"]
    layers = {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"x": "y"}}}
    container = {"env": [{"name": "A", "value": "b"}], "resources": {"limits": {"memory": "9Gi"}}}
    layers["spec"]["containers"] = [{"name": "edl", **container}, {"name": "side", "image": "x"}]
    changed = merged(base, layers)

    found = submit.difference(base, changed)

    assert (layers, changed) == (found, merged(base, found))


# -- errors


def test_server_that_does_not_answer_is_told_in_one_line(run: Run, server: ApiServer) -> None:
    server.close()

    code, _, err = run("list", "-n", "lab")

    assert (1, 1) == (code, len(err.splitlines()))
    assert err == (
        f"edl: error: the Kubernetes API at {server.address} does not answer: [Errno 111] "
        "Connection refused\n"
    )


def test_no_kubeconfig_is_told_with_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "none")
    monkeypatch.setenv("KUBECONFIG", path)

    code, _, err = run("list", "--runtime", "kubernetes")

    assert (2, True, 1) == (code, "KUBECONFIG" in err, len(err.splitlines()))


def test_who_may_not_look_is_told_the_role(run: Run, server: ApiServer) -> None:
    server.forbidden = {("list", "pods")}

    code, _, err = run("list", "-n", "lab")

    assert (1, True) == (code, "anna may not list pods in the namespace lab (403)" in err)
    assert "the role edl-user gives it" in err


@pytest.mark.usefixtures("edljobs")
def test_who_may_see_one_kind_of_job_only_sees_those(
    submitted: Run, run: Run, server: ApiServer
) -> None:
    submitted("--as=job")
    server.forbidden = {("get", "edljobs")}

    seen, _, _ = run("status", "demo", "-n", "lab")
    unseen, _, err = run("status", "nope", "-n", "lab")

    assert (0, 2) == (seen, unseen)
    assert "There is no job 'nope' in the namespace lab" in err
    assert "(anna may not get edljobs.edl.dev in the namespace lab (403)" in err


@pytest.mark.usefixtures("edljobs")
def test_who_may_see_no_job_is_told_so(run: Run, server: ApiServer) -> None:
    server.forbidden = {("get", "edljobs"), ("get", "jobs")}

    code, _, err = run("status", "demo", "-n", "lab")

    assert (1, True) == (code, err.startswith("edl: error: anna may not get edljobs.edl.dev"))


def test_expired_login_is_told(run: Run, server: ApiServer) -> None:
    server.fail("GET", "/jobs", 401, times=9, message="Unauthorized")

    code, _, err = run("status", "demo", "-n", "lab")

    assert (1, True) == (code, "log in anew" in err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["describe"],
        ["logs"],
        ["events"],
        ["wait"],
        ["scale", "--num_workers=2"],
        ["suspend"],
        ["resume"],
        ["stop"],
        ["cancel"],
        ["delete"],
        ["top"],
    ],
)
def test_job_that_is_not_there_is_told_by_every_command(
    run: Run, server: ApiServer, arguments: list[str]
) -> None:
    command, *rest = arguments

    code, out, err = run(command, "nope", "-n", "lab", *rest)

    assert (2, "") == (code, out)
    assert err == (
        "edl: error: There is no job 'nope' in the namespace lab: `edl list -n lab` shows those "
        "that are there.\n"
    )


@pytest.mark.parametrize("command", ["describe", "suspend", "resume", "delete"])
def test_command_of_clusters_alone_says_so(run: Run, ended: Any, command: str) -> None:
    ended("old", {"state": "done"})

    code, _, err = run(command, "old")

    assert (2, 1) == (code, len(err.splitlines()))
    assert f"`edl {command}` is of jobs in a cluster (add -n NAMESPACE or" in err


def test_job_without_a_name_is_the_only_one(run: Run, demo: Run) -> None:
    _, out, _ = run("status", "-n", "lab", "-o", "json")
    code, told, _ = run("stop", "-n", "lab")

    assert ["demo"] == [each["job_name"] for each in json.loads(out)]
    assert (0, True) == (code, told.startswith("demo is stopping"))


def test_which_of_none_is_told(run: Run, server: ApiServer) -> None:
    code, _, err = run("stop", "-n", "lab")

    assert (2, True) == (code, "There are no jobs in the namespace lab" in err)


COMMANDS = [
    *(["list"], ["status"], ["status", "a"], ["describe", "a"], ["events", "a"], ["logs", "a"]),
    *(["wait", "a"], ["cp", "a:b", "c"], ["stop"], ["scale", "a", "2"], ["suspend", "a"]),
    *(["resume", "a"], ["cancel", "a"], ["delete", "a"], ["top", "--once"], ["doctor"]),
    *(["checkpoint", "write"], ["schedule", "plan"], ["schedule", "status"]),
    ["schedule", "why", "a"],
    ["submit", *FLAGS],
    ["submit", *FLAGS, "--yaml"],
]


@pytest.mark.parametrize(
    ("command", "name"),
    [*((each, "Bad_NS") for each in COMMANDS), *((["list"], n) for n in ("-a", "a" * 64, "a/b"))],
    ids=lambda each: each if isinstance(each, str) else " ".join(each)[:20],
)
def test_a_name_that_no_namespace_has_is_a_usage_error(
    run: Run, server: ApiServer, command: list[str], name: str
) -> None:
    """Broken once: there are no jobs in it, says the exit code 0."""
    code, out, err = run(*command, f"--namespace={name}")

    assert (2, "") == (code, out)
    assert err.startswith(f"edl: error: --namespace {name}: no namespace has such a name: ")
    assert 1 == len(err.splitlines())
    assert [] == server.requests


def test_a_name_of_63_letters_is_one_that_a_namespace_has(run: Run, server: ApiServer) -> None:
    code, _, _ = run("list", "-n", "a" * 63)

    assert 0 == code
