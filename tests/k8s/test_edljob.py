"""The resource EdlJob and the roles, as a real API server takes and the real kubectl shows them."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.kube_api import ApiError, path_of
from tools.kube_namespace import Namespace, fresh

from edl.common.report import (
    VERSION,
    Bounds,
    Model,
    Report,
    Resize,
    Sample,
    StepTimes,
    compact,
    read,
    write,
)
from edl.k8s.api import Api
from edl.k8s.job import suspended_by
from edl.k8s.job_status import difference

from .tools import Unreachable, fetch

MANIFESTS = Path(__file__).parents[2] / "k8s" / "manifests"
GOOD = yaml.safe_load((MANIFESTS / "examples/deepfm.yaml").read_text())
LEAST = {"image": "edl:test", "settings": {"model_def": "iris"}}

Object = dict[str, Any]
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def here(cluster) -> Iterator[Namespace]:
    """Make one namespace for all tests of this file: it takes seconds to make and end one."""
    with fresh(cluster) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def tools() -> Path:
    try:
        return fetch()
    except Unreachable as why:
        pytest.skip(f"no kubectl and helm: {why}")


@pytest.fixture(scope="module")
def kubectl(cluster, here, tools) -> Kubectl:
    """Return kubectl 1.37 in that namespace, which answers its words, the errors too."""
    flags = [f"--kubeconfig={cluster.kubeconfig}", f"--cache-dir={cluster.state}/kubectl-1.37"]

    def kubectl(*arguments: str, stdin: str = "", code: int = 0) -> str:
        command = [tools / "kubectl", *flags, f"--namespace={here.name}", *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, check=False, text=True, timeout=60
        )
        assert done.returncode == code, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return kubectl


@pytest.fixture(scope="module")
def installed(cluster, here, kubectl, tmp_path_factory) -> Path:
    """Apply the base to that namespace; return the folder of the overlay that does it.

    What is the cluster's own is left there: others may use it by now.
    """
    folder = tmp_path_factory.mktemp("overlay").resolve()
    remove = "{apiVersion: v1, kind: Namespace, metadata: {name: edl}, $patch: delete}"
    overlay = {
        "namespace": here.name,
        "resources": [os.path.relpath(MANIFESTS / "base", folder)],
        "patches": [{"patch": remove, "target": {"kind": "Namespace"}}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    kubectl("apply", "-k", str(folder))
    cluster.establish("edljobs.edl.dev")
    return folder


@pytest.fixture
def submit(installed, here) -> Callable[..., Object]:
    """Create an EdlJob as the API takes it; `dry`: only have it checked."""

    def submit(spec: Object, name: str = "tried", dry: bool = False) -> Object:
        about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": name}}
        path = path_of("edljobs", here.name, dryRun="All" if dry else "")
        return here.api.call("POST", path, {**about, "spec": spec})

    return submit


def changed(path: str, value: Any) -> Object:
    """Return GOOD's spec with another value; None leaves the field out."""
    spec = copy.deepcopy(GOOD["spec"])
    *parents, last = path.split(".")
    here = spec
    for name in parents:
        here = here.setdefault(name, {})
    if value is None:
        del here[last]
    else:
        here[last] = value
    return spec


def test_the_base_is_applied_twice_and_the_second_time_changes_nothing(installed, kubectl):
    told = kubectl("apply", "-k", str(installed))

    assert [line for line in told.splitlines() if not line.endswith(" unchanged")] == []


def test_the_least_spec_gets_its_defaults(submit):
    spec = submit(LEAST, dry=True)["spec"]

    assert spec == {
        **LEAST,
        "command": "train",
        "imagePullPolicy": "IfNotPresent",
        "preemptible": True,
        "master": {},
        "ps": {"replicas": 1},
        "suspend": False,
        "worker": {"replicas": 2, "minReplicas": 1},
    }


def test_a_new_edljob_is_of_a_generation_that_no_controller_has_looked_at(submit):
    """Flux, by kstatus, takes an EdlJob of such a status for one that begins (docs/gitops.md)."""
    made = submit(LEAST, dry=True)

    assert made["status"] == {"observedGeneration": -1}


def test_a_full_spec_is_kept_as_it_is(submit):
    kept = submit(GOOD["spec"], dry=True)["spec"]

    assert {name: kept[name] for name in GOOD["spec"]} == GOOD["spec"]


BAD = [
    ("worker.replicas", -1),
    ("worker.replicas", 0),
    ("worker.replicas", 1.5),
    ("worker.minReplicas", 0),
    ("worker.maxReplicas", "many"),
    ("worker.maxReplicas", 10001),
    ("teacher.replicas", 10001),
    ("worker.highFraction", 1.5),
    ("ps.replicas", "two"),
    ("ps.replicas", 0),
    ("ps.replicas", 1025),
    ("command", "teach"),
    ("image", None),
    ("image", ""),
    ("image", "edl: 1"),
    ("imagePullPolicy", "Sometimes"),
    ("imagePullSecrets", [{}]),
    ("suspend", "yes"),
    ("settings", None),
    ("settings", {}),
    ("settings", "iris"),
    ("envs", {"DEBUG": 1}),
    ("jobVolume", {}),
    ("jobVolume", {"emptyDir": {}, "hostPath": {"path": "/a"}}),
    ("jobVolume", {"persistentVolumeClaim": {}}),
    ("jobVolume", {"hostPath": {"path": "relative"}}),
    ("volumes", [{"emptyDir": {}}]),
    ("volumes", [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
    ("volumeMounts", [{"name": "a"}]),
    ("master.resources.requests", {"cpu": "lots"}),
    ("master.resources.requests", {"cpu": "-1"}),
    ("worker.tolerations", [{"effect": "Never"}]),
    ("worker.nodeSelector", {"spot": True}),
    ("worker.podTemplate", {"metadata": {"labels": {"a": 1}}}),
]


@pytest.mark.parametrize(("path", "value"), BAD, ids=lambda each: str(each)[:30])
def test_a_bad_spec_is_refused_with_422_and_the_name_of_the_field(submit, path, value):
    with pytest.raises(ApiError) as refused:
        submit(changed(path, value), dry=True)

    assert refused.value.code == 422
    assert f"spec.{path}" in str(refused.value)


@pytest.mark.parametrize("name", ["a.b", "a" * 51])
def test_a_name_that_a_service_cannot_have_is_refused(submit, name):
    with pytest.raises(ApiError) as refused:
        submit(LEAST, name=name, dry=True)

    assert refused.value.code == 422


def test_kubectl_says_which_field_is_wrong(installed, kubectl):
    bad = {**GOOD, "spec": changed("worker.replicas", -1)}

    told = kubectl("apply", "-f", "-", stdin=yaml.safe_dump(bad), code=1)

    assert "spec.worker.replicas" in told
    assert "greater than or equal to 1" in told


def test_kubectl_shows_the_columns_and_scales_and_explains_and_deletes(submit, here, kubectl):
    submit(GOOD["spec"], name="deepfm")
    status = {
        "phase": "Running",
        "workers": 4,
        "workersReady": "3/4",
        "ps": 2,
        "psReady": "2/2",
        "teachers": 2,
        "teachersReady": "1/2",
        "progress": "27 %",
        "progressPercentage": 27,
        "restarts": 1,
        "epoch": 2,
        "selector": "edl.dev/job-name=deepfm,edl.dev/role=worker",
    }
    path = path_of("edljobs", here.name, "deepfm/status")
    merge = "application/merge-patch+json"
    change = {"status": status, "spec": {"worker": {"replicas": 7}}}
    here.api.call("PATCH", path, change, content_type=merge)

    head, line = kubectl("get", "edlj", "--output=wide").splitlines()
    *values, _age, model, teachers, epoch = line.split()
    assert head.split() == [
        "NAME",
        "STATE",
        "WORKERS",
        "PS",
        "PROGRESS",
        "RESTARTS",
        "AGE",
        "MODEL",
        "TEACHERS",
        "EPOCH",
    ]
    assert values == ["deepfm", "Running", "3/4", "2/2", "27", "%", "1"]
    assert (model, teachers, epoch) == ("deepfm", "1/2", "2")
    replicas = ("get", "edljob", "deepfm", "--output=jsonpath={.spec.worker.replicas}")
    assert kubectl(*replicas) == "4"  # whoever writes the status does not change the spec
    kubectl("scale", "edljob", "deepfm", "--replicas=6")
    assert kubectl(*replicas) == "6"
    assert "greater than or equal to 1" in kubectl(
        "scale", "edljob", "deepfm", "--replicas=0", code=1
    )
    assert "while fewer than so many are there" in kubectl(
        "explain", "edljob.spec.worker.minReplicas"
    )
    kubectl("delete", "edljob", "deepfm")
    assert here.objects("edljobs") == {}


def test_a_status_that_is_none_is_refused(submit, here):
    submit(LEAST)
    path = path_of("edljobs", here.name, "tried/status")

    with pytest.raises(ApiError) as refused:
        here.api.call(
            "PATCH",
            path,
            {"status": {"phase": "Happy"}},
            content_type="application/merge-patch+json",
        )

    assert refused.value.code == 422


def test_a_report_is_kept_as_it_was_written_and_what_goes_away_is_gone(submit, here):
    submit(LEAST, name="told")
    path = path_of("edljobs", here.name, "told/status")
    step = StepTimes(*[0.1] * 6, 1.5)
    before = Report(
        version=VERSION,
        records_left=70,
        records_total=100,
        epochs=2,
        samples=(Sample(1, 2, 1, 16, 12.5, 4.0, 3), Sample(0, 2, 1, 0, 7.0, 1e-3, 1)),
        model=Model(step, 0.0, 2.5, 16, 64, None),
        resize=Resize(0.5, 2.0),
        workers=Bounds(1, 4),
        nodes=Bounds(),
        priority="gold",
        nearly_done=False,
        suspended=False,
    )
    after = dataclasses.replace(before, records_left=None, model=None, resize=Resize(0.75))

    kept: Object = {}
    for report in (before, after):
        told = {"report": compact(write(report)), "reportTime": "2026-01-01T00:00:00Z"}
        told["observedGeneration"] = 1  # which every status has; else it has its default
        patch = {"status": difference(kept, told)}
        found = here.api.call("PATCH", path, patch, content_type="application/merge-patch+json")
        kept = found["status"]
        assert (report, {}) == (read(kept["report"]), difference(kept, told))


def test_a_user_submits_and_scales_and_deletes_and_sees_no_secret(installed, kubectl):
    kubectl("create", "rolebinding", "anna", "--role=edl-user", "--user=anna")
    anna = ("--as=anna",)

    kubectl(*anna, "apply", "-f", str(MANIFESTS / "examples/deepfm.yaml"))
    kubectl(*anna, "scale", "edljob", "deepfm", "--replicas=3")
    kubectl(*anna, "get", "edljobs,pods,configmaps,events")
    kubectl(*anna, "delete", "edljob", "deepfm")
    assert "forbidden" in kubectl(*anna, "get", "secrets", code=1)
    assert "forbidden" in kubectl(*anna, "create", "job", "any", "--image=any", code=1)


def test_helm_installs_upgrades_and_uninstalls_the_chart(cluster, namespace, installed, tools):
    def helm(*words: str) -> str:
        flags = (f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace.name}")
        command = [tools / "helm", *words, *flags]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    chart = str(MANIFESTS / "chart")
    there = "crds.enabled=false"  # which kustomize has brought, as it has the priority classes

    helm("install", "edl", chart, "--set", there)
    assert "edl-controller" in namespace.objects("deployments")
    helm("upgrade", "edl", chart, "--set", f"{there},networkPolicy.denyIngress=true")
    assert set(namespace.objects("networkpolicies")) == {"edl-controller", "edl-deny-ingress"}
    helm("uninstall", "edl", "--wait")
    assert namespace.objects("deployments") == {}


YES = {
    "edl-master": [
        ("create", "", "pods"),
        ("delete", "", "pods"),
        ("watch", "", "pods"),
        ("patch", "", "configmaps"),
        ("update", "coordination.k8s.io", "leases"),
        ("create", "", "events"),
    ],
    "edl-controller": [
        ("patch", "edl.dev", "edljobs/status"),
        ("watch", "edl.dev", "edljobs"),
        ("create", "", "pods"),
        ("create", "", "secrets"),
        ("create", "policy", "poddisruptionbudgets"),
        ("create", "networking.k8s.io", "networkpolicies"),
    ],
}
NO = {
    "edl-master": [
        ("get", "", "secrets"),
        ("patch", "", "pods"),
        ("create", "", "pods/exec"),
        ("create", "batch", "jobs"),
        ("get", "edl.dev", "edljobs"),
        ("get", "", "nodes"),
    ],
    "edl-controller": [
        ("list", "", "secrets"),
        ("create", "edl.dev", "edljobs"),
        ("create", "", "pods/exec"),
        ("create", "rbac.authorization.k8s.io", "rolebindings"),
        ("get", "", "nodes"),
    ],
    "edl-replica": [("get", "", "pods"), ("get", "", "configmaps"), ("get", "", "secrets")],
}


@pytest.mark.parametrize("account", NO)
def test_an_account_may_do_what_it_must_and_no_more(installed, here, account):
    asked = [*YES.get(account, []), *NO[account]]

    allowed = [right for right in asked if may(here, account, here.name, *right)]
    elsewhere = [right for right in asked if may(here, account, "kube-system", *right)]
    assert (YES.get(account, []), []) == (allowed, elsewhere)


def may(here: Namespace, account: str, where: str, verb: str, group: str, of: str) -> bool:
    resource, _, sub = of.partition("/")
    asked = {"namespace": where, "verb": verb, "group": group, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{here.name}:{account}",
            "resourceAttributes": {**asked, "subresource": sub},
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return here.api.call("POST", path, review)["status"]["allowed"]


def test_a_manifest_that_is_applied_again_leaves_alone_what_the_scheduler_began(
    installed, cluster, here, kubectl, monkeypatch
):
    """A GitOps loop applies it so. One that says `suspend` conflicts, and it is known who won.

    Broken once: the fields of all components are of "python-urllib3"."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    spec = {**LEAST, "scheduling": {}, "worker": {"minReplicas": 1, "maxReplicas": 8}}
    about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "again"}}

    def apply(code: int = 0, *flags: str, **more: Any) -> str:
        manifest = yaml.safe_dump({**about, "spec": {**spec, **more}})
        return kubectl("apply", "--server-side", *flags, "-f", "-", stdin=manifest, code=code)

    def change(client: str, **changed: Any) -> None:
        api = Api.connect(here.name, client=client)
        api.patch("EdlJob", "again", {"spec": changed})
        api.close()

    def found() -> Object:
        return here.objects("edljobs")["again"]

    apply()
    change("edl-controller", suspend=True)
    change("edl-scheduler", suspend=False, worker={"replicas": 3})
    apply()
    again = found()["spec"]
    refused = apply(1, suspend=True)
    apply(0, "--force-conflicts", suspend=True)
    forced = found()

    assert (again["suspend"], again["worker"]["replicas"]) == (False, 3)
    assert 'conflict with "edl-scheduler"' in refused
    assert ".spec.suspend" in refused
    assert (forced["spec"]["suspend"], suspended_by(forced)) == (True, "kubectl")
