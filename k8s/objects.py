"""Objects of a job besides its pods: Secret, ConfigMaps, Service, Job, budget, network policy.

Pure, plain dicts. `wanted.json` in the job's ConfigMap says what the user wants now (workers,
stop); the master watches it, since nothing outside the cluster can call a pod. What the master
says, its status, is a ConfigMap of its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
from collections.abc import Sequence
from typing import Any

from ..common.identity import Identity
from ..common.plain import inert_lines
from ..common.settings import JobSettings
from . import names
from .api import Object
from .names import FILES_PORT, METRICS_PORT, SERVICE_PORT

SETTINGS, TEMPLATES, WANTED, STATUS = (
    "settings.json",
    "templates.json",
    "wanted.json",
    "status.json",
)
DEFINITION = "/definition/definition.py"  # in the pods
_LONGEST_EVENT = 1000  # characters; an API server takes 1,024
_TRIES = 1_000_000  # of the master's pod: what ends a job is its master's word, not a count


def secret(job: str, identity: Identity) -> Object:
    data = {"token": identity.token, "identity": identity.to_variable()}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return _object("v1", "Secret", job, names.object_name(job), {"type": "Opaque", "data": encoded})


def config(settings: JobSettings, templates: dict[str, Object]) -> Object:
    data = {
        SETTINGS: settings.to_json(),
        TEMPLATES: json.dumps(templates),
        WANTED: json.dumps(wanted(settings)),
    }
    job = settings.job_name
    made = _object("v1", "ConfigMap", job, names.object_name(job), {"data": data})
    made["metadata"]["labels"][names.CONFIG_LABEL] = "wanted"
    return made


def wanted(
    settings: JobSettings, stop: str = "", checkpoints: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the user's wish for a job that runs: so many replicas, or its end (and why).

    `num_ps` 0: as many servers as there are. `checkpoints`: the ids of questions for one.
    """
    return {
        "num_workers": settings.num_workers,
        "stop": stop,
        "num_ps": servers_wanted(settings),
        "num_teachers": settings.num_teachers,
        "max_teachers": settings.max_teachers,
        "checkpoints": list(checkpoints),
    }


def servers_wanted(settings: JobSettings) -> int:
    """Return the servers of a job that can go on with others; 0 for every other job."""
    changes = settings.command == "train" and settings.strategy == "ps"
    return settings.num_ps if changes else 0


def status(job: str, text: str) -> Object:
    name = names.object_name(job, "status")
    return _object("v1", "ConfigMap", job, name, {"data": {STATUS: text}})


def definition(job: str, text: str) -> Object:
    """Make the ConfigMap of a definition that was typed, which pods see as DEFINITION."""
    name = names.object_name(job, "definition")
    return _object("v1", "ConfigMap", job, name, {"data": {posixpath.basename(DEFINITION): text}})


def definition_volume(job: str) -> str:
    """Return what --volume says of it."""
    name, folder = names.object_name(job, "definition"), posixpath.dirname(DEFINITION)
    return f"config_map={name},mount_path={folder}"


def service(job: str) -> Object:
    """Return the Service by which workers and servers find the master, whichever pod it is."""
    spec = {
        "selector": {names.JOB_LABEL: job, names.ROLE_LABEL: "master"},
        "ports": [{"name": "grpc", "port": SERVICE_PORT, "targetPort": "grpc"}],
        "publishNotReadyAddresses": True,  # a worker may ask before the probe has
    }
    return _object("v1", "Service", job, names.object_name(job), {"spec": spec})


def address(job: str, namespace: str) -> str:
    """Return where the Service answers."""
    return f"{names.object_name(job)}.{namespace}.svc:{SERVICE_PORT}"


def master_job(job: str, template: Object) -> Object:
    """Make the Job that keeps a master running, and owns all else."""
    spec = {"backoffLimit": _TRIES, "parallelism": 1, "completions": 1, "template": template}
    return _object("batch/v1", "Job", job, names.object_name(job), {"spec": spec})


def disruption_budget(job: str, servers: int) -> Object:
    """Let one server at a time be drained: each takes its snapshot along.

    Not as `maxUnavailable`: that counts by the scale of the pods' controller, which is the
    workers'.
    """
    spec = {
        "minAvailable": servers - 1,
        "selector": {"matchLabels": {names.JOB_LABEL: job, names.ROLE_LABEL: "ps"}},
    }
    name = names.object_name(job, "ps")
    return _object("policy/v1", "PodDisruptionBudget", job, name, {"spec": spec})


def network_policy(job: str) -> Object:
    """Let a job's pods be reached by those of the same job alone; their metrics by everybody.

    And the helper pods that send files, who answer to a secret.
    """
    mine = {"matchLabels": {names.JOB_LABEL: job}}
    spec = {
        "podSelector": mine,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": mine}]},
            {"ports": [{"port": at, "protocol": "TCP"} for at in (METRICS_PORT, FILES_PORT)]},
        ],
    }
    name = names.object_name(job)
    return _object("networking.k8s.io/v1", "NetworkPolicy", job, name, {"spec": spec})


def event(
    about: tuple[str, str, str, str], reason: str, message: str, well: bool, time: str
) -> Object:
    """Make an Event of an object (kind, name, namespace, uid); the same news has the same name."""
    kind, name, namespace, uid = about
    digest = hashlib.sha256(f"{uid}{reason}{message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{digest}"},
        "involvedObject": {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": kind,
            "name": name,
            "namespace": namespace,
            "uid": uid,
        },
        "type": "Normal" if well else "Warning",
        "reason": reason,
        "message": inert_lines(message)[:_LONGEST_EVENT],
        "source": {"component": "edl-controller"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def owner_reference(owner: Object) -> Object:
    """Make a reference to an object as the API server gave it back."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def _object(version: str, kind: str, job: str, name: str, rest: dict[str, Any]) -> Object:
    about = {"name": name, "labels": names.labels(job)}
    return {"apiVersion": version, "kind": kind, "metadata": about, **rest}
