"""An EdlJob and edl: settings and pod templates out of its spec, its status out of what there is. Pure.

The fields of the spec that have a flag become that flag's setting, and all settings go through
`resolve` as those of the command line do, so that a job means the same and a bad one gets one sentence.
What has no flag (priority classes, node selectors, podTemplate, volumes) is laid over the templates
that these settings give (pods.py).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..common.errors import UsageError
from ..common.resolve import resolve
from ..common.settings import JobSettings, knobs, spellings
from . import allowed, names, objects, observe, pods
from .allowed import USUAL, Installed
from .api import Object

PHASES = ("Pending", "Running", "Suspended", "Stopping", "Succeeded", "Failed")
_ROLES = ("master", "ps", "worker")
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
    "envs": "spec.envs",
    "image_name": "spec.image",
    "image_pull_policy": "spec.imagePullPolicy",
    "image_pull_secret": "spec.imagePullSecrets",
    "worker_pod_priority": "spec.worker.highFraction or spec.worker.priorityClassName",
    "ps_pod_priority": "spec.ps.priorityClassName",
    "master_pod_priority": "spec.master.priorityClassName",
    "volume": "spec.volumes and spec.volumeMounts",
    "job_volume": "spec.jobVolume",
    "cluster_spec": "podTemplate of spec.master, spec.ps and spec.worker",
}
_ELSEWHERE |= {
    f"{role}_resource_{part}": f"spec.{role}.resources"
    for role in _ROLES
    for part in ("request", "limit")
}
# What of a job that has begun may change all the same: how it runs, not what it computes.
_FREE = {knob.name for knob in knobs() if knob.group in ("Cluster", "Watching")}
_FREE |= {"num_workers", "envs"}
_FLAG = re.compile(r"--(\w+)")
_OURS = ("edl.dev/", "app.kubernetes.io/")  # labels that no podTemplate changes
_TAKEN = {"controller"}  # names of jobs whose Lease would be the controller's
_IDLE = ("", "starting", "draining")  # states of a process that does not work yet, or no more


@dataclass(frozen=True)
class Wanted:
    """What a spec asks for."""

    settings: JobSettings
    templates: dict[str, Object]


def wanted(job: Object, grpc_probes: bool = True, installed: Installed = USUAL) -> Wanted:
    """Raises UsageError: what is wrong with the spec, where, and what would be right; NotAllowed (one
    of them) where it asks for more than its author may have.

    `grpc_probes`: see pods.templates.
    """
    spec = job["spec"]
    settings = dataclasses.replace(_settings(job), port=names.GRPC_PORT)
    if settings.job_name in _TAKEN:
        raise UsageError(f"metadata.name: {settings.job_name} is edl's own: choose another one.")
    try:
        rules = installed.of(job["metadata"].get("namespace", ""))
        allowed.check(spec, settings.service_account, JobSettings().service_account, rules)
        made = pods.templates(settings, _overlays(spec), grpc_probes=grpc_probes)
        for template in made.values():
            pods.container_of(template)
        if source := spec.get("jobVolume"):
            for role in ("master", "ps"):
                _put_job_volume(made[role], source, settings.job_name)
        image, policy = installed.image, installed.pull_policy
        if not image:
            image, policy = settings.image_name, settings.image_pull_policy
        uid = job["metadata"].get("uid", "")
        made["master"] = pods.confined(made, uid, image, policy, installed.pull_secrets)
    except allowed.NotAllowed:
        raise
    except UsageError as error:
        raise UsageError(
            _FLAG.sub(lambda flag: _ELSEWHERE.get(flag[1], flag[0]), str(error))
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"spec: a podTemplate, volume or mount is not made as a pod's is ({error!r})."
        ) from error
    return Wanted(settings, made)


def durable(spec: Object) -> bool:
    """Whether the job's folder, with its journal, outlives the pods."""
    source = spec.get("jobVolume") or {}
    return bool(source) and "emptyDir" not in source


def workers(spec: Object) -> int:
    """How many workers are wanted."""
    said = spec.get("worker") or {}
    replicas = int(said.get("replicas", 2))
    return min(replicas, int(said.get("maxReplicas", replicas)))


def bounded(spec: Object) -> str:
    """That more workers are asked for than there may be; "" where there are not."""
    asked, most = int((spec.get("worker") or {}).get("replicas", 2)), workers(spec)
    if asked <= most:
        return ""
    return f"spec.worker.replicas {asked} is more than spec.worker.maxReplicas: {most} are wanted"


def adopted(begun: JobSettings, now: JobSettings) -> tuple[JobSettings, list[str]]:
    """The settings that a job goes on with after its spec has changed, and what of that it cannot."""
    before, after = dataclasses.asdict(begun), dataclasses.asdict(now)
    kept = {name: after[name] for name in _FREE}
    fixed = before.keys() - _FREE - {"resume"}  # which a controller may have set
    refused = sorted(name for name in fixed if before[name] != after[name])
    return dataclasses.replace(begun, **kept), refused


def outlives(path: str, template: Object) -> bool:
    """Whether what lies at this path in such a pod is still there when the pod is gone."""
    if "://" in path:
        return True
    spec = template["spec"]
    lasting = {each["name"] for each in spec["volumes"] if "emptyDir" not in each}
    mounts = pods.container_of(template)["volumeMounts"]
    return bool(path) and any(
        each["name"] in lasting and PurePosixPath(path).is_relative_to(each["mountPath"])
        for each in mounts
    )


# -- spec


def _settings(job: Object) -> JobSettings:
    spec = job["spec"]
    worker, ps = spec.get("worker") or {}, spec.get("ps") or {}
    given: dict[str, Any] = dict(spec.get("settings") or {})
    known = spellings()
    for spelled in given:
        if (name := known.get(spelled, "")) in _ELSEWHERE:
            raise UsageError(
                f"spec.settings.{spelled} does not stand in an EdlJob: {_ELSEWHERE[name]}."
            )
    _check_workers(worker)
    told = {
        "job_name": job["metadata"]["name"],
        "runtime": "kubernetes",
        "num_workers": workers(spec),
        "min_workers": worker.get("minReplicas"),
        "num_ps": ps.get("replicas"),
        "envs": spec.get("envs"),
        "image_name": spec.get("image"),
        "image_pull_policy": spec.get("imagePullPolicy"),
    }
    if "highFraction" in worker:
        told["worker_pod_priority"] = str(worker["highFraction"])
    for role in _ROLES:
        told |= _resources(spec, role)
    told = {name: value for name, value in told.items() if value is not None}
    origins = {name: _ELSEWHERE[name] for name in told}
    origins |= {name: f"spec.settings.{name}" for name in given}
    return resolve(spec.get("command", "train"), {**given, **told}, origins)


def _check_workers(worker: Object) -> None:
    fewest, most = worker.get("minReplicas", 1), worker.get("maxReplicas")
    if most is not None and fewest > most:
        raise UsageError(
            f"spec.worker.minReplicas {fewest} is more than spec.worker.maxReplicas {most}: no task "
            "would ever be leased."
        )
    if "highFraction" in worker and "priorityClassName" in worker:
        raise UsageError(
            "spec.worker.highFraction and spec.worker.priorityClassName: leave out one of them."
        )


def _resources(spec: Object, role: str) -> dict[str, str]:
    """As flags have them. Who says only limits asks for as much, as everywhere in Kubernetes."""
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
        common["containers"] = [{"name": pods.CONTAINER, "volumeMounts": mounts}]
    found = {"pod": {"spec": {name: value for name, value in common.items() if value}}}
    for role in _ROLES:
        said = spec.get(role) or {}
        fields = ("priorityClassName", "nodeSelector", "tolerations")
        layer = {"spec": {name: said[name] for name in fields if name in said}}
        template = {k: dict(v) for k, v in (said.get("podTemplate") or {}).items() if v}
        if labels := template.get("metadata", {}).get("labels"):
            free = {name: value for name, value in labels.items() if not name.startswith(_OURS)}
            template["metadata"]["labels"] = free
        found[role] = pods.merged(layer, template)
    return found


def _put_job_volume(template: Object, source: Object, job: str) -> None:
    spec = template["spec"]
    spec["volumes"] = [
        {"name": "job", **source} if each["name"] == "job" else each for each in spec["volumes"]
    ]
    for mount in pods.container_of(template)["volumeMounts"]:
        if mount["name"] == "job":
            mount["subPath"] = names.object_name(job)  # one volume serves many jobs


# -- status


@dataclass(frozen=True)
class Problem:
    """What stands in the way, for the condition Accepted. `fatal`: a job that has not begun cannot."""

    reason: str
    message: str
    fatal: bool = True


@dataclass(frozen=True)
class Situation:
    """All that a status is made of."""

    job: Object
    pods: Sequence[Object]
    told: Mapping[str, Any] | None  # the master's status
    masters: int  # made so far
    begun: bool = False  # its ConfigMap is there
    problem: Problem | None = None
    note: str = ""  # of the controller


def exit_code(told: Mapping[str, Any] | None, masters: Iterable[Object]) -> int | None:
    """The job's exit code; None while it is not decided.

    The master's word is the status that it has left. Where that is lost (the API server was away), a
    pod that ended by itself with 0 or 3 says as much: nothing else in a master ends so.
    """
    if told and told.get("state") in ("done", "failed") and told.get("exit_code") is not None:
        return int(told["exit_code"])
    for pod in masters:
        state = observe.observe(pod)
        sure = observe.deletion(pod) is None
        if sure and isinstance(state, observe.Ended) and state.code in (0, 3):
            return state.code
    return None


def told_by(found: Object | None) -> dict[str, Any] | None:
    """What the ConfigMap of the status says."""
    if found is None:
        return None
    try:
        return dict(json.loads(found["data"][objects.STATUS]))
    except (KeyError, TypeError, ValueError):  # somebody else wrote it: the master will again
        return None


def of_role(found: Iterable[Object], *roles: str) -> list[Object]:
    """The pods of these roles, those made later after those made earlier."""
    mine = [
        pod for pod in found if pod["metadata"].get("labels", {}).get(names.ROLE_LABEL) in roles
    ]
    return sorted(mine, key=lambda pod: (number(pod), pod["metadata"]["name"]))


def number(pod: Object) -> int:
    said = str(pod["metadata"].get("labels", {}).get(names.INDEX_LABEL, ""))
    return int(said) if said.isdecimal() else 0


def lives(pod: Object) -> bool:
    """Something of it may still run."""
    return not isinstance(observe.observe(pod), observe.Ended)


def status(here: Situation, now: str) -> Object:
    """The EdlJob's status. `now`: RFC 3339. What did not change keeps its times."""
    job, told = here.job, here.told or {}
    before: Object = job.get("status") or {}
    spec = job["spec"]
    masters, servers, workers_there = (of_role(here.pods, role) for role in _ROLES)
    code = exit_code(here.told, masters)
    phase = _phase(here, code)
    ended = phase in ("Succeeded", "Failed")
    alive = [pod for pod in workers_there if lives(pod)]
    alive_servers = [pod for pod in servers if lives(pod)]
    found: Object = {
        "phase": phase,
        "observedGeneration": job["metadata"].get("generation", 1),
        "conditions": [],
        "selector": names.selector(job["metadata"]["name"], "worker"),
        "masters": here.masters,
        "workers": len(alive),
        "workersReady": f"{_ready(told, 'workers', alive)}/{workers(spec)}",
        "ps": len(alive_servers),
        "psReady": f"{_ready(told, 'servers', alive_servers)}/{(spec.get('ps') or {}).get('replicas', 1)}",
        "restarts": sum((told.get("restarts") or {}).get(role, 0) for role in ("worker", "server")),
    }
    reason, message = _why(here, phase)
    if message:
        found["message"] = message
    found["conditions"] = _conditions(here, phase, code, (reason, message), now)
    if total := told.get("records_total"):
        # not 100 before it is over
        percent = 100 if code == 0 else min(99, int(100 * told.get("records_done", 0) / total))
        found["progress"], found["progressPercentage"] = f"{percent} %", percent
    if here.told:
        found["epoch"] = int(told.get("epoch") or 0)
    if told.get("checkpoint"):
        found["checkpoint"] = str(told["checkpoint"])
    if phase == "Running" or before.get("startTime"):
        found["startTime"] = before.get("startTime") or now
    if ended and here.begun:
        found["completionTime"] = before.get("completionTime") or now
    if code is not None:
        found["exitCode"] = code
    return found


def difference(before: Object, after: Object) -> Object:
    """The merge patch that makes a status of another one; {} where they are the same."""
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - after.keys())


def _phase(here: Situation, code: int | None) -> str:
    if code is not None:
        return "Succeeded" if code == 0 else "Failed"
    if here.problem and here.problem.fatal and not here.begun:
        return "Failed"
    alive = [pod for pod in here.pods if lives(pod)]
    if here.job["spec"].get("suspend"):
        return "Stopping" if alive else "Suspended"
    state = (here.told or {}).get("state", "")
    runs = [pod for pod in alive if isinstance(observe.observe(pod), observe.Running)]
    if state == "stopping" and of_role(runs, "master", "worker"):
        return "Stopping"
    if state == "running" and _ready(here.told or {}, "workers", of_role(runs, "worker")):
        return "Running"
    return "Pending"


def _ready(told: Mapping[str, Any], role: str, alive: Sequence[Object]) -> int:
    """Processes that work, by the master's word, in pods that run, by the cluster's."""
    running = {
        pod["metadata"]["labels"].get(names.INDEX_LABEL)
        for pod in alive
        if isinstance(observe.observe(pod), observe.Running)
    }
    rows = [
        row
        for row in told.get(role) or []
        if row.get("heartbeat_age_s") is not None
        and row.get("state", "") not in _IDLE
        and str(row.get("index")) in running
    ]
    return len(rows)


def _why(here: Situation, phase: str) -> tuple[str, str]:
    """What a person should know now: in a word for programs, and in a sentence."""
    told = here.told or {}
    said = str(told.get("message") or "")
    if here.problem:
        return here.problem.reason, here.problem.message
    if phase in ("Succeeded", "Failed", "Stopping") and said:
        return phase, said
    if phase == "Suspended":
        return phase, "no pod runs; it goes on when spec.suspend is false"
    if here.note:
        return "MasterEnded", here.note
    for role, word in (("master", "the master"), ("ps", "a server"), ("worker", "a worker")):
        for pod in of_role(here.pods, role):
            state = observe.observe(pod)
            if isinstance(state, observe.Waiting) and state.why:
                return state.word, f"{word} {state.why}"
            if role == "master" and observe.is_checking(pod):
                return "Checking", "the definition is checked and the records are counted"
    most = bounded(here.job["spec"])
    if phase in ("Pending", "Running") and not said and most:
        return phase, most
    if said:
        return "QuotaExceeded" if "quota" in said else "Waiting", said
    if phase == "Pending" and told.get("state") == "running":
        return "NoWorker", "no worker is ready"
    return phase, ""


_NO_VOLUME = (
    "without spec.jobVolume the journal is lost with the master's pod: when it is, or when the job is "
    "suspended, the job goes on with its last checkpoint where spec.settings.checkpoint_dir lies in a "
    "volume, else it begins anew"
)


def _conditions(
    here: Situation, phase: str, code: int | None, why: tuple[str, str], now: str
) -> list[Object]:
    generation = here.job["metadata"].get("generation", 1)
    before = {each["type"]: each for each in (here.job.get("status") or {}).get("conditions", [])}
    problem = here.problem
    said = str((here.told or {}).get("message") or "")
    lasts = durable(here.job["spec"])
    failed = (problem.reason if problem else "") if code is None else f"ExitCode{code}"
    made = []
    for kind, is_so, reason, message in (
        (
            "Accepted",
            problem is None,
            problem.reason if problem else "Valid",
            problem.message if problem else "",
        ),
        (
            "Durable",
            lasts,
            "JobVolume" if lasts else "NoJobVolume",
            "" if lasts else _NO_VOLUME,
        ),
        (
            "Running",
            phase == "Running",
            why[0] if phase == "Pending" else phase,
            why[1] if phase == "Pending" else "",
        ),
        ("Suspended", phase == "Suspended", phase, ""),
        ("Succeeded", phase == "Succeeded", phase, said if phase == "Succeeded" else ""),
        (
            "Failed",
            phase == "Failed",
            (failed or phase) if phase == "Failed" else phase,
            (problem.message if problem and code is None else said) if phase == "Failed" else "",
        ),
    ):
        word = "True" if is_so else "False"
        known = before.get(kind)
        same = known is not None and known["status"] == word
        made.append(
            {
                "type": kind,
                "status": word,
                "reason": reason,
                # an empty text in a list reaches an API server's schema as null (1.20, merge patch)
                **({"message": message} if message else {}),
                "lastTransitionTime": known["lastTransitionTime"] if known and same else now,
                "observedGeneration": generation,
            }
        )
    return made
