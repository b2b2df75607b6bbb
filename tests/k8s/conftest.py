"""`cluster`: one real control plane for all tests here. `namespace`: a test's own corner of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools import kube
from tools.kube_api import Object
from tools.kube_namespace import Namespace, fresh
from tools.kube_objects import IMAGE
from tools.kueue_itself import Installed
from tools.schedulers import install, running

HERE = Path(__file__).parent
# The first test's includes the start of the cluster, and maybe the building of Kubernetes.
TIMEOUT_S = 1200


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items):
    ours = [item for item in items if HERE in item.path.parents]
    reason = kube.why_not() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.k8s)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def spread_kueue(config, items):
    """Let two processes of pytest -n begin with Kueue's tests, which take the longest.

    What a process begins with no other one takes from it, and each installs Kueue in its cluster.
    """
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    held = [item for item in items if HERE in item.path.parents and "kueue" in item.path.name]
    others = [item for item in items if item not in held]
    second = max(0, len(items) // processes - 1)
    items[:] = [*held[:1], *others[:second], *held[1:], *others[second:]]


@pytest.fixture(scope="session")
def cluster():
    with kube.Cluster(nodes=4, cpu="4", memory="8Gi") as cluster:
        yield cluster
        assert cluster.deprecated() == set()  # all that was asked for, by whomever of ours


@pytest.fixture
def namespace(request, cluster):
    """Make a namespace that enforces Pod Security's restricted, or what the test's mark says."""
    mark = request.node.get_closest_marker("pod_security")
    with fresh(cluster, mark.args[0] if mark else "restricted") as namespace:
        yield namespace


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder on a file system that the pods see."""
    found = kube.CLUSTERS / "data" / f"controller-{time.time_ns()}"
    found.mkdir(parents=True)
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def allow(folder) -> Object:
    """Return what EdlJobs may ask for: this folder of the nodes, by its path or by a claim."""
    return {"hostPaths": [f"{folder}*"], "mounts": [f"{folder}*"]}


@pytest.fixture
def controller(cluster, namespace, folder, allow) -> Iterator[None]:
    """Run the controller here, with the token of its own account."""
    manifests = Path(kube.ROOT) / "k8s" / "manifests"
    base = manifests / "base"
    roles = [base / f"role-{name}.yaml" for name in ("master", "controller", "user")]
    cluster.apply(manifests / "chart/files/edljobs.yaml", base / "priority-classes.yaml")
    namespace.apply(base / "service-accounts.yaml", *roles)
    cluster.establish("edljobs.edl.dev")
    namespace.claims(folder)
    config = namespace.kubeconfig("edl-controller")
    command = [sys.executable, "-m", "edl.k8s", "--namespace", namespace.name]
    with open(folder / "controller.log", "w") as log:
        process = subprocess.Popen(
            [*command, "--master_image", IMAGE],
            env={**os.environ, "KUBECONFIG": str(config), "EDL_ALLOW": yaml.safe_dump(allow)},
            stdout=log,
            stderr=log,
        )
    yield
    process.terminate()
    code = process.wait(30.0)
    print((folder / "controller.log").read_text())
    assert code == 0


@pytest.fixture(scope="module")
def installed(cluster) -> Iterator[Installed]:
    """Install Kueue itself for the tests of a file, and remove it for those of the others."""
    kueue = Installed(cluster)
    yield kueue
    kueue.remove()


@pytest.fixture
def kueue(installed) -> Iterator[Installed]:
    """Have Kueue without a queue, configured as its manifests have it."""
    installed.configure()
    yield installed
    installed.clear()


@pytest.fixture
def said(namespace, folder, kueue) -> Iterator[Path]:
    """Run a controller and a scheduler with the rights of the manifests; return what it says."""
    install(namespace)
    namespace.claims(folder)
    namespace.cluster.establish("edljobs.edl.dev")
    flags = ("--runtime", "kubernetes", "--every", "1")
    with running(namespace, folder, *flags) as log:
        yield log


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    namespace = getattr(item, "funcargs", {}).get("namespace")
    if report.failed and call.when == "call" and isinstance(namespace, Namespace):
        report.sections.append(("the namespace", namespace.report()))
    return report
