"""Nodes of a cluster, as the scheduler sees them: what is free, and who may be put there. Pure.

Nodes that the same jobs may be put on are one kind: where no job asks for anything special and no
node keeps anybody away, all are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..k8s import names
from ..k8s.api import Object
from ..k8s.counting import Requests, requested
from ..k8s.nodes import is_ready, kind_of
from ..k8s.observe import takes_room
from .cluster import OTHERS, Node, Resources
from .jobs import Job
from .options import RESOURCES, amounts, rooms

_GPU = "/gpu"  # nvidia.com/gpu, amd.com/gpu
PODS = 110.0  # of a node that does not say how many it takes: kubelet's default
_KEEPS_AWAY = ("NoSchedule", "NoExecute")


def resources(asked: Mapping[str, float], further: Sequence[str] = ()) -> Resources:
    """Return amounts by Kubernetes' names as they are scheduled.

    `further`: the names of resources beyond cores, memory and GPUs, in their order (further_of).
    """
    gpu = sum(amount for name, amount in asked.items() if name.endswith(_GPU))
    others = tuple(asked.get(name, 0.0) for name in further)
    return Resources(
        asked.get("cpu", 0.0), asked.get("memory", 0.0), gpu, asked.get("pods", 0.0), others
    )


def further_of(asks: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the names of what is asked for beyond cores, memory and GPUs: of OTHERS at most."""
    found = {name for asked in asks for name, amount in asked.items() if amount}
    return sorted(name for name in found if not _is_usual(name))[:OTHERS]


def machines(
    nodes: Iterable[Object],
    others: Iterable[Object],
    asks: Mapping[str, Object],
    further: Sequence[str] = (),
) -> tuple[list[Node], dict[str, set[str]]]:
    """Return the nodes that can be used, and of each kind the jobs that may be put there.

    `others`: the pods that the scheduler has no say in. `asks`: the spec of a worker's pod, by job.
    `further`: as of `resources`.
    """
    used: dict[str, list[Requests]] = defaultdict(list)
    for pod in others:
        where = pod["spec"].get("nodeName")
        if where and takes_room(pod):
            used[where].append({**requested(pod["spec"]), "pods": 1.0})
    found: list[Node] = []
    kinds: dict[frozenset[str], str] = {}
    for node in sorted(nodes, key=lambda each: each["metadata"]["name"]):
        if not is_ready(node):
            continue
        name = node["metadata"]["name"]
        welcome = frozenset(job for job, spec in asks.items() if may_be_on(spec, node))
        if asks and not welcome:
            continue
        kind = kinds.setdefault(welcome, f"as {name}")
        free = {
            key: float(names.quantity(str(amount), key))
            for key, amount in {"pods": PODS, **node["status"]["allocatable"]}.items()
            if _is_usual(key) or key in further
        }
        for each in used[name]:
            for key, amount in each.items():
                free[key] = free.get(key, 0.0) - amount
        left = resources({key: max(0.0, amount) for key, amount in free.items()}, further)
        found.append(Node(name, left, kind, kind_of(node)[1]))
    if len(kinds) == 1:
        found = [replace(node, kind="") for node in found]
        kinds = dict.fromkeys(kinds, "")
    return found, {kind: set(welcome) for welcome, kind in kinds.items()}


def expected(
    jobs: Sequence[Job], nodes: Sequence[Node], welcome: Mapping[str, set[str]]
) -> list[Job]:
    """Return the jobs with places also for those of their pods that no node has taken yet.

    Each is expected where most is free, as kube-scheduler does; one for which there is no room is
    expected nowhere. `welcome`: of each kind of nodes the jobs that may be put there.
    """
    known = [node.name for node in nodes]
    free = np.array([amounts(node.free) for node in nodes]).reshape(-1, len(RESOURCES))
    for job in jobs:
        for on, pod in ((job.workers_on, job.worker), (job.servers_on, job.server)):
            free -= np.outer([on.get(name, 0) for name in known], amounts(pod))
    found = []
    for job in jobs:
        barred = [job.name not in welcome[node.kind] for node in nodes]
        workers, servers = dict(job.workers_on), dict(job.servers_on)
        for places, pod, count in (
            (workers, job.worker, job.held.workers),
            (servers, job.server, job.held.servers),
        ):
            for _ in range(sum(places.values()), count):
                room = rooms(free, pod)
                room[barred] = 0
                if not room.max(initial=0):
                    break
                best = int(room.argmax())
                places[known[best]] = places.get(known[best], 0) + 1
                free[best] -= amounts(pod)
        found.append(replace(job, workers_on=workers, servers_on=servers))
    return found


def may_be_on(spec: Object, node: Object) -> bool:
    """Tell whether a pod of this spec may be put onto a node, by labels and taints."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != word for key, word in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not any(
        all(_matches(each, labels) for each in term.get("matchExpressions") or [])
        for term in required["nodeSelectorTerms"]
    ):
        return False
    return not unborne(spec, node)


def unborne(spec: Object, node: Object) -> list[Object]:
    """Return the taints by which a node keeps away a pod of this spec."""
    taints = (node.get("spec") or {}).get("taints") or []
    has = spec.get("tolerations") or []
    return [each for each in taints if keeps_away(each) and not is_borne(each, has)]


def no_node(spec: Object, nodes: Sequence[Object]) -> str:
    """Say why a worker may be on no node: for its labels, or a taint that it does not bear."""
    free = {**spec, "tolerations": [{"operator": "Exists"}]}
    for node in nodes:
        if is_ready(node) and may_be_on(free, node):
            added = [toleration(each) for each in unborne(spec, node)]
            words = ", ".join(map(written, added))
            name = node["metadata"]["name"]
            return (
                f"the nodes that it may be on, such as {name}, have a taint that its workers do "
                f"not bear: add {words} to spec.worker.tolerations"
            )
    return "no node has the labels that its workers ask for (spec.worker.nodeSelector)"


def keeps_away(taint: Object) -> bool:
    """Tell whether a taint keeps pods away that do not bear it."""
    return taint["effect"] in _KEEPS_AWAY


def written(it: Object) -> str:
    """Return labels, or a toleration, as one writes them into a spec: {key: value}."""
    return f"{{{', '.join(f'{name}: {value}' for name, value in it.items())}}}"


def toleration(taint: Object) -> Object:
    """Return the toleration by which a pod bears a taint."""
    about = {name: taint[name] for name in ("key", "value", "effect") if taint.get(name)}
    return {**about, "operator": "Equal" if "value" in about else "Exists"}


def _is_usual(name: str) -> bool:
    return name in ("cpu", "memory", "pods") or name.endswith(_GPU)


def _matches(wanted: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether labels meet one expression of a node selector."""
    value, words = labels.get(wanted["key"]), wanted.get("values") or []
    tests: dict[str, bool] = {
        "In": value in words,
        "NotIn": value not in words,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return tests.get(wanted["operator"], True)  # Gt and Lt: kube-scheduler decides


def is_borne(taint: Object, tolerations: Sequence[dict[str, Any]]) -> bool:
    """Tell whether one of the tolerations bears with the taint."""
    return any(
        each.get("effect") in (None, "", taint["effect"])
        and each.get("key") in (None, "", taint["key"])
        and (
            each.get("operator") == "Exists"
            or (each.get("key") and each.get("value", "") == taint.get("value", ""))
        )
        for each in tolerations
    )
