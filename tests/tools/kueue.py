"""A small stand-in of Kueue: one queue with a quota, which admits, preempts and says why not.

It is made by what Kueue publishes of its Workloads (conditions, admission, spec.active), not by its
code; tests/k8s/test_kueue.py holds it to Kueue itself. As there, quota is reserved for a Workload
as a whole, by priority and then by age; one of higher priority has those of lower ones evicted, the
lowest and youngest first, no more than needed (of these, whoever need not go after the others did
is left); and what is evicted keeps its quota until its owner has given it back, here by deleting
it.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from edl.common.times import rfc3339
from edl.k8s.counting import requested

Object = dict[str, Any]
START = 1_800_000_000.0


class Kueue:
    """A LocalQueue and its ClusterQueue with withinClusterQueue: LowerPriority."""

    def __init__(self, quota: Mapping[str, float], queue: str = "q", flavor: str = "f") -> None:
        self.quota = dict(quota)
        self.queue = queue
        self._flavor = flavor
        self._needs: dict[str, dict[str, float]] = {}  # by uid

    def look(self, found: Iterable[Object], now: float) -> list[Object]:
        """Return the Workloads whose status changes, with their new status, after one turn."""
        before = [each for each in found if each["spec"].get("queueName") == self.queue]
        mine = [{**each, "status": copy.deepcopy(each.get("status") or {})} for each in before]
        for each in mine:
            if each["spec"].get("active") is False and holds(each):
                evict(each, "Deactivated", "The workload is deactivated", now)
        waiting = [each for each in mine if _is_pending(each)]
        for each in sorted(waiting, key=_rank):
            self._serve(each, mine, now)
        return [
            new
            for old, new in zip(before, mine, strict=True)
            if new["status"] != (old.get("status") or {})
        ]

    def used(self, found: Iterable[Object]) -> dict[str, float]:
        """Return the quota that is held."""
        total: dict[str, float] = defaultdict(float)
        for each in filter(holds, found):
            for name, amount in self.needs(each).items():
                total[name] += amount
        return total

    def needs(self, it: Object) -> dict[str, float]:
        """Return what a Workload asks for; it never changes."""
        uid = it["metadata"]["uid"]
        if uid not in self._needs:
            total: dict[str, float] = defaultdict(float)
            for each in it["spec"]["podSets"]:
                for name, amount in requested(each["template"]["spec"]).items():
                    total[name] += amount * each["count"]
            self._needs[uid] = total
        return self._needs[uid]

    def _fits(self, it: Object, others: Iterable[Object]) -> bool:
        used, more = self.used(others), self.needs(it)
        return all(used[name] + more.get(name, 0.0) <= most for name, most in self.quota.items())

    def _serve(self, it: Object, mine: list[Object], now: float) -> None:
        if self._fits(it, mine):
            self._admit(it, now)
            return
        said = f"couldn't assign flavors: insufficient unused quota in flavor {self._flavor}"
        _set(it, "QuotaReserved", "False", "Pending", said, now)
        held = [each for each in mine if holds(each)]
        left = [each for each in held if not true(each, "Evicted")]
        victims: list[Object] = []
        for each in sorted(left, key=_rank, reverse=True):
            lower = each["spec"]["priority"] < it["spec"]["priority"]
            if not lower or self._fits(it, [other for other in left if other not in victims]):
                break
            victims.append(each)
        if self._fits(it, [other for other in left if other not in victims]):
            for each in victims[-2::-1]:  # whoever need not go after the last one does, stays
                fewer = [other for other in victims if other is not each]
                if self._fits(it, [other for other in left if other not in fewer]):
                    victims = fewer
            for each in victims:
                evict(each, "Preempted", "Preempted to accommodate a workload", now)

    def _admit(self, it: Object, now: float) -> None:
        sets = [
            {"name": each["name"], "count": each["count"], "flavors": {"cpu": self._flavor}}
            for each in it["spec"]["podSets"]
        ]
        it["status"]["admission"] = {"clusterQueue": "cluster-queue", "podSetAssignments": sets}
        _set(it, "QuotaReserved", "True", "QuotaReserved", "Quota reserved", now)
        _set(it, "Admitted", "True", "Admitted", "The workload is admitted", now)


def evict(it: Object, reason: str, message: str, now: float) -> None:
    """Say that a Workload is evicted; it holds its quota all the same."""
    _set(it, "Evicted", "True", reason, message, now)


def holds(it: Object) -> bool:
    """Tell whether a Workload has quota; one that is deactivated has lost it."""
    is_active = it["spec"].get("active") is not False or not true(it, "Evicted")
    return true(it, "QuotaReserved") and not true(it, "Finished") and is_active


def true(it: Object, kind: str) -> bool:
    found = (it.get("status") or {}).get("conditions") or []
    return any((each["type"], each["status"]) == (kind, "True") for each in found)


def _is_pending(it: Object) -> bool:
    kinds = ("QuotaReserved", "Finished")
    return it["spec"].get("active") is not False and not any(true(it, kind) for kind in kinds)


def _rank(it: Object) -> tuple[int, str, str]:
    about = it["metadata"]
    return -it["spec"]["priority"], about["creationTimestamp"], about["name"]


def _set(it: Object, kind: str, status: str, reason: str, message: str, now: float) -> None:
    conditions = it.setdefault("status", {}).setdefault("conditions", [])
    old = next((each for each in conditions if each["type"] == kind), None)
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    if old is not None and all(old[name] == value for name, value in new.items()):
        return
    conditions[:] = [each for each in conditions if each["type"] != kind]
    conditions.append({**new, "lastTransitionTime": rfc3339(now)})


def crd(version: str) -> Object:
    """Return a small CustomResourceDefinition of Workloads, by what Kueue publishes of theirs."""
    text, number = {"type": "string"}, {"type": "integer", "format": "int32"}
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    template = {"type": "object", "properties": {"metadata": free, "spec": free}}
    name = {
        **text,
        "default": "main",
        "maxLength": 63,
        "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    }
    pod_set = {"name": name, "count": {**number, "minimum": 0}, "template": template}
    sets: Object = {
        "type": "array",
        "minItems": 1,
        "maxItems": 18,
        "items": {"type": "object", "properties": pod_set, "required": ["template"]},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    spec = {
        "type": "object",
        "properties": {
            "queueName": {**text, "maxLength": 253},
            "priority": number,
            "active": {"type": "boolean", "default": True},
            "podSets": sets,
        },
    }
    made = {"spec": spec, "status": free}
    schema = {"openAPIV3Schema": {"type": "object", "properties": made, "required": ["spec"]}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "annotations": {
                "api-approved.kubernetes.io": "unapproved, a test's own small copy of the schema"
            },
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "names": {"kind": "Workload", "listKind": "WorkloadList", "plural": "workloads"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": schema,
                    "subresources": {"status": {}},
                }
            ],
        },
    }
