"""The pods of a job: templates for its roles by the settings, a replica's pod by a template.

Pure, plain dicts. Whoever submits makes the templates, once; the master puts in what makes a
replica that replica (name, index, incarnation, arguments, environment) and nothing else, so it
needs to know no more of Kubernetes than that. Tokens and keys reach a pod out of the job's Secret,
never through its spec.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from ..common import launched
from ..common.errors import UsageError
from ..common.identity import IDENTITY_VARIABLE, TOKEN_VARIABLE
from ..common.settings import JobSettings
from ..runtime.base import Replica
from . import layers, names
from .api import Object
from .names import CHECK, CONTAINER, GRPC_PORT, HEALTH_PORT, METRICS_PORT

JOB_DIR = "/var/lib/edl/job"
SETTINGS_DIR = "/etc/edl"
CHECKED_DIR = "/run/edl/checked"  # what the check of the definition leaves to the master
SECRETS = {TOKEN_VARIABLE: "token", IDENTITY_VARIABLE: "identity"}  # variable -> key of the Secret
ANY_USER = "any"  # of --pod_user
REPLICA_ACCOUNT = "edl-replica"  # of the manifests: it may do nothing

_MODULES = {"master": "edl.master", "ps": "edl.ps", "worker": "edl.worker"}
_MODULES |= {"teacher": "edl.distill"}
_OF_SCRIPT = "edl.launch"  # master and workers of a script's job: coordinator and node agents
_GRACE_BEYOND_DRAIN_S = 10
_SERVER_GRACE_S = 30
_MASTER_GRACE_S = 60  # it hands everything back and writes a checkpoint
_LOST_NODE_S = 10  # a node that does not answer for so long has lost its pods
_MOST_USER = 2**31 - 1  # as Kubernetes takes it
_USER = re.compile(r"[1-9][0-9]{0,9}")
_WORDS = {"high": "edl-high", "low": "edl-low"}
# Annotations by which the cluster autoscaler and Karpenter leave a pod, and so its node, alone.
STAYS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}


def templates(
    settings: JobSettings,
    overlays: Mapping[str, Any] | None = None,
) -> dict[str, Object]:
    """Make a complete pod template (metadata, spec) for each of TEMPLATES. Raises UsageError.

    `overlays` (of --cluster_spec) are merged over them: `pod` over all, then the one of the role.
    """
    overlays = overlays or {}
    if not settings.preemptible and is_fraction(settings.worker_pod_priority):
        raise UsageError(
            f"--preemptible false and --worker_pod_priority {settings.worker_pod_priority}: "
            "workers that are edl-low are there to be preempted: leave out one of them."
        )
    if settings.oom_memory_cap:  # else it would be looked at when a pod runs out
        names.quantity(settings.oom_memory_cap, "--oom_memory_cap")
    found = {}
    for role in names.TEMPLATES:
        component, _, pool = role.partition("_")
        template = _template(settings, component, pool)
        parts = ("pod", component, *([role] if pool else []))
        found[role] = layers.laid(template, overlays, parts)
    return found


def replica(
    template: Object,
    who: Replica,
    *,
    job: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    owner: Object | None,
    memory: str = "",
) -> Object:
    """Make the pod of one incarnation. `memory`: more than the template says, after it ran out."""
    pod = copy.deepcopy(template)
    about = pod.setdefault("metadata", {})
    about["name"] = names.pod_name(job, who.role, who.index, who.incarnation)
    about.setdefault("labels", {}).update(
        {names.INDEX_LABEL: str(who.index), names.INCARNATION_LABEL: who.incarnation}
    )
    if owner is not None:
        about["ownerReferences"] = [owner]
    container = container_of(pod)
    container["args"] = list(arguments)
    public = [{"name": k, "value": v} for k, v in env.items() if k not in SECRETS]
    known = {each["name"] for each in public}
    container["env"] = [e for e in container.get("env", []) if e["name"] not in known] + public
    if memory:
        give_memory(pod, memory)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def job_path(settings: JobSettings, component: str) -> str:
    """Return the folder of a job in its volume, as a component sees it: one serves many jobs.

    A script sees what is its own, and not the books of its coordinator.
    """
    apart = settings.command == launched.COMMAND and component == "worker"
    return names.object_name(settings.job_name) + ("/files" if apart else "")


def state_folder(settings: JobSettings) -> str:
    """Return the folder, in the pods, of what a script saves."""
    return settings.checkpoint_dir or f"{JOB_DIR}/checkpoints"


def worker_pool(priority: str, workers: int, index: int) -> str:
    """Return which template worker `index` is of: "worker", or one of the two pools of a fraction.

    The first ones are high, since scaling down takes the last ones.
    """
    if not is_fraction(priority):
        return "worker"
    return "worker_high" if index < math.ceil(workers * Decimal(priority)) else "worker_low"


def is_fraction(priority: str) -> bool:
    try:
        return 0 <= Decimal(priority) <= 1
    except InvalidOperation:
        return False


def container_of(pod: Object) -> dict[str, Any]:
    """Return the container that runs edl. Raises UsageError where there is none."""
    for each in pod["spec"]["containers"]:
        if each.get("name") == CONTAINER:
            found: dict[str, Any] = each
            return found
    raise UsageError(f"--cluster_spec: a container named {CONTAINER} is missing.")


def give_memory(pod: Object, memory: str) -> None:
    """Give the containers that run edl so much memory; the pod as a whole, where it says, the rest.

    Its other containers keep what they have.
    """
    spec = pod["spec"]
    mine = [each for each in spec.get("initContainers") or [] if each["name"] == CHECK]
    for part in ("requests", "limits"):
        before = names.quantity(str(_memory(container_of(pod), part) or "0"), "memory")
        whole = (spec.get("resources") or {}).get(part) or {}
        if "memory" in whole:  # a container may not have more than its pod
            more = names.quantity(memory, "memory") - before
            total = names.quantity(str(whole["memory"]), "memory") + more
            whole["memory"] = names.as_quantity(total)
    for container in (container_of(pod), *mine):
        for part in ("requests", "limits"):
            container.setdefault("resources", {}).setdefault(part, {})["memory"] = memory


def _memory(container: Object, part: str) -> Any:
    return ((container.get("resources") or {}).get(part) or {}).get("memory")


def security_context(user: str, said: str) -> Object:
    """Return what pods of this user run as: restricted. Raises UsageError.

    ANY_USER: no user and no group is named, so that the cluster's own come in, or the image's.
    """
    made: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if user == ANY_USER:
        return made
    if not (_USER.fullmatch(user) and int(user) <= _MOST_USER):
        raise UsageError(
            f"{said}: {user!r} is no user of pods: write a number from 1 to {_MOST_USER}, or "
            f"{ANY_USER}, by which the namespace chooses."
        )
    return {"runAsUser": int(user), "runAsGroup": int(user), "fsGroup": int(user), **made}


def priority_class(said: str) -> str:
    """Return the name of a class: high and low are ours."""
    return _WORDS.get(said, said)


def _template(settings: JobSettings, component: str, pool: str) -> Object:
    job = settings.job_name
    labels = names.labels(job, component)
    spec: dict[str, Any] = {
        "restartPolicy": settings.restart_policy if component == "master" else "Never",
        "terminationGracePeriodSeconds": _grace_s(settings, component),
        "automountServiceAccountToken": component == "master",
        "enableServiceLinks": False,
        "securityContext": security_context(settings.pod_user, "--pod_user"),
        "containers": [_container(settings, component)],
        "volumes": _volumes(settings, component),
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _LOST_NODE_S,
            }
            for key in ("not-ready", "unreachable")
        ],
    }
    if component == "master":
        spec["serviceAccountName"] = settings.service_account
    else:
        spec["serviceAccountName"] = REPLICA_ACCOUNT
        # apart from each other, so that a node takes few of them along
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    if priority := _priority(settings, component, pool):
        spec["priorityClassName"] = priority
    if settings.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
        "prometheus.io/path": "/metrics",
    }
    if settings.command == launched.COMMAND:
        annotations = {}  # what it measures is the script's own
    if not settings.preemptible:
        annotations |= STAYS
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _container(settings: JobSettings, component: str) -> dict[str, Any]:
    job = settings.job_name
    env: list[dict[str, Any]] = [
        {"name": "EDL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "EDL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "EDL_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "EDL_HEALTH_PORT", "value": str(HEALTH_PORT)},
        {"name": "EDL_METRICS_PORT", "value": str(METRICS_PORT)},
        {"name": "EDL_JOB_DIR", "value": JOB_DIR},
        {"name": "HOME", "value": "/tmp"},  # numba and torch keep caches there
        {"name": "PYTHONUNBUFFERED", "value": "1"},  # what a script prints is in its log at once
    ]
    if component == "ps":
        # The next incarnation has its kernels at once: compiling takes a server half a minute.
        env.append({"name": "EDL_KERNEL_CACHE", "value": f"{JOB_DIR}/kernels"})
    for variable, key in SECRETS.items():
        reference = {"name": names.object_name(job), "key": key}
        env.append({"name": variable, "valueFrom": {"secretKeyRef": reference}})
    ports = [
        {"name": "health", "containerPort": HEALTH_PORT},
        {"name": "metrics", "containerPort": METRICS_PORT},
    ]
    probe = {"grpc": {"port": HEALTH_PORT}}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image_name,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", _module(settings, component)],
        "env": env,
        "resources": _resources(settings, component),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        # It listens as soon as it serves; a server that restores a large shard may take minutes.
        "startupProbe": {
            **probe,
            "periodSeconds": 2,
            "failureThreshold": 150,
        },
        "livenessProbe": {
            **probe,
            "periodSeconds": 20,
            "failureThreshold": 6,
        },
        "volumeMounts": _mounts(settings, component),
    }
    if component == "master":
        container["args"] = ["--job-dir", JOB_DIR, "--settings", SETTINGS_DIR]
        # what it said last, for whoever tells of its end (observe.last_words)
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"
        ports.append({"name": "grpc", "containerPort": GRPC_PORT})
    container["ports"] = ports
    return container


def _module(settings: JobSettings, component: str) -> str:
    return _OF_SCRIPT if settings.command == launched.COMMAND else _MODULES[component]


def _resources(settings: JobSettings, component: str) -> dict[str, Any]:
    """Return the requests and the limits of a component's container.

    Limits are what is said, else the memory and the devices asked for: CPU is never throttled
    unless somebody wants it, and who takes more memory than it said is the one that is killed.
    """
    flag = f"{component}_resource_request"
    requests = names.resources(getattr(settings, flag), f"--{flag}")
    flag = f"{component}_resource_limit"
    if said := getattr(settings, flag):
        limits = names.resources(said, f"--{flag}")
    else:
        limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    for name in requests.keys() & limits.keys():
        if _number(limits[name]) < _number(requests[name]):
            raise UsageError(f"--{flag}: {name}={limits[name]} is below what is asked for.")
    return {"requests": requests, "limits": limits}


def _number(amount: str) -> Decimal:
    return names.quantity(amount, "resource")


def _has_job_volume(settings: JobSettings, component: str) -> bool:
    """Tell whether a component writes to the job's volume: snapshots, or the master's journal."""
    writers = {"ps": ("ps",), "allreduce": ("worker",), "hybrid": ("ps", "worker")}
    if settings.command == launched.COMMAND:
        return component in ("master", "worker")
    return component in ("master", *writers[settings.strategy])


def _volumes(settings: JobSettings, component: str) -> list[dict[str, Any]]:
    found, _ = names.volumes(settings.volume, "--volume")
    found.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if _has_job_volume(settings, component):
        source: dict[str, Any] = {"emptyDir": {}}
        if settings.job_volume:
            source = names.volume(settings.job_volume, "--job_volume")
        found.append({"name": "job", **source})
    else:
        found.append({"name": "scratch", "emptyDir": {}})
    if component == "master":
        name = names.object_name(settings.job_name)
        found.append({"name": "settings", "configMap": {"name": name}})
    return found


def _mounts(settings: JobSettings, component: str) -> list[dict[str, Any]]:
    _, found = names.volumes(settings.volume, "--volume")
    found.append({"name": "shm", "mountPath": "/dev/shm"})
    if _has_job_volume(settings, component):
        mount: dict[str, Any] = {"name": "job", "mountPath": JOB_DIR}
        if settings.job_volume:
            mount["subPath"] = job_path(settings, component)
        found.append(mount)
    else:  # what it derives of the data: its user may make no folder in an image's root
        found.append({"name": "scratch", "mountPath": JOB_DIR})
    if component == "master":
        found.append({"name": "settings", "mountPath": SETTINGS_DIR, "readOnly": True})
    return found


def _priority(settings: JobSettings, component: str, pool: str) -> str:
    if pool:
        return priority_class(pool)
    said = str(getattr(settings, f"{component}_pod_priority"))
    return "" if component == "worker" and is_fraction(said) else priority_class(said)


def _grace_s(settings: JobSettings, component: str) -> int:
    if component == "worker":
        drain_s = settings.drain_grace_s
        if isinstance(settings, launched.LaunchedSettings):
            drain_s = settings.seconds("stop_timeout")
        return math.ceil(drain_s) + _GRACE_BEYOND_DRAIN_S
    if component == "master":
        return _MASTER_GRACE_S + math.ceil(settings.drain_grace_s)
    return _SERVER_GRACE_S
