"""The others in a cluster while a test runs `edl`: the job's master, the scheduler, kubelets.

All is of the job demo, on the server of apiserver.py.
"""

from __future__ import annotations

import json
from typing import Any

from edl.k8s import names, objects
from tools.apiserver import ApiServer

FLAGS = (
    "--job_name=demo",
    "--model_def=iris",
    "--training_data=/data/train.csv",
    "--image_name=edl:1",
)
NOW = "2026-01-01T00:00:00Z"


def add_pod(server: ApiServer, role: str, index: int = 0, **status: Any) -> str:
    name = f"edl-demo-{role}-{index}-abc"
    labels = {**names.labels("demo", role), names.INDEX_LABEL: str(index)}
    container = {"name": "edl", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    server.add(
        "pods",
        name,
        metadata={"labels": labels, "creationTimestamp": NOW},
        spec={"containers": [container], "nodeName": "node-1"},
        status={"phase": "Running", **status},
    )
    return name


def say(server: ApiServer, status: dict[str, Any]) -> None:
    """Tell the job's status as the master does."""
    body = objects.status("demo", json.dumps(status))
    server.add("configmaps", "edl-demo-status", **body)


def waiting(message: str = "0/4 nodes are available: 4 Insufficient cpu.") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def wanted(server: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        server.objects["configmaps", "edl-demo"]["data"]["wanted.json"]
    )
    return found


def the_job(server: ApiServer) -> dict[str, Any]:
    return server.objects["jobs", "edl-demo"]
