"""The user of pods is a number, or the one that a cluster chooses for a namespace (OpenShift)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import edl
from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.k8s import copying, pods
from edl.k8s.__main__ import _installed
from edl.k8s.allowed import Installed
from edl.k8s.job import wanted
from edl.k8s.outside import submit
from edl.scheduler.asking.fleet import Pool
from edl.scheduler.asking.placeholders import pod_template
from edl.scheduler.cluster import Resources
from edl.serve import manifests

from .edljobs import edljob

ROOT = Path(edl.__file__).parent
MANIFESTS = ROOT / "k8s" / "manifests"
IDS = ("runAsUser", "runAsGroup", "fsGroup")
RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def settings(**more) -> JobSettings:
    return JobSettings(job_name="demo", image_name="edl:1", runtime="kubernetes", **more)


def every_pod(user: str) -> dict[str, dict]:
    """Return the spec of each pod that edl makes where this user is said."""
    batch = pods.templates(settings(pod_user=user))
    made = wanted(edljob(), Installed(image="edl:1", pod_user=user)).templates
    asked = copying.Wish("1", "/data", "0" * 64)
    serve, *_ = manifests.objects(manifests.Wanted("m", "edl:1", ["m=/m"], pod_user=user))
    found = {f"batch {role}": each["spec"] for role, each in batch.items()}
    found |= {f"EdlJob {role}": each["spec"] for role, each in made.items()}
    found["copying"] = copying.template(made, asked)["spec"]
    found["serve"] = serve["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(("user", "ids"), [("any", None), ("1000650000", 1000650000)])
def test_all_pods_have_the_user_that_is_said_and_stay_restricted(user, ids):
    for what, spec in every_pod(user).items():
        said = dict(spec["securityContext"])

        assert [ids] * 3 == [said.pop(name, None) for name in IDS], what
        assert RESTRICTED == said, what
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert own == each["securityContext"], what
            variables = {e["name"]: e.get("value") for e in each["env"]}
            assert "/tmp" == variables["HOME"], what  # which such a user may write


@pytest.mark.parametrize(
    "path", ["base/controller", "scheduler/deployment", "dashboard/deployment"]
)
def test_a_component_names_no_user_and_writes_to_its_tmp_alone(path):
    (found,) = yaml.safe_load_all((MANIFESTS / f"{path}.yaml").read_text())
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert RESTRICTED == spec["securityContext"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "HOME", "value": "/tmp"} in container["env"]
    assert [{"name": "tmp", "mountPath": "/tmp"}] == container["volumeMounts"]


@pytest.mark.parametrize(
    "user", ["0", "-1", "root", "", "2147483648", "1e3", "٣", "01000", "9" * 99]
)
def test_what_is_no_user_of_pods_is_refused(user):
    with pytest.raises(UsageError, match="write a number from 1 to 2147483647, or any"):
        pods.templates(settings(pod_user=user))


def test_of_edljobs_the_installer_says_it_and_nobody_else(monkeypatch, api):
    monkeypatch.setenv("EDL_POD_USER", "any")
    assert "any" == _installed(api, "edl:1").pod_user

    monkeypatch.setenv("EDL_POD_USER", "root")
    with pytest.raises(UsageError, match=r"EDL_POD_USER: 'root' is no user"):
        _installed(api, "edl:1")

    job = edljob()
    job["spec"]["settings"]["pod_user"] = "any"
    with pytest.raises(UsageError, match=r"spec\.settings\.pod_user does not stand in an EdlJob"):
        wanted(job)

    with pytest.raises(UsageError, match="or say --as job"):
        submit.plan(settings(pod_user="any", model_def="iris"), "edljob")


def test_pods_that_stand_for_nodes_have_the_user_of_their_image():
    """The image of pause has a user who is not root; another one is in no namespace's range."""
    spec = pod_template(Pool(Resources(cpu=1)), "on-demand")["spec"]

    assert RESTRICTED == spec["securityContext"]


@pytest.mark.parametrize("path", ["k8s/manifests/Dockerfile", "model_zoo/templates/Dockerfile.txt"])
def test_what_an_image_lets_its_user_write_is_the_groups_0_as_well(path):
    text = (ROOT / path).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    given = " ".join(lines)

    owned = re.findall(r"chown -R 1000:0 ((?:/\S+ ?)+)|--chown=1000:0 \S+ (/\S+)", given)
    folders = {each for pair in owned for part in pair for each in part.split()}
    opened = re.findall(r"chmod -R g=u ((?:/\S+ ?)+)", given)
    assert folders
    assert folders <= {each for part in opened for each in part.split()}
    assert {"1000:0"} == set(re.findall(r"chown(?: -R |=)(\S+)", given))
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert "1000:0" == users[-1]
