"""`cluster`: one real control plane for all tests here. `namespace`: a test's own corner of it."""

from __future__ import annotations

from pathlib import Path

import kube
import pytest

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


@pytest.fixture(scope="session")
def cluster():
    with kube.Cluster(nodes=4, cpu="4", memory="8Gi") as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster):
    with cluster.namespace() as namespace:
        yield namespace


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    namespace = getattr(item, "funcargs", {}).get("namespace")
    if report.failed and call.when == "call" and namespace is not None:
        report.sections.append(("the namespace", namespace.report()))
    return report
