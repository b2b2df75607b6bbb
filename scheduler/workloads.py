"""Kueue's Workloads for an EdlJob: what is written into one, and what Kueue says by it. Pure.

An EdlJob with a queue has one base, its master, servers, teachers and least workers, which Kueue
admits as a whole, and a piece for each worker above that. Pieces come after every base that may be
wanted, so that quota takes them first, one by one. Of the pods stands there what Kueue counts and
matches alone: no command, no environment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.plain import plain
from ..k8s import job as edljob
from ..k8s import names
from ..k8s.api import Object
from .jobs import Quota, ceiling

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # as Kueue's own kinds of jobs have it
PIECE_LABEL = "edl.dev/kueue-piece"  # of the Workloads made here; 0: the base
_ASKED = "edl.dev/asked"  # annotation: a hash of what a base asks for
# Below all that PriorityClasses of users may say (-2^31 to 10^9), as far as anybody uses it.
_PIECES = -1_000_000_000
_LEAST = -(2**31)
_COUNTED = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "overhead", "resources")
_WORDS = 300  # of Kueue's message that are told


NO_WAITING = "leave waitForPodsReady out of Kueue's configuration"


def queue_of(job: Object) -> str:
    """Return the LocalQueue that an EdlJob names, "" where it names none."""
    return str((job["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))


def admitted_by(job: Object) -> str:
    """Return the queue whose quota a job that runs began with, "" where it runs with none."""
    said = (job["metadata"].get("annotations") or {}).get(names.ADMITTED)
    return "" if job["spec"].get("suspend") else str(said or "")


def held_to(job: Object) -> str:
    """Return the queue that a job is held to: what it runs by, else what its label says."""
    return admitted_by(job) or queue_of(job)


def evictions(job: Object) -> int:
    """Return how often Kueue has evicted a job because its pods were not ready in time."""
    said = str((job["metadata"].get("annotations") or {}).get(names.EVICTIONS, ""))
    return int(said) if said.isdecimal() else 0


def ranked(job: Object, quotas: Sequence[Quota]) -> Object:
    """Return an EdlJob with the priority that counts by quotas, which is not above its own."""
    said = job["spec"].get("scheduling") or {}
    quota = ceiling(quotas, job["metadata"]["namespace"], str(said.get("user") or ""))
    if quota is None or quota.priority is None or _priority(job) <= quota.priority:
        return job
    return {**job, "spec": {**job["spec"], "scheduling": {**said, "priority": quota.priority}}}


def pod_sets(job: Object, templates: Mapping[str, Object]) -> list[Object]:
    """Return the sets of pods without which a job does not begin, the workers last."""
    spec = job["spec"]
    counts = {"master": 1, "ps": 0, "teacher": edljob.teachers(spec)[0]}
    if edljob.has_servers(spec):
        counts["ps"] = int((spec.get("ps") or {}).get("replicas", 1))
    counts["worker"] = int((spec.get("worker") or {}).get("minReplicas", 1))
    return [_pod_set(role, templates, count) for role, count in counts.items() if count]


def base(job: Object, sets: Sequence[Object], version: str) -> Object:
    """Return the Workload of what a job does not begin without."""
    made = _workload(job, 0, list(sets), _priority(job), version, queue_of(job))
    made["metadata"]["annotations"] = {_ASKED: _hash(job, sets)}
    return made


def piece(job: Object, sets: Sequence[Object], index: int, version: str, queue: str) -> Object:
    """Return the Workload of one worker more; `index`: from 1 on; `queue`: that of its base."""
    worker, priority = {**sets[-1], "count": 1}, max(_LEAST, _PIECES + _priority(job))
    return _workload(job, index, [worker], priority, version, queue)


def is_asked(workload: Object, job: Object, sets: Sequence[Object]) -> bool:
    """Tell whether a base asks for what the job asks for by now."""
    said = (workload["metadata"].get("annotations") or {}).get(_ASKED)
    return bool(said == _hash(job, sets))


def index_of(workload: Object) -> int:
    """Return a Workload's place in its job: 0, the base, or that of a piece."""
    return int(workload["metadata"]["labels"][PIECE_LABEL])


def workers_of(workload: Object) -> int:
    """Return how many workers a Workload is for."""
    return _count(workload, "worker")


def servers_of(workload: Object) -> int:
    """Return how many servers a Workload is for."""
    return _count(workload, "ps")


def is_active(workload: Object) -> bool:
    """Tell whether an administrator lets it be admitted (spec.active)."""
    return workload["spec"].get("active") is not False


def is_over(workload: Object) -> bool:
    """Tell whether it is evicted, finished or about to go: it is never admitted again as it is."""
    return bool(
        workload["metadata"].get("deletionTimestamp")
        or _condition(workload, "Evicted").get("status") == "True"
        or _condition(workload, "Finished").get("status") == "True"
    )


def is_admitted(workload: Object) -> bool:
    """Tell whether its pods may run now."""
    admitted = _condition(workload, "Admitted").get("status") == "True"
    return admitted and is_active(workload) and not is_over(workload)


def flavors(workload: Object) -> dict[str, set[str]]:
    """Return the names of the ResourceFlavors that were assigned, by set of pods."""
    sets = ((workload.get("status") or {}).get("admission") or {}).get("podSetAssignments") or []
    return {each["name"]: set((each.get("flavors") or {}).values()) for each in sets}


def is_unheard(workload: Object) -> bool:
    """Tell whether Kueue has said nothing of it."""
    return is_active(workload) and not (workload.get("status") or {}).get("conditions")


def is_reserved(workload: Object) -> bool:
    """Tell whether it has quota, be it that checks go on."""
    return _condition(workload, "QuotaReserved").get("status") == "True"


def is_late(workload: Object) -> bool:
    """Tell whether it is evicted because its pods were not ready in time (waitForPodsReady)."""
    evicted = _condition(workload, "Evicted")
    return evicted.get("status") == "True" and evicted.get("reason") == "PodsReadyTimeout"


def words(workload: Object) -> str:
    """Return why a Workload is not admitted, Kueue's own words first; "" where there are none."""
    checks = [
        f"the check {each['name']} is {each['state']} {each.get('message') or ''}".strip()
        for each in (workload.get("status") or {}).get("admissionChecks") or []
        if each["state"] != "Ready"
    ]
    evicted, said = _condition(workload, "Evicted"), []
    if evicted.get("status") == "True":
        said.append(f"evicted ({evicted.get('reason', '')}): {evicted.get('message', '')}")
    elif not is_reserved(workload) and is_active(workload):
        said.append(str(_condition(workload, "QuotaReserved").get("message") or ""))
    told = plain("; ".join(filter(None, [*said, *checks])), _WORDS)
    if is_late(workload):
        told += (
            "; Kueue's waitForPodsReady is on, and only the kinds of jobs that it knows itself "
            f"tell it that pods are ready: {NO_WAITING}"
        )
    if not is_active(workload):
        told += "; " if told else ""
        told += "it is deactivated (spec.active of the Workload is false)"
    return told


def _workload(
    job: Object, index: int, sets: list[Object], priority: int, version: str, queue: str
) -> Object:
    about = job["metadata"]
    parts = ("piece", str(index)) if index else ("base",)
    owner = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "name": about["name"],
        "uid": about["uid"],
        "controller": True,
    }
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Workload",
        "metadata": {
            "name": names.object_name(about["name"], *parts),
            "namespace": about["namespace"],
            "labels": {**names.labels(about["name"]), PIECE_LABEL: str(index)},
            "ownerReferences": [owner],
        },
        "spec": {"queueName": queue, "priority": priority, "podSets": sets},
    }


def _pod_set(role: str, templates: Mapping[str, Object], count: int) -> Object:
    spec = templates[role]["spec"]
    made = {key: spec[key] for key in _COUNTED if spec.get(key)}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            made[kind] = [_counted(each) for each in spec[kind]]
    return {"name": role, "count": count, "template": {"spec": made}}


def _counted(container: Object) -> Object:
    found: Object = {"name": container["name"], "resources": container.get("resources") or {}}
    if "restartPolicy" in container:  # Always: a sidecar, which counts with the others
        found["restartPolicy"] = container["restartPolicy"]
    return found


def _count(workload: Object, role: str) -> int:
    found = [each["count"] for each in workload["spec"]["podSets"] if each["name"] == role]
    return int(sum(found))


def _priority(job: Object) -> int:
    return int((job["spec"].get("scheduling") or {}).get("priority") or 0)


def _hash(job: Object, sets: Sequence[Object]) -> str:
    said = json.dumps([queue_of(job), _priority(job), sets], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _condition(workload: Object, kind: str) -> Mapping[str, Any]:
    found = (workload.get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})
