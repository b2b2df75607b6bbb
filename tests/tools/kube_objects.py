"""Objects of a test's cluster: pods and services to make, and what a status says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.kube_api import Object

IMAGE = "edl:test"  # of every process node: this environment and checkout


def make_pod(name: str, *command: str, cpu: str = "100m", **spec: Any) -> Object:
    """Return a pod of one container of the nodes' image, restricted, never started again."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": list(command),
        "resources": {"requests": {"cpu": cpu}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            **spec,
        },
    }


def volumes(folder: Path) -> Object:
    """Return the volumes of an EdlJob: claims `job` and `data`, the latter at its own path."""

    def claim(name: str) -> Object:
        return {"persistentVolumeClaim": {"claimName": name}}

    return {
        "jobVolume": claim("job"),
        "volumes": [{"name": "data", **claim("data")}],
        "volumeMounts": [{"name": "data", "mountPath": str(folder)}],
    }


def make_deployment(name: str, replicas: int, *command: str, **pod_spec: Any) -> Object:
    """Return a service: so many of `make_pod`, which are always started again."""
    made = make_pod(name, *command, **{"restartPolicy": "Always", **pod_spec})
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": made["spec"]},
        },
    }


def phase(found: Object) -> str:
    told: str = found.get("status", {}).get("phase", "")
    return told


def condition(found: Object, kind: str) -> str:
    """Return a condition's "True", "False" or "Unknown"; "" where it is not told."""
    conditions = found.get("status", {}).get("conditions") or []
    return next((c["status"] for c in conditions if c["type"] == kind), "")


def is_usable(node: Object) -> bool:
    """Tell whether pods are put on this node."""
    return condition(node, "Ready") == "True" and not node["spec"].get("taints")


def any_started(pods: Mapping[str, Object]) -> bool:
    """Tell whether a container of these pods runs, or has run."""
    return any(
        {"running", "terminated"} & set(status.get("state", {}))
        for pod in pods.values()
        for status in pod.get("status", {}).get("containerStatuses") or []
    )


def summary(found: Object) -> str:
    """Return what an object's status says, in a line: its phase, what it waits for, its states."""
    status = found.get("status", {})
    waits = [c.get("message", "") for c in status.get("conditions") or [] if c["status"] != "True"]
    states = [json.dumps(c["state"]) for c in status.get("containerStatuses") or []]
    deleting = ["deleting"] if found["metadata"].get("deletionTimestamp") else []
    return " ".join(part for part in (status.get("phase", ""), *deleting, *waits, *states) if part)
