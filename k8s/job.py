"""The settings and the pod templates that an EdlJob asks for, out of its spec. Pure.

The fields of the spec that have a flag become that flag's setting, and all settings go through
`resolve` as those of the command line do, so that a job means the same and a bad one gets one
sentence. What has no flag (priority classes, node selectors, podTemplate, volumes) is laid over the
templates that these settings give (pods.py).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..common import launched
from ..common.errors import UsageError
from ..common.resolve import resolve
from ..common.settings import JobSettings, knobs, spellings
from . import allowed, layers, names, objects, pods, rules, shapes
from .allowed import USUAL, Installed
from .api import Object
from .confined import confined

# Settings that are said elsewhere in an EdlJob, and where.
_ELSEWHERE = {
    "job_name": "metadata.name",
    "namespace": "metadata.namespace",
    "runtime": "an EdlJob is one of Kubernetes",
    "port": "it is fixed in a pod",
    "restart_policy": "the controller starts the master again",
    "num_workers": "spec.worker.replicas",
    "min_workers": "spec.worker.minReplicas",
    "num_ps": "spec.ps.replicas",
    "num_teachers": "spec.teacher.replicas",
    "max_teachers": "spec.teacher.maxReplicas",
    "nodes": "spec.worker.minReplicas and maxReplicas",
    "envs": "spec.envs",
    "image_name": "spec.image",
    "image_pull_policy": "spec.imagePullPolicy",
    "image_pull_secret": "spec.imagePullSecrets",
    "worker_pod_priority": "spec.worker.highFraction or spec.worker.priorityClassName",
    "ps_pod_priority": "spec.ps.priorityClassName",
    "preemptible": "spec.preemptible",
    "teacher_pod_priority": "spec.teacher.priorityClassName",
    "master_pod_priority": "spec.master.priorityClassName",
    "volume": "spec.volumes and spec.volumeMounts",
    "job_volume": "spec.jobVolume",
    "cluster_spec": "podTemplate of spec.master, spec.ps, spec.worker and spec.teacher",
    "pod_user": "whoever installed the controller says it (podUser of the chart)",
}
_ELSEWHERE |= {
    f"{role}_resource_{part}": f"spec.{role}.resources"
    for role in names.ROLES
    for part in ("request", "limit")
}
# What of a job that has begun may change all the same: how it runs, not what it computes.
_FREE = {knob.name for knob in knobs() if knob.group in ("Cluster", "Watching")}
_FREE |= {"num_workers", "envs", "nodes"}
_TEACHERS = {"num_teachers", "max_teachers"}  # a job that has some knows by these that it has
_FLAG = re.compile(r"--(\w+)")
_OURS = ("edl.dev/", "app.kubernetes.io/")  # labels that no podTemplate changes
_OWN_CLIENTS = {names.CONTROLLER, names.SCHEDULER}  # managers of fields that are no user's


@dataclass(frozen=True)
class Wanted:
    """The settings and templates that a spec asks for."""

    settings: JobSettings
    templates: dict[str, Object]


def wanted(job: Object, installed: Installed = USUAL) -> Wanted:
    """Return the settings and the templates that an EdlJob asks for.

    Raises UsageError, which says what is wrong with the spec, where, and what would be right;
    NotAllowed (one of them) where it asks for more than its author may have.
    """
    job = said(job)
    spec = job["spec"]
    rules.check_name(job["metadata"]["name"])
    _check_shape(spec)
    settings = dataclasses.replace(
        _settings(job), port=names.GRPC_PORT, pod_user=installed.pod_user
    )
    try:
        allows = installed.of(job["metadata"].get("namespace", ""))
        usual, job_name = JobSettings().service_account, settings.job_name
        allowed.check(spec, settings.service_account, usual, allows, job_name)
        made = pods.templates(settings, _overlays(spec))
        for template in made.values():
            pods.container_of(template)
        allowed.check_pods(made, pods.templates(settings), allows, job_name)
        if source := spec.get("jobVolume"):
            for role, template in made.items():
                path = pods.job_path(settings, role.partition("_")[0])
                _put_job_volume(template, source, path)
        check_state(settings, made, "spec.jobVolume")
        image, policy = installed.image, installed.pull_policy
        if not image:
            image, policy = settings.image_name, settings.image_pull_policy
        uid = job["metadata"].get("uid", "")
        made["master"] = confined(made, uid, image, policy, installed.pull_secrets)
    except allowed.NotAllowed:
        raise
    except UsageError as error:
        raise UsageError(
            _FLAG.sub(lambda flag: _ELSEWHERE.get(flag[1], flag[0]), str(error))
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(  # a part that shapes.py does not know
            "spec: a podTemplate, volume or mount is not made as a pod's is: compare it with "
            "`kubectl explain pod.spec`."
        ) from error
    return Wanted(settings, made)


def templates(job: Object) -> dict[str, Object]:
    """Return the templates by roles that an EdlJob asks for, allowed or not. Raises UsageError."""
    job = said(job)
    _check_shape(job["spec"])
    return pods.templates(_settings(job), _overlays(job["spec"]))


def said(job: Object) -> Object:
    """Return an EdlJob whose spec is without the fields that are null (layers.said).

    Settings stay as they are: null is a value of some.
    """
    spec = job["spec"]
    kept = {"settings": spec["settings"]} if isinstance(spec, dict) and "settings" in spec else {}
    return {**job, "spec": {**layers.said(spec), **kept} if isinstance(spec, dict) else spec}


def durable(spec: Object) -> bool:
    """Return whether the job's folder, with its journal, outlives the pods."""
    source = spec.get("jobVolume") or {}
    return bool(source) and "emptyDir" not in source


def preemptible(spec: Object) -> bool:
    """Return whether what a job has may be taken from it for others."""
    return spec.get("preemptible") is not False


def workers(spec: Object) -> int:
    """Return how many workers are wanted."""
    said = spec.get("worker") or {}
    replicas = int(said.get("replicas", 2))
    if "scheduling" in spec:  # who gives it its minimum, or nothing
        replicas = max(replicas, int(said.get("minReplicas", 1)))
    return min(replicas, int(said.get("maxReplicas", replicas)))


def teachers(spec: Object) -> tuple[int, int]:
    """Return how many teachers are wanted: so many, or from so many to so many by need (else 0)."""
    said = spec.get("teacher") or {}
    return int(said.get("replicas", 0)), int(said.get("maxReplicas", 0))


def has_servers(spec: Object) -> bool:
    """Return whether an EdlJob has parameter servers."""
    settings: Object = spec.get("settings") or {}
    return spec.get("command") != launched.COMMAND and settings.get("strategy") != "allreduce"


def is_queued(job: Object) -> bool:
    """Tell whether an EdlJob waits for the scheduler.

    It has not begun yet, or the scheduler has suspended it; one that somebody else suspended waits
    for nobody.
    """
    about, spec = job["metadata"], job["spec"]
    is_new = not (job.get("status") or {}).get("startTime")
    mine = is_new or names.QUEUED in (about.get("annotations") or {})
    return "scheduling" in spec and bool(spec.get("suspend")) and mine


def held_by(job: Object) -> str:
    """Return who has suspended a job of the scheduler's, which stands by; "" where nobody has."""
    spec = job["spec"]
    if "scheduling" not in spec or not spec.get("suspend") or is_queued(job):
        return ""
    return suspended_by(job) or "somebody"


def suspended_by(job: Object) -> str:
    """Return who wrote the `suspend` of a job's spec last, by its managed fields; "" if unknown."""
    found = [
        str(each.get("manager", ""))
        for each in job["metadata"].get("managedFields") or []
        if "f:suspend" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    others = [each for each in found if each not in _OWN_CLIENTS]
    return (others or found or [""])[-1]


def bounded(spec: Object) -> str:
    """Say that more workers are asked for than there may be; "" where there are not."""
    asked, most = int((spec.get("worker") or {}).get("replicas", 2)), workers(spec)
    if asked <= most:
        return ""
    return f"spec.worker.replicas {asked} is more than spec.worker.maxReplicas: {most} are wanted"


def adopted(begun: JobSettings, now: JobSettings) -> tuple[JobSettings, list[str]]:
    """Return the settings that a job goes on with under a new spec, and those it cannot change."""
    before, after = dataclasses.asdict(begun), dataclasses.asdict(now)
    free = _FREE | {"num_ps"} if objects.servers_wanted(begun) else _FREE
    kept = {name: after[name] for name in free & before.keys() & after.keys()}
    fixed = before.keys() - free - {"resume"}  # which a controller may have set
    if begun.most_teachers:
        fixed -= _TEACHERS  # how many are wanted is told apart, 0 too (objects.wanted)
    refused = sorted(name for name in fixed if before[name] != after.get(name))
    return dataclasses.replace(begun, **kept), refused


def outlives(path: str, template: Object) -> bool:
    """Return whether what lies at this path in such a pod is still there when the pod is gone."""
    if "://" in path:
        return True
    spec = template["spec"]
    lasting = {each["name"] for each in spec["volumes"] if "emptyDir" not in each}
    mounts = pods.container_of(template)["volumeMounts"]
    return bool(path) and any(
        each["name"] in lasting and PurePosixPath(path).is_relative_to(each["mountPath"])
        for each in mounts
    )


def check_state(settings: JobSettings, templates: dict[str, Object], said: str) -> None:
    """Refuse a script whose state would go with its pod. `said`: what names the job's volume.

    Raises UsageError.
    """
    if isinstance(settings, launched.LaunchedSettings):
        folder = pods.state_folder(settings)
        if not outlives(folder, templates["worker"]):
            raise UsageError(
                f"{said}: a script keeps its state in {folder}, which all its pods must see: give "
                "a volume for the job, or --checkpoint_dir in another one or as a URL."
            )


# -- spec


def _check_shape(spec: object) -> None:
    """Check the shape of what is no setting. Raises UsageError."""
    if isinstance(spec, dict):
        spec = {name: each for name, each in spec.items() if name != "settings"}
    shapes.check(spec, shapes.EDLJOB, "spec")


def _settings(job: Object) -> JobSettings:
    spec = job["spec"]
    worker, ps = spec.get("worker") or {}, spec.get("ps") or {}
    command = spec.get("command", "train")
    of_script = command == launched.COMMAND
    given: dict[str, Any] = dict(spec.get("settings") or {})
    known = {**spellings(), **(launched.spellings() if of_script else {})}
    for spelled in given:
        if (name := known.get(spelled, "")) in _ELSEWHERE:
            raise UsageError(
                f"spec.settings.{spelled} does not stand in an EdlJob: {_ELSEWHERE[name]}."
            )
    rules.check(spec)
    fewest, most = teachers(spec)
    told = {
        "job_name": job["metadata"]["name"],
        "runtime": "kubernetes",
        "num_workers": workers(spec),
        "min_workers": worker.get("minReplicas"),
        "num_ps": None if of_script else ps.get("replicas"),
        "num_teachers": fewest or None,
        "max_teachers": most or None,
        "nodes": _nodes(spec) if of_script else None,
        "envs": spec.get("envs"),
        "preemptible": spec.get("preemptible"),
        "image_name": spec.get("image"),
        "image_pull_policy": spec.get("imagePullPolicy"),
    }
    if "highFraction" in worker:
        told["worker_pod_priority"] = str(worker["highFraction"])
    if durable(spec):  # for those who ask what outlives the pods: JobSettings.keeps_checkpoints
        told["job_volume"] = names.volume_text(spec["jobVolume"])
    for role in names.ROLES:
        told |= _resources(spec, role)
    told = {name: value for name, value in told.items() if value is not None}
    origins = {name: _ELSEWHERE[name] for name in told}
    origins |= {name: f"spec.settings.{name}" for name in given}
    return resolve(command, {**given, **told}, origins)


def _nodes(spec: Object) -> str:
    worker = spec.get("worker") or {}
    most = worker.get("maxReplicas", max(workers(spec), worker.get("minReplicas", 1)))
    return f"{worker.get('minReplicas', 1)}:{most}"


def _resources(spec: Object, role: str) -> dict[str, str]:
    """Return a role's resources as flags have them.

    Limits alone ask for as much, as everywhere in Kubernetes.
    """
    said = (spec.get(role) or {}).get("resources") or {}
    limits = said.get("limits")
    requests = said.get("requests") or limits
    found = {"request": requests, "limit": limits}
    return {
        f"{role}_resource_{part}": ",".join(f"{name}={amount}" for name, amount in amounts.items())
        for part, amounts in found.items()
        if amounts
    }


def _overlays(spec: Object) -> dict[str, Object]:
    common: Object = {
        "volumes": spec.get("volumes") or [],
        "imagePullSecrets": spec.get("imagePullSecrets"),
    }
    if mounts := spec.get("volumeMounts"):
        common["containers"] = [{"name": names.CONTAINER, "volumeMounts": mounts}]
    found = {"pod": {"spec": {name: value for name, value in common.items() if value}}}
    for role in names.ROLES:
        said = spec.get(role) or {}
        fields = ("priorityClassName", "nodeSelector", "tolerations")
        layer = {"spec": {name: said[name] for name in fields if name in said}}
        template = {k: dict(v) for k, v in (said.get("podTemplate") or {}).items() if v}
        _check_template(role, template.get("spec") or {})
        if labels := template.get("metadata", {}).get("labels"):
            free = {name: value for name, value in labels.items() if not name.startswith(_OURS)}
            template["metadata"]["labels"] = free
        found[role] = layers.merged(layer, template)
    if low := (spec.get("worker") or {}).get("low"):
        found["worker_low"] = {"spec": dict(low)}
    return found


def _check_template(role: str, spec: Object) -> None:
    """Refuse what would not reach a pod, although it is allowed: nothing is dropped silently."""
    path = f"spec.{role}.podTemplate.spec"
    if role == "master" and spec.get("initContainers"):
        raise UsageError(
            f"{path}.initContainers: nothing of an EdlJob's runs before its master, whose pod has "
            "a token that can make pods, but the check of the definition: take them out; what the "
            "job needs done before, put into spec.worker.podTemplate or into a Job of its own."
        )
    own = {"args", "image", "imagePullPolicy"} if role == "master" else {"args"}
    for each in spec.get("containers") or []:
        if each.get("name") == names.CONTAINER and (said := sorted(own & each.keys())):
            raise UsageError(
                f"{path}.containers.{said[0]}: that of the container {names.CONTAINER} is edl's own"
                + (" (a master has the controller's image)" if said[0] != "args" else "")
                + ": take it out."
            )


def _put_job_volume(template: Object, source: Object, path: str) -> None:
    spec = template["spec"]
    spec["volumes"] = [
        {"name": "job", **source} if each["name"] == "job" else each for each in spec["volumes"]
    ]
    for mount in pods.container_of(template)["volumeMounts"]:
        if mount["name"] == "job":
            mount["subPath"] = path
