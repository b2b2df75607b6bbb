"""`edl serve --yaml`: what a cluster is to run; tests/k8s asks a real API server."""

import pytest
import yaml

from edl.cli.main import run
from edl.serve.manifests import Wanted, objects

MODEL = "ctr=/models/ctr/checkpoints"
YAML = (MODEL, "--yaml", "--plain")


def printed(capsys, *arguments):
    """Return the exit code, and the objects or the error."""
    code = run(["serve", *arguments])
    out, err = capsys.readouterr()
    return code, list(yaml.safe_load_all(out)) if code == 0 else err


def test_pods_are_ready_with_a_whole_model_and_get_the_flags(capsys):
    code, (deployment, service, _) = printed(
        capsys,
        *(MODEL, "--yaml", "--plain", "--replicas", "3", "--versions", "2", "--no_checksums"),
        *("--volume", "claim_name=models,mount_path=/models,read_only=true", "-n", "shop"),
    )

    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ready = container["readinessProbe"]["httpGet"]
    assert (0, 3, "ctr", "shop") == (
        code,
        deployment["spec"]["replicas"],
        service["metadata"]["name"],
        service["metadata"]["namespace"],
    )
    assert {"path": "/v2/health/ready", "port": "http", "scheme": "HTTP"} == ready
    assert [MODEL, "--no_checksums", "--versions", "2"] == container["args"][:4]
    assert "--plain" in container["args"]
    assert [{"name": "volume-0", "mountPath": "/models", "readOnly": True}] == container[
        "volumeMounts"
    ]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert deployment["spec"]["template"]["metadata"]["labels"] == service["spec"]["selector"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {each["targetPort"]: each["port"] for each in service["spec"]["ports"]}


def test_a_secret_brings_token_and_certificate():
    deployment, _ = objects(Wanted("ctr", "edl:1", [MODEL], secret="keys"))

    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    assert "--plain" not in arguments
    for flag, file in (("--token_file", "token"), ("--tls_cert", "tls.crt")):
        assert f"/etc/edl-serve/{file}" == arguments[arguments.index(flag) + 1]
    assert "HTTPS" == container["readinessProbe"]["httpGet"]["scheme"]
    assert {"name": "secret", "secret": {"secretName": "keys"}} in deployment["spec"]["template"][
        "spec"
    ]["volumes"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ctr=here", "--yaml", "--plain"), "is of this machine"),
        ((MODEL, "--yaml"), "name a Secret"),
        ((MODEL, "--yaml", "--plain", "--secret", "keys"), "name a Secret"),
        ((MODEL, "--yaml", "--plain", "--name", "Not_a_name"), "can be no name in a cluster"),
        ((MODEL, "--yaml", "--plain", "-n", "Bad_NS"), "no namespace has such a name"),
        ((MODEL, "--yaml", "--plain", "--volume", "claim_name=x"), "lacks mount_path"),
        ((MODEL, "--yaml", "--plain", "--resource_request", "cup=1"), "is no resource"),
        ((MODEL, "--replicas", "2"), "--replicas is of --yaml"),
        ((MODEL, "--target_cpu", "50"), "--target_cpu is of --yaml"),
        ((*YAML, "--replicas", "0"), "there are 1 to 10000 pods"),
        ((*YAML, "--replicas", "2:10001"), "there are 1 to 10000 pods"),
        ((*YAML, "--replicas", "5:2"), "did you mean 2:5?"),
        ((*YAML, "--replicas", "many"), "is no range"),
        ((*YAML, "--target_cpu", "50"), "say --replicas 1:2, for example"),
        ((*YAML, "--replicas", "1:2", "--target_cpu", "0"), "0 is not in the range"),
        ((*YAML, "--replicas", "1:2", "--target_cpu", "1001"), "1001 is not in the range"),
        ((*YAML, "--replicas", "2", "--max_unavailable", "0"), "0 is not in the range"),
        ((*YAML, "--max_unavailable", "1"), "--max_unavailable is of several pods"),
        ((*YAML, "--replicas", "1:2", "--resource_request", "memory=1Gi"), "by the CPU that a pod"),
        ((*YAML, "--replicas", "1:2", "--resource_request", "cpu=0"), "by the CPU that a pod"),
        ((*YAML, "--pod_user", "root"), "is no user of pods"),
        ((*YAML, "--cluster_spec", "/nowhere.yaml"), "cannot be read"),
        ((), "Name what is to be served"),
        ((MODEL, "--max_age_s", "60"), "--max_age_s is of jobs that are followed"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_2(capsys, arguments, told):
    code, error = printed(capsys, *arguments)

    assert (2, 1) == (code, error.count("\n"))
    assert told in error


def test_pods_that_follow_a_job_know_how_old_it_may_be(capsys):
    followed = ("--follow", "ctr=/models/deltas", "--max_age_s", "60")
    code, (deployment, _) = printed(capsys, *followed, "--yaml", "--plain")

    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (0, list(followed[:2])) == (code, container["args"][:2])
    assert "60.0" == container["args"][container["args"].index("--max_age_s") + 1]


def test_pods_by_need_have_an_autoscaler_and_no_number_of_their_own(capsys):
    asked = (
        *YAML,
        "--replicas",
        "2:8",
        "--target_cpu",
        "60",
        "--max_unavailable",
        "2",
        "-n",
        "shop",
    )
    code, (deployment, _, budget, scaler) = printed(capsys, *asked)

    assert (0, False) == (code, "replicas" in deployment["spec"])
    spec = scaler["spec"]
    assert (2, 8) == (spec["minReplicas"], spec["maxReplicas"])
    who = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "ctr"}
    assert who == spec["scaleTargetRef"]
    (metric,) = spec["metrics"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    source = metric["containerResource"]
    assert (container["name"], "cpu", 60) == (
        source["container"],
        source["name"],
        source["target"]["averageUtilization"],
    )
    assert 2 == budget["spec"]["maxUnavailable"]
    assert deployment["spec"]["selector"] == budget["spec"]["selector"]
    assert {"shop"} == {each["metadata"]["namespace"] for each in (budget, scaler)}


@pytest.mark.parametrize(("replicas", "kinds"), [("1", 0), ("2", 1), ("3:3", 1), ("1:2", 2)])
def test_what_one_pod_or_a_fixed_number_does_not_need_is_not_there(replicas, kinds):
    found = objects(Wanted("ctr", "edl:1", [MODEL], replicas=replicas))

    names = ["Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"]
    assert names[: 2 + kinds] == [each["kind"] for each in found]


SPOT = {"nodeSelector": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}


def test_node_selectors_and_tolerations_come_by_the_file_that_a_job_has(capsys, tmp_path):
    """Parts of a job's roles are none of these pods'; probes and the rest stay."""
    file = tmp_path / "cluster.yaml"
    parts = {"pod": {"priorityClassName": "edl-high"}, "serve": SPOT, "worker": {"hostname": "no"}}
    file.write_text(yaml.safe_dump(parts))

    code, (deployment, *_) = printed(capsys, *YAML, "--cluster_spec", str(file))
    _, (usual, *_) = printed(capsys, *YAML)

    pod = deployment["spec"]["template"]["spec"]
    added = {**SPOT, "priorityClassName": "edl-high"}
    assert (0, {**usual["spec"]["template"]["spec"], **added}) == (code, pod)


def test_a_python_file_may_change_pods_and_service(capsys, tmp_path):
    file = tmp_path / "cluster.py"
    file.write_text(
        "def with_pod(pod):\n    pod['spec']['runtimeClassName'] = 'gvisor'\n"
        "def with_service(service):\n    service['spec']['type'] = 'LoadBalancer'\n"
    )

    code, (deployment, service) = printed(capsys, *YAML, "--cluster_spec", str(file))

    runtime = deployment["spec"]["template"]["spec"]["runtimeClassName"]
    assert (0, "gvisor", "LoadBalancer") == (code, runtime, service["spec"]["type"])


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"server": SPOT}, "it has parts pod, master"),
        ({"serve": {"tolerations": {"key": "a"}}}, "serve.spec.tolerations is a mapping"),
        (
            {"serve": {"containers": [{"name": "serve", "livenessProbe": {"periodSeconds": 1}}]}},
            "livenessProbe of the container serve is edl's own",
        ),
        ({"serve": {"labels": {"app.kubernetes.io/name": "shop"}}}, "are found by the labels"),
    ],
)
def test_what_may_not_be_laid_over_the_pods_is_one_sentence(capsys, tmp_path, part, told):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(part))

    code, error = printed(capsys, *YAML, "--cluster_spec", str(file))

    assert (2, 1) == (code, error.count("\n"))
    assert told in error
