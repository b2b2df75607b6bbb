"""The chart in a cluster that has a release of it already, by the real helm."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools import kube
from tools.kube_jobs import counting
from tools.kube_namespace import Namespace, fresh
from tools.kube_objects import IMAGE
from tools.turns import in_turn

from edl.k8s import holders
from edl.k8s.api import Api

from .tools import Unreachable, fetch

MANIFESTS = Path(kube.ROOT) / "k8s" / "manifests"
# What is the whole cluster's.
SHARED = [f"priorityclass/edl-{name}" for name in ("low", "high", "master")]
SHARED += ["clusterrole/edl-view", "clusterrole/edl-edit"]
RELEASE = "meta.helm.sh/release"  # -name and -namespace, by which helm knows whose an object is


@pytest.fixture
def helm(cluster, namespace) -> Callable[..., str]:
    try:
        tool = fetch() / "helm"
    except Unreachable as why:
        pytest.skip(f"no helm: {why}")

    def helm(*arguments: str) -> str:
        command = [tool, *arguments, "-n", namespace.name, "--kubeconfig", cluster.kubeconfig]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return helm


def test_a_release_of_the_same_name_in_another_namespace_is_installed_beside(
    cluster, namespace, helm
):
    """What is the cluster's is the other's, and stays so. Broken once: "cannot be imported"."""
    cluster.apply(
        MANIFESTS / "base/priority-classes.yaml", MANIFESTS / "base/aggregated-roles.yaml"
    )
    other = (f"{RELEASE}-name=edl", f"{RELEASE}-namespace=another")
    cluster.kubectl("annotate", "--overwrite", *SHARED, *other)
    managed = "app.kubernetes.io/managed-by=Helm"
    cluster.kubectl("label", "--overwrite", *SHARED, managed)
    try:
        helm("install", "edl", str(MANIFESTS / "chart"), "--set", "crds.enabled=false")
        made = namespace.objects("deployments")
        helm("uninstall", "edl")
        left = cluster.kubectl("get", *SHARED, "-o", "name").split()
    finally:
        none = [f"{each.partition('=')[0]}-" for each in other]
        cluster.kubectl("annotate", *SHARED, *none)

    assert "edl-controller" in made
    assert [each.partition("/")[2] for each in SHARED] == [each.partition("/")[2] for each in left]


@in_turn(2)
def test_one_release_serves_a_namespace_of_which_it_was_never_told(
    cluster, namespace, helm, folder
):
    """A user with the ClusterRole edl-user makes an EdlJob there; its master makes the workers.

    Broken once: without the right to bind the masters' role.
    """
    cluster.apply(MANIFESTS / "chart/files/edljobs.yaml")
    cluster.establish("edljobs.edl.dev")
    repository, _, tag = IMAGE.partition(":")
    values = {"image": {"repository": repository, "tag": tag}, "crds": {"enabled": False}}
    values["controller"] = {"allNamespaces": True, "allow": {"mounts": [f"{folder}*"]}}
    values["dashboard"] = {"enabled": True}
    (folder / "values.json").write_text(json.dumps(values))
    helm("install", "edl", str(MANIFESTS / "chart"), "--values", str(folder / "values.json"))
    try:
        with fresh(cluster) as team:
            team.kubectl("create", "serviceaccount", "anna")
            who = f"--serviceaccount={team.name}:anna"
            team.kubectl("create", "rolebinding", "anna", "--clusterrole=edl-user", who)
            team.claims(folder)
            job = counting(folder, "demo", 64, {}, suspend=False)
            del job["spec"]["scheduling"]
            namespace.wait("leases", lambda leases: "edl-controller" in leases)
            page = namespace.wait("pods", lambda pods: next(filter(shows, pods), None))
            address = namespace.wait_log(page, "://")

            with as_account(team, "anna") as api:
                found = holders.controller(api)
                api.create("EdlJob", job)
            team.wait("pods", lambda pods: any("demo-worker" in name for name in pods))
            beside = ("-m", "edl.k8s", "--namespace", team.name, "--master_image", IMAGE)
            env = {**os.environ, "KUBECONFIG": str(team.kubeconfig("anna"))}
            other = subprocess.run(
                [sys.executable, *beside], check=False, env=env, capture_output=True, text=True
            )
            bound = ("get", "rolebinding", "edl-master", "-o", "jsonpath={.roleRef.kind}")
            kind = team.kubectl(*bound)
    finally:
        helm("uninstall", "edl", "--wait")

    assert (namespace.name, True) == (found.namespace, found.everywhere)
    assert "ClusterRole" == kind
    assert "https://0.0.0.0:8443/?token=TOKEN" == address
    assert (2, True) == (other.returncode, "is that of all namespaces" in other.stderr)


def shows(pod: str) -> bool:
    return pod.startswith("edl-dashboard-")


@contextlib.contextmanager
def as_account(here: Namespace, account: str) -> Iterator[Api]:
    """Yield edl's own client with the token of an account of this namespace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(here.kubeconfig(account)))
        api = Api.connect()
    with contextlib.closing(api):
        yield api
