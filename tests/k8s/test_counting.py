"""The resources that a pod asks for, counted here and by a ResourceQuota of a real API server."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tools.kube_api import ApiError, path_of

from edl.k8s import names
from edl.k8s.counting import requested

PODS, ENOUGH = 60, 40  # that are drawn, and that must have been valid
DEVICE = "example.com/device"
OVERHEAD = {"cpu": "30m", "memory": "7Mi"}
COUNTED = ("cpu", "memory", "ephemeral-storage", DEVICE)


def container(draw: random.Random, name: str) -> dict[str, Any]:
    """Draw a container. A quota demands that each says cpu and memory, in requests or limits."""
    said: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for resource, unit, most in (("cpu", "m", 900), ("memory", "Mi", 500)):
        amount = draw.randint(1, most)
        where = draw.choice((("requests",), ("limits",), ("requests", "limits")))
        for part in where:
            said[part][resource] = f"{amount + (50 if part == 'limits' else 0)}{unit}"
    if draw.random() < 0.3:
        said["requests"]["ephemeral-storage"] = f"{draw.randint(1, 9)}Gi"
    if draw.random() < 0.3:
        said["limits"][DEVICE] = str(draw.randint(1, 4))
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": "edl:any", "resources": said, "securityContext": restricted}


def spec(draw: random.Random, runtime_class: str) -> dict[str, Any]:
    before = []
    for number in range(draw.randint(0, 4)):
        made = container(draw, f"before-{number}")
        if draw.random() < 0.5:
            made["restartPolicy"] = "Always"
        before.append(made)
    found: dict[str, Any] = {
        "nodeSelector": {"is": "nowhere"},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(draw, f"c{n}") for n in range(draw.randint(1, 3))],
        "initContainers": before,
    }
    if draw.random() < 0.4:
        asked = requested(found)
        cpu, memory = int(1000 * asked["cpu"]), int(asked["memory"])
        whole: dict[str, Any] = {
            "limits": {"cpu": f"{cpu + 9000}m", "memory": f"{memory + 10**10}"}
        }
        if draw.random() < 0.5:
            whole["requests"] = {"cpu": f"{cpu + draw.randint(0, 300)}m"}
        found["resources"] = whole
    if draw.random() < 0.3:
        found |= {"runtimeClassName": runtime_class, "overhead": OVERHEAD}
    return found


@pytest.fixture
def runtime_class(cluster, namespace):
    """Make a class of runtimes whose pods need something besides."""
    about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    cluster.apply(
        {**about, "metadata": {"name": namespace.name}, "handler": "runc"}
        | {"overhead": {"podFixed": OVERHEAD}}
    )
    yield namespace.name
    cluster.kubectl("delete", "runtimeclass", namespace.name)


def test_pods_are_counted_as_a_quota_counts_them(namespace, runtime_class):
    """Sidecars, containers before them, pods that say it as a whole, overhead.

    Broken once: a sidecar counts as any container before the others."""
    hard = {f"requests.{name}": "1e15" for name in COUNTED}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    namespace.apply({**quota, "spec": {"hard": hard}})
    namespace.wait("resourcequotas", lambda found: found["q"].get("status", {}).get("used"))

    def used() -> dict[str, float]:
        said = namespace.objects("resourcequotas")["q"]["status"]["used"]
        return {
            name: float(names.quantity(said.get(f"requests.{name}", "0"), name)) for name in COUNTED
        }

    draw, wrong, counted = random.Random(753), [], 0
    before = used()
    for number in range(PODS):
        drawn = spec(draw, runtime_class)
        body = {"apiVersion": "v1", "kind": "Pod", "spec": drawn}
        body["metadata"] = {"name": f"p{number}"}
        try:
            made = namespace.api.call("POST", path_of("pods", namespace.name), body)
        except ApiError as error:
            if error.code == 422:  # no such pod can be
                continue
            raise
        counted, after = counted + 1, used()
        theirs = {name: after[name] - before[name] for name in COUNTED}
        for each in (drawn, made["spec"]):
            ours = requested(each)
            if any(abs(ours.get(name, 0.0) - theirs[name]) > 1e-6 for name in COUNTED):
                wrong.append((ours, theirs, each))
        before = after

    assert wrong == []
    assert counted >= ENOUGH
