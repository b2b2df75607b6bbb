"""Scheduling gates of a pod: who keeps it from being scheduled, and what is to be done. Pure."""

from __future__ import annotations

from ..common.plain import plain
from .api import Object

_KUEUE = "kueue.x-k8s.io/"
_MOST = 300  # of the names of gates that are told


def held(pod: Object) -> str:
    """Say who holds a pod by gates, and what to do; "" where nobody does.

    An EdlJob's pods are made without gates: Kueue puts one into all pods that it believes to be its
    own, and admits them one by one.
    """
    gates = [str(each.get("name")) for each in (pod.get("spec") or {}).get("schedulingGates") or []]
    named = plain(", ".join(gates), _MOST)
    if any(each.startswith(_KUEUE) for each in gates):
        return (
            f"is held by Kueue (the scheduling gate {named}), which takes all pods of the "
            "namespace for its own (manageJobsWithoutQueueName, or a LocalQueue named default): "
            "leave the namespace out of managedJobsNamespaceSelector in Kueue's configuration, "
            "and delete the pod, which is made anew"
        )
    if not gates:
        return ""
    return f"is held by {named} (spec.schedulingGates), until whoever has put it removes it"
