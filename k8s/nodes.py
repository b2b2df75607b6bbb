"""The kind and the market of a node, and the notice that it will be taken, by its labels. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .api import Object

NOTED = "edl.dev/machines"  # annotation of an EdlJob: the nodes that it has been on
UNKNOWN = "unknown"  # the kind of a node that tells none
ON_DEMAND, SPOT = "on-demand", "spot"
_KINDS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
CAPACITY = "karpenter.sh/capacity-type"
_SPOT = {  # labels that say it, and their words for it
    CAPACITY: "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",  # kops, and self-managed groups of EKS
}
# Taints that come minutes or seconds before a node goes: of Karpenter (now, and before its v1), of
# the cluster autoscaler, of AWS' termination handler, of GKE, of a node's own shutdown.
_NOTICES = {
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
}


def kind_of(node: Object) -> tuple[str, str]:
    """Return the kind of a node ("unknown": it tells none), and its market."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    kind = next((labels[key] for key in _KINDS if labels.get(key)), UNKNOWN)
    is_spot = any(labels.get(key) == value for key, value in _SPOT.items())
    return kind, SPOT if is_spot else ON_DEMAND


def notice_of(node: Object) -> str:
    """Return the taint that says that the node will be taken soon; "": there is none."""
    taints = (node.get("spec") or {}).get("taints") or []
    return next((str(each["key"]) for each in taints if each.get("key") in _NOTICES), "")


def noted(kinds: Mapping[str, tuple[str, str]]) -> str:
    """Return kinds and markets by node as the value of the annotation NOTED."""
    return json.dumps({name: list(kind) for name, kind in sorted(kinds.items())})


def read_noted(text: str | None) -> dict[str, tuple[str, str]]:
    """Return what `noted` was given; of what anybody else has written there, what makes sense."""
    try:
        values: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    pairs = values.items() if isinstance(values, dict) else ()
    return {
        name: (kind[0], kind[1])
        for name, kind in pairs
        if isinstance(kind, list) and len(kind) == 2 and all(isinstance(e, str) for e in kind)
    }


def is_ready(node: Object) -> bool:
    """Tell whether pods can be put on a node: it is ready, and not cordoned."""
    conditions = (node.get("status") or {}).get("conditions") or []
    is_well = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_well and not (node.get("spec") or {}).get("unschedulable")
