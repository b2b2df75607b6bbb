"""A cluster that enforces Pod Security's restricted takes every manifest without a warning."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.kube_namespace import Namespace, fresh
from tools.kube_objects import make_deployment

from .tools import Unreachable, fetch

MANIFESTS = Path(__file__).parents[2] / "k8s" / "manifests"
CHART = MANIFESTS / "chart"
COMPONENTS = ("scheduler", "nodes", "dashboard")


@pytest.fixture(scope="module")
def here(cluster) -> Iterator[Namespace]:
    """Make a namespace in which Deployments, too, are held to `restricted`: by a warning."""
    with fresh(cluster) as namespace:
        cluster.apply(CHART / "files" / "edljobs.yaml")
        cluster.establish("edljobs.edl.dev")
        yield namespace


def dry(here: Namespace, text: str) -> list[str]:
    """Return the lines that the API server answers to `kubectl apply`, which changes nothing."""
    said = here.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    return [line for line in said.splitlines() if line]


def test_a_deployment_that_is_not_restricted_is_warned_of(here):
    """The API server would say so of the manifests below, too."""
    made = make_deployment("loose", 1, "true")
    del made["spec"]["template"]["spec"]["securityContext"]

    with pytest.raises(AssertionError, match="Warning: would violate PodSecurity"):
        dry(here, yaml.safe_dump(made))


def test_base_and_components_are_taken_without_a_warning(here, tmp_path):
    folder = tmp_path.resolve()
    remove = "{apiVersion: v1, kind: Namespace, metadata: {name: edl}, $patch: delete}"
    overlay = {
        "namespace": here.name,
        "resources": [os.path.relpath(MANIFESTS / "base", folder)],
        "components": [os.path.relpath(MANIFESTS / each, folder) for each in COMPONENTS],
        "patches": [{"patch": remove, "target": {"kind": "Namespace"}}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    text = here.kubectl("kustomize", str(folder))

    said = dry(here, text)

    expected = len([each for each in yaml.safe_load_all(text) if each])
    assert expected == len(said) > 20
    deployments = {line.split()[0] for line in said if line.startswith("deployment")}
    assert {"deployment.apps/edl-controller", "deployment.apps/edl-scheduler"} < deployments


def test_the_chart_with_all_that_it_has_is_taken_without_a_warning(here):
    try:
        helm = fetch() / "helm"
    except Unreachable as why:
        pytest.skip(f"no helm: {why}")
    sets = [f"--set-json={each}" for each in ("scheduler.enabled=true", "scheduler.nodes=true")]
    text = subprocess.run(
        [helm, "template", "edl", str(CHART), f"--namespace={here.name}", *sets],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    ).stdout

    said = dry(here, text)

    assert len([each for each in yaml.safe_load_all(text) if each]) == len(said) > 15


def test_the_examples_are_taken_without_a_warning(here):
    files = sorted((MANIFESTS / "examples").glob("*.yaml"))

    said = [line for file in files for line in dry(here, file.read_text())]

    assert len(files) == len(said) > 0
