"""The chart in a cluster that has a release of it already, by the real helm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tools import kube

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
