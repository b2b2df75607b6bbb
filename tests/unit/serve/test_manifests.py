"""`edl serve --yaml`: what a cluster is to run; tests/k8s asks a real API server."""

import pytest
import yaml

from edl.cli.main import run
from edl.serve.manifests import Wanted, objects

MODEL = "ctr=/models/ctr/checkpoints"


def printed(capsys, *arguments):
    """Return the exit code, and the objects or the error."""
    code = run(["serve", *arguments])
    out, err = capsys.readouterr()
    return code, list(yaml.safe_load_all(out)) if code == 0 else err


def test_pods_are_ready_with_a_whole_model_and_get_the_flags(capsys):
    code, (deployment, service) = printed(
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
