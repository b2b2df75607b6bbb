"""EdlJobs, nodes and pods of a cluster with a scheduler, as an API server would give them."""

from __future__ import annotations

from typing import Any

from edl.k8s import names

Object = dict[str, Any]

NOW = 1_800_000_000.0
THEN, LATER = "2027-01-15T07:59:00Z", "2027-01-15T07:59:30Z"  # 60 s and 30 s before NOW
RUNS = {"phase": "Running", "startTime": THEN}


def edljob(
    name: str = "a", status: Object | None = None, annotations: Object | None = None, **spec: Any
) -> Object:
    """Return an EdlJob that is the scheduler's, and runs unless `status` says otherwise."""
    made: Object = {
        "image": "edl:1",
        "settings": {"model_def": "iris", "training_data": "/data"},
        "jobVolume": {"persistentVolumeClaim": {"claimName": "jobs"}},
        "ps": {"replicas": 2},
        "worker": {"replicas": 3, "minReplicas": 1, "maxReplicas": 8},
        "scheduling": {},
        **spec,
    }
    about: Object = {"name": name, "namespace": "n", "uid": f"uid-{name}", "generation": 1}
    about |= {"resourceVersion": "7", "creationTimestamp": THEN, "annotations": annotations or {}}
    return {"metadata": about, "spec": made, "status": RUNS if status is None else status}


def node(name: str = "n1", cpu: str = "8") -> Object:
    """Return a node that takes pods."""
    return {
        "metadata": {"name": name},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "64Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(role: str, on: str = "n1", job: str = "a", index: int = 0, **status: Any) -> Object:
    """Return a pod of a job; `on`: its node, "" before it has one."""
    about: Object = {
        "namespace": "n",
        "labels": {**names.labels(job, role), names.INDEX_LABEL: str(index)},
        "creationTimestamp": THEN,
    }
    spec: Object = {"containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}
    if on:
        spec["nodeName"] = on
    return {"metadata": about, "spec": spec, "status": {"phase": "Running", **status}}
