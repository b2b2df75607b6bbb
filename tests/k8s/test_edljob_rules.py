"""What an API server itself refuses of an EdlJob, and whom Kubernetes' own roles let see one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.edljob_rules import BROKEN, WHOLE
from tools.kube_api import ApiError, path_of
from tools.kube_namespace import Namespace, fresh

MANIFESTS = Path(__file__).parents[2] / "k8s" / "manifests"
LEAST = {"image": "edl:test", "settings": {"model_def": "iris"}}
SOON_S = 30.0  # until the API server has a policy, or has made a role of others

Object = dict[str, Any]


@pytest.fixture(scope="module")
def here(cluster) -> Iterator[Namespace]:
    """Make one namespace for all tests of this file."""
    cluster.apply(MANIFESTS / "chart/files/edljobs.yaml", MANIFESTS / "base/aggregated-roles.yaml")
    cluster.establish("edljobs.edl.dev")
    with fresh(cluster) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def submit(here) -> Callable[..., Object]:
    """Have an EdlJob checked by the API, and make none."""

    def submit(spec: Object, name: str = "tried") -> Object:
        about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": name}}
        path = path_of("edljobs", here.name, dryRun="All")
        return here.api.call("POST", path, {**about, "spec": spec})

    return submit


def soon(until: Callable[[], bool]) -> bool:
    """Tell whether it is so within some seconds."""
    give_up = time.monotonic() + SOON_S
    while not (found := until()) and time.monotonic() < give_up:
        time.sleep(0.2)
    return found


def may(here: Namespace, user: str, verb: str, of: str) -> bool:
    resource, _, sub = of.partition("/")
    asked = {"namespace": here.name, "verb": verb, "group": "edl.dev", "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": {**asked, "subresource": sub}},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(here.api.call("POST", path, review)["status"]["allowed"])


@pytest.mark.parametrize(("name", "spec", "said"), BROKEN, ids=lambda each: str(each)[:40])
def test_what_fields_demand_of_each_other_is_refused_in_the_controllers_words(
    submit, name, spec, said
):
    with pytest.raises(ApiError) as refused:
        submit({**LEAST, **spec}, name)

    assert refused.value.code == 422
    assert said in str(refused.value).replace('\\"', '"')


@pytest.mark.parametrize(("name", "spec"), WHOLE, ids=lambda each: str(each)[:40])
def test_what_breaks_no_rule_is_taken(submit, name, spec):
    assert submit({**LEAST, **spec}, name)["metadata"]["name"] == name


@pytest.mark.parametrize("name", ["a" * 60, "scheduler"])
def test_a_job_of_a_name_that_was_allowed_once_is_told_of_and_goes(cluster, here, tmp_path, name):
    """Broken once: no status of it could be written, and no finalizer be taken away."""
    resource = yaml.safe_load((MANIFESTS / "chart/files/edljobs.yaml").read_text())
    del resource["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    (tmp_path / "before.yaml").write_text(yaml.safe_dump(resource))
    about = {"name": name, "finalizers": ["edl.dev/tried"]}
    job = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": about, "spec": LEAST}

    def told() -> bool:
        made = {**job, "metadata": {"name": f"{name[:50]}.b"}}
        path = path_of("edljobs", here.name, dryRun="All")
        try:
            here.api.call("POST", path, made)
        except ApiError as error:
            return error.code == 422
        return False

    cluster.apply(tmp_path / "before.yaml")
    assert soon(lambda: not told())
    here.api.call("POST", path_of("edljobs", here.name), job)
    cluster.apply(MANIFESTS / "chart/files/edljobs.yaml")
    assert soon(told)

    status = '{"status": {"phase": "Failed", "message": "its name"}}'
    here.kubectl("patch", "edljob", name, "--subresource=status", "--type=merge", "-p", status)
    here.kubectl("patch", "edljob", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    here.kubectl("delete", "edljob", name, "--timeout=30s")


def test_kubernetes_own_roles_see_and_change_edljobs(here):
    for role in ("view", "edit", "admin"):
        here.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user=user-{role}")

    assert soon(lambda: may(here, "user-view", "list", "edljobs"))
    assert soon(lambda: may(here, "user-admin", "patch", "edljobs/scale"))
    asked = [("watch", "edljobs"), ("create", "edljobs"), ("delete", "edljobs")]
    asked += [("get", "edljobs/status"), ("patch", "edljobs/scale"), ("patch", "edljobs/status")]
    has = {
        role: [may(here, f"user-{role}", *each) for each in asked]
        for role in ("view", "edit", "admin")
    }
    changes = [True, True, True, True, True, False]
    assert has == {
        "view": [True, False, False, True, False, False],
        "edit": changes,
        "admin": changes,
    }


def test_whose_quota_a_job_counts_for_is_who_makes_it(cluster, here):
    """Before, anybody wrote another's name there, or null by a patch."""
    here.kubectl("create", "rolebinding", "makers", "--clusterrole=edit", "--group=makers")

    def manifest(**scheduling: str) -> str:
        spec = {**LEAST, "worker": {"maxReplicas": 2}, "scheduling": scheduling}
        about = {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": {"name": "mine"}}
        return yaml.safe_dump({**about, "spec": spec})

    def tell(who: str, *words: str, stdin: str | None = None) -> str:
        try:
            return here.kubectl(f"--as={who}", "--as-group=makers", *words, stdin=stdin)
        except AssertionError as error:
            return str(error)

    def apply(who: str, **scheduling: str) -> str:
        return tell(who, "apply", "--dry-run=server", "-f", "-", stdin=manifest(**scheduling))

    assert soon(lambda: "created" in apply("anna", user="bob"))
    cluster.apply(MANIFESTS / "users/policy.yaml")
    try:
        assert soon(lambda: "write anna, who makes it" in apply("anna", user="bob"))
        assert "write anna, who makes it" in apply("anna")
        assert "created" in apply("anna", user="anna")
        tell("anna", "apply", "-f", "-", stdin=manifest(user="anna"))
        nulled = tell(
            "anna", "patch", "edljob", "mine", "--type=merge", "-p",
            '{"spec": {"scheduling": {"user": null}}}',
        )  # fmt: skip
        others = tell(
            "bob", "patch", "edljob", "mine", "--type=merge", "-p", '{"spec": {"suspend": true}}'
        )
        assert "write anna, who makes it" in nulled
        assert "patched" in others
        assert here.objects("edljobs")["mine"]["spec"]["scheduling"] == {"user": "anna"}
    finally:
        cluster.kubectl("delete", "-f", str(MANIFESTS / "users/policy.yaml"))
