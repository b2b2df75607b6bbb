"""`edl serve --yaml`: a Deployment of servers, the Service that asks them, their number. Pure.

A pod is ready once all of its models are whole, and not any more from its SIGTERM on; it answers on
while those who share out requests learn of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.cluster_settings import POD_USER
from ..common.errors import UsageError
from ..common.values import bounds
from ..k8s import names, pods
from ..k8s.api import Object
from ..k8s.outside.cluster_spec import Spec

HTTP_PORT, GRPC_PORT = 8000, 8001
LINGER_S = 5  # for endpoints to be forgotten by those who share out requests
_END_S = 60  # linger, requests under way, and some
_SECRETS = "/etc/edl-serve"
_CONTAINER = "serve"
_MOST = 10_000  # pods, as of a job's workers
_MOST_PERCENT = 1000
_DRAINED = 1  # at a time
_TARGET_CPU = 80  # %, as Kubernetes' own default
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,46}[a-z0-9])?")


@dataclass(frozen=True)
class Wanted:
    """What is to run.

    `arguments`: of `edl serve`, models and flags. `secret`: a Secret with the files token, tls.crt
    and tls.key, by which servers are asked; "": by anybody. `volume`: as --volume of a job.
    `replicas`: so many pods, or MIN:MAX by their use of CPU, which is to be `target_cpu` % of what
    they ask for. At most `max_unavailable` are drained at a time. 0: the usual of both.
    """

    name: str
    image: str
    arguments: Sequence[str]
    replicas: str = "1"
    target_cpu: int = 0
    max_unavailable: int = 0
    request: str = "cpu=1,memory=2048Mi"
    limit: str = ""
    volume: str = ""
    secret: str = ""
    namespace: str = ""
    pod_user: str = POD_USER
    spec: Spec = field(default_factory=Spec)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r} can be no name in a cluster: use small letters, digits and "
                "'-', at most 48."
            )
        least, most = self.bounds
        if not 1 <= least <= most <= _MOST:
            raise UsageError(f"--replicas {self.replicas}: there are 1 to {_MOST} pods.")
        for flag, found, high in (
            ("target_cpu", self.target_cpu or _TARGET_CPU, _MOST_PERCENT),
            ("max_unavailable", self.max_unavailable or _DRAINED, _MOST),
        ):
            if not 1 <= found <= high:
                raise UsageError(f"--{flag} {found}: give a number from 1 to {high}.")
        if self.target_cpu and least == most:
            raise UsageError(
                f"--target_cpu is of pods of which there are more by need: say --replicas {least}:"
                f"{min(least * 2, _MOST)}, for example, or leave it out."
            )
        if self.max_unavailable and most == 1:
            raise UsageError(
                "--max_unavailable is of several pods: say --replicas 2, or leave it out."
            )
        cpu = names.resources(self.request, "--resource_request").get("cpu", "0")
        if least < most and not names.quantity(cpu, "--resource_request"):
            raise UsageError(
                f"--replicas {self.replicas}: how many are needed is told by the CPU that a pod "
                "asks for: give some in --resource_request, cpu=1 for example."
            )

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the least and the most pods. Raises UsageError."""
        return bounds(self.replicas, "--replicas")


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
    """Return the Deployment, the Service, and what there is besides. Raises UsageError.

    A budget for drains where there are several pods; an autoscaler where they are by need.
    """
    least, most = wanted.bounds
    labels = {"app.kubernetes.io/name": "edl-serve", "app.kubernetes.io/instance": wanted.name}
    meta: dict[str, Any] = {"name": wanted.name, "labels": labels}
    if wanted.namespace:
        meta["namespace"] = wanted.namespace
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            # Else what is applied again would take back what the autoscaler has done.
            **({"replicas": least} if least == most else {}),
            "selector": {"matchLabels": labels},
            # None goes before the next one is ready.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": _with_spec(_template(wanted, labels), wanted.spec),
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
    found = [deployment, wanted.spec.service(service)]
    if most > 1:
        found.append(_budget(wanted, meta, labels))
    if least < most:
        found.append(_autoscaler(wanted, meta))
    return found


def _budget(wanted: Wanted, meta: Object, labels: dict[str, str]) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": dict(meta),
        "spec": {
            "maxUnavailable": wanted.max_unavailable or _DRAINED,
            "selector": {"matchLabels": labels},
            # One that is not ready serves nobody: a drain need not wait for it.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _autoscaler(wanted: Wanted, meta: Object) -> Object:
    least, most = wanted.bounds
    target = {"type": "Utilization", "averageUtilization": wanted.target_cpu or _TARGET_CPU}
    # Of the server alone, whatever a webhook has put beside it.
    source = {"name": "cpu", "container": _CONTAINER, "target": target}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": dict(meta),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": wanted.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "ContainerResource", "containerResource": source}],
        },
    }


def _with_spec(template: Object, spec: Spec) -> Object:
    """Return the pods' template by --cluster_spec, which keeps what they are found and asked by."""
    made = spec.pod(template, ("pod", "serve"))
    (own,) = template["spec"]["containers"]
    there = next((e for e in made["spec"]["containers"] if e.get("name") == _CONTAINER), None)
    if there is None:
        raise UsageError(f"--cluster_spec: a container named {_CONTAINER} is missing.")
    for each in ("command", "args", "ports", "readinessProbe", "livenessProbe", "startupProbe"):
        if there.get(each) != own[each]:
            raise UsageError(
                f"--cluster_spec: {each} of the container {_CONTAINER} is edl's own: leave it out."
            )
    labels = template["metadata"]["labels"]
    if not labels.items() <= ((made.get("metadata") or {}).get("labels") or {}).items():
        raise UsageError(
            f"--cluster_spec: the pods are found by the labels {', '.join(labels)}: leave them."
        )
    return made


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
        "securityContext": pods.security_context(wanted.pod_user, "--pod_user"),
        "containers": [
            {
                "name": _CONTAINER,
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
