"""Nodes that come and go on a real control plane: asked for, told to go, given back."""

from __future__ import annotations

import os

import pytest
from tools.cloud import Cloud
from tools.kube_jobs import counting
from tools.kube_objects import phase
from tools.schedulers import install, running
from tools.servers import assert_exact
from tools.turns import in_turn

from edl.common import storage
from edl.k8s.api import Api
from edl.scheduler.asking.fleet import Fleet, Pool, Wish
from edl.scheduler.asking.nodepool import NodePool
from edl.scheduler.asking.provisioning import Provisioning
from edl.scheduler.cluster import Resources
from edl.scheduler.prices import ON_DEMAND, SPOT

RECORDS = 2048
POOL = ("edl.dev/pool", "cloud")


def job(folder):
    small = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    stays = {"nodeSelector": {"type": "prockubelet"}, "resources": small}
    return counting(
        folder,
        "moved",
        RECORDS,
        {
            "model_params": {"record_s": 0.015},
            "minibatch_size": 16,
            "num_minibatches_per_task": 4,
            "checkpoint_dir": str(folder / "checkpoints"),
        },
        master=stays,
        ps={**stays, "replicas": 1},
        worker={"maxReplicas": 1, "nodeSelector": dict([POOL]), "resources": small},
    )


def where(pods):
    """Return the nodes on which processes of workers run."""
    return {
        pod["spec"]["nodeName"]
        for pod in pods.values()
        if any("running" in c["state"] for c in pod["status"].get("containerStatuses") or [])
    }


@in_turn(3)
def test_a_node_comes_for_a_job_and_another_one_when_it_has_a_notice(cluster, namespace, folder):
    install(namespace)
    namespace.claims(folder)
    cluster.establish("edljobs.edl.dev")
    flags = ("--nodes_by", "pods", "--pool", "=".join(POOL), "--max_nodes", "1", "--every", "1")
    workers = {"labels": "edl.dev/role=worker", "within_s": 300.0}
    cloud = Cloud(cluster, namespace.name, boot_s=0.0, idle_s=1000.0, notice_s=1000.0)
    try:
        with running(namespace, folder, *flags, "--node", "cpu=4,memory=8Gi") as log:
            namespace.apply(job(folder))
            (first,) = namespace.wait("pods", where, **workers)
            cloud.notice(first)
            (second,) = namespace.wait("pods", lambda pods: where(pods) - {first}, **workers)
            namespace.wait("edljobs", lambda jobs: phase(jobs["moved"]) == "Succeeded")
            noted = namespace.objects("edljobs")["moved"]["metadata"]["annotations"]
            told = log.read_text()
    finally:
        cloud.close()

    assert f"leaves {first}, which has karpenter.sh/disrupted" in told
    assert "0 spot and 0 on-demand -> 0 and 1" in told
    assert second in noted["edl.dev/machines"]
    assert_exact(storage.latest(str(folder / "checkpoints")).directory, RECORDS, 1)


def crd(group, kind, spec, namespaced):
    """Return a resource of somebody else's as far as we use it, by its published schema."""
    plural = f"{kind.lower()}s"
    condition_of = {"type": "object", "required": ["type", "status", "reason", "message"]}
    condition_of["x-kubernetes-preserve-unknown-fields"] = True
    status = {"type": "object", "properties": {"conditions": {"type": "array"}}}
    status["properties"]["conditions"]["items"] = condition_of
    schema = {"type": "object", "required": ["spec"]}
    schema["properties"] = {"spec": spec, "status": status}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


TEXT, NUMBER = {"type": "string", "maxLength": 255}, {"type": "integer", "minimum": 1}
REFERENCE = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
REQUEST = {
    "type": "object",
    "required": ["podSets", "provisioningClassName"],
    "properties": {
        "provisioningClassName": TEXT,
        "parameters": {"type": "object", "additionalProperties": TEXT},
        "podSets": {
            "type": "array",
            "minItems": 1,
            "maxItems": 32,
            "items": {
                "type": "object",
                "required": ["count", "podTemplateRef"],
                "properties": {"count": NUMBER, "podTemplateRef": REFERENCE},
            },
        },
    },
}
LIMITS = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
NODE_POOL = {"type": "object", "properties": {"limits": LIMITS}}


@pytest.fixture
def api(cluster, namespace, monkeypatch):
    """Return the API as the scheduler's account may use it."""
    install(namespace)
    cluster.apply(crd("autoscaling.x-k8s.io", "ProvisioningRequest", REQUEST, namespaced=True))
    cluster.apply(crd("karpenter.sh", "NodePool", NODE_POOL, namespaced=False))
    cluster.establish("provisioningrequests.autoscaling.x-k8s.io", "nodepools.karpenter.sh")
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(namespace.kubeconfig("edl-scheduler")))
    found = Api.connect(namespace.name)
    yield found
    found.close()


def test_requests_and_limits_are_as_their_published_schemas_have_them(cluster, namespace, api):
    pool = Pool(Resources(cpu=3.9), dict([POOL]), ("karpenter.sh/capacity-type", "spot"))
    wish = Wish({ON_DEMAND: 1, SPOT: 2}, Fleet({}, {}, {}))
    node_pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": {}}
    cluster.apply({**node_pool, "metadata": {"name": namespace.name}})

    requests = Provisioning(api)
    said = [requests.ask(pool, wish, now) for now in (1000.0, 1002.0)]
    limited = NodePool(api, namespace.name).ask(pool, wish, 1000.0)

    found = cluster.api.call("GET", api.path("ProvisioningRequest"))["items"]
    pods = namespace.objects("pods", "app.kubernetes.io/name=edl-placeholder")
    limits = cluster.api.call("GET", api.path("NodePool", namespace.name))["spec"]["limits"]
    assert sorted(each["spec"]["podSets"][0]["count"] for each in found) == [1, 2]
    assert "all or none" in said[0]
    assert "are asked for (edl-nodes-" in said[1]
    assert limited.startswith(f"the NodePool {namespace.name} is limited to 12 cores")
    assert (len(pods), limits) == (3, {"cpu": "12"})
