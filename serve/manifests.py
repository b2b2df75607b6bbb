"""`edl serve --yaml`: a Deployment of servers, and the Service by which they are asked. Pure.

A pod is ready once all of its models are whole, and not any more from its SIGTERM on; it answers on
while those who share out requests learn of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..common.errors import UsageError
from ..k8s import names
from ..k8s.api import Object

HTTP_PORT, GRPC_PORT = 8000, 8001
LINGER_S = 5  # for endpoints to be forgotten by those who share out requests
_END_S = 60  # linger, requests under way, and some
_SECRETS = "/etc/edl-serve"
_USER = 1000  # the image's
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?")


@dataclass(frozen=True)
class Wanted:
    """What is to run.

    `arguments`: of `edl serve`, models and flags. `secret`: a Secret with the files token, tls.crt
    and tls.key, by which servers are asked; "": by anybody. `volume`: as --volume of a job.
    """

    name: str
    image: str
    arguments: Sequence[str]
    replicas: int = 1
    request: str = "cpu=1,memory=2048Mi"
    limit: str = ""
    volume: str = ""
    secret: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r} can be no name in a cluster: use small letters, digits and "
                "'-', at most 48."
            )


def check_place(where: str) -> None:
    """Check that a model's place can be one in pods. Raises UsageError."""
    if not where.startswith("/") and "://" not in where:
        raise UsageError(
            f"{where!r} is of this machine: with --yaml name a path in the pods (below a --volume) "
            "or a URL."
        )


def as_yaml(wanted: Wanted) -> str:
    """Return the objects for kubectl."""
    import yaml

    return str(yaml.safe_dump_all(objects(wanted), sort_keys=False))


def objects(wanted: Wanted) -> list[Object]:
    """Return the Deployment and the Service. Raises UsageError."""
    labels = {"app.kubernetes.io/name": "edl-serve", "app.kubernetes.io/instance": wanted.name}
    meta: dict[str, Any] = {"name": wanted.name, "labels": labels}
    if wanted.namespace:
        meta["namespace"] = wanted.namespace
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": labels},
            # None goes before the next one is ready.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": _template(wanted, labels),
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": dict(meta),
        "spec": {
            "selector": labels,
            "ports": [
                {"name": "http", "port": HTTP_PORT, "targetPort": "http"},
                {"name": "grpc", "port": GRPC_PORT, "targetPort": "grpc"},
            ],
        },
    }
    return [deployment, service]


def _template(wanted: Wanted, labels: dict[str, str]) -> Object:
    sources, mounts = names.volumes(wanted.volume, "--volume")
    if wanted.secret:
        sources.append({"name": "secret", "secret": {"secretName": wanted.secret}})
        mounts.append({"name": "secret", "mountPath": _SECRETS, "readOnly": True})
    request = names.resources(wanted.request, "--resource_request")
    limit = names.resources(wanted.limit, "--resource_limit")
    if not limit and "memory" in request:
        limit = {"memory": request["memory"]}
    spec = {
        "terminationGracePeriodSeconds": _END_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "serve",
                "image": wanted.image,
                "command": ["python", "-m", "edl", "serve"],
                "args": _arguments(wanted),
                "env": [
                    {"name": "EDL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "HOME", "value": "/tmp"},
                ],
                "ports": [
                    {"name": "http", "containerPort": HTTP_PORT},
                    {"name": "grpc", "containerPort": GRPC_PORT},
                ],
                "resources": {"requests": request, "limits": limit},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "readinessProbe": {**_probe(wanted, "ready"), "periodSeconds": 2},
                # It listens before its models are there; a large one may take minutes.
                "livenessProbe": {**_probe(wanted, "live"), "periodSeconds": 10},
                "startupProbe": {
                    **_probe(wanted, "live"),
                    "periodSeconds": 2,
                    "failureThreshold": 150,
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": sources,
    }
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HTTP_PORT),
        "prometheus.io/path": "/metrics",
        "prometheus.io/scheme": "https" if wanted.secret else "http",
    }
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _arguments(wanted: Wanted) -> list[str]:
    found = [*wanted.arguments, "--http_port", str(HTTP_PORT), "--grpc_port", str(GRPC_PORT)]
    found += ["--linger_s", str(LINGER_S), "--log_format", "json"]
    if not wanted.secret:
        return [*found, "--plain"]
    files = {"token_file": "token", "tls_cert": "tls.crt", "tls_key": "tls.key"}
    for flag, file in files.items():
        found += [f"--{flag}", f"{_SECRETS}/{file}"]
    return found


def _probe(wanted: Wanted, what: str) -> dict[str, Any]:
    scheme = "HTTPS" if wanted.secret else "HTTP"
    return {"httpGet": {"path": f"/v2/health/{what}", "port": "http", "scheme": scheme}}
