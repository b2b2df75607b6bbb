"""EdlJobs and pods for tests, as an API server would give them."""

from __future__ import annotations

import copy
from typing import Any

from edl.k8s import names

Object = dict[str, Any]

SPEC: Object = {
    "image": "edl:1",
    "imagePullPolicy": "IfNotPresent",
    "command": "train",
    "suspend": False,
    "settings": {"model_def": "iris", "training_data": "/data/iris.csv"},
    "jobVolume": {"persistentVolumeClaim": {"claimName": "jobs"}},
    "master": {},
    "ps": {"replicas": 2},
    "worker": {"replicas": 4, "minReplicas": 1},
}


def edljob(name: str = "demo", uid: str = "uid-1", **spec: Any) -> Object:
    """Return an EdlJob; what is None is left out of the spec."""
    merged = {k: v for k, v in {**copy.deepcopy(SPEC), **spec}.items() if v is not None}
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {
            "name": name,
            "uid": uid,
            "generation": 1,
            "resourceVersion": "7",
            "namespace": "default",
        },
        "spec": merged,
    }


def pod(job: Object, role: str, index: int = 0, phase: str = "Running", **about: Any) -> Object:
    """Return a pod of the job, as its master (or the controller) would have made it."""
    name = job["metadata"]["name"]
    owner = {"kind": names.KIND, "name": name, "uid": job["metadata"]["uid"]}
    return {
        "metadata": {
            "name": f"edl-{name}-{role}-{index}",
            "uid": f"{role}-{index}",
            "labels": {**names.labels(name, role), names.INDEX_LABEL: str(index)},
            "ownerReferences": [owner],
            **about,
        },
        "status": {"phase": phase},
    }


def ended(code: int, reason: str = "Error") -> list[Object]:
    """Return the containerStatuses of a pod that ended so."""
    return [{"name": "edl", "state": {"terminated": {"exitCode": code, "reason": reason}}}]


def told(state: str = "running", **more: Any) -> Object:
    """Return the status that a master tells."""
    row = {"incarnation": "a", "heartbeat_age_s": 0.1}
    return {
        "job_name": "demo",
        "state": state,
        "exit_code": None,
        "message": "",
        "records_done": 275,
        "records_total": 1000,
        "epoch": 2,
        "workers": [{**row, "index": i, "state": "training"} for i in range(4)],
        "servers": [{**row, "index": i, "state": "serving"} for i in range(2)],
        "restarts": {
            "worker": 1,
            "server": 2,
            "preemptions": 9,
            "server_preemptions": 0,
            "master": 1,
        },
        "checkpoint": None,
        **more,
    }
