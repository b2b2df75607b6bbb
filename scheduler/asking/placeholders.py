"""Ask by pods that wait: a placeholder for each node that is wished, no two of them on one node.

A cluster autoscaler, or Karpenter, makes nodes for those that no node has room for, and takes none
away that a placeholder is on, as it cannot go anywhere else. A placeholder asks for next to
nothing, so it keeps no room from workers. AdaptDL asks in this way.
"""

from __future__ import annotations

import itertools
from typing import Any

from ...k8s import pods
from ...k8s.api import Api, Object
from ...k8s.connection import ApiError
from ...k8s.observe import takes_room
from ..cluster import Resources
from ..prices import MARKETS, ON_DEMAND, SPOT
from .fleet import Pool, Wish

IMAGE = "registry.k8s.io/pause:3.10"
TAKES = Resources(cpu=0.001, memory=2**20, pods=1)
_NAME = "edl-placeholder"
MARKET_LABEL = "edl.dev/market"
# Taints that clouds put on spot nodes, so that only who knows what that means comes there.
_SPOT_TAINTS = ("kubernetes.azure.com/scalesetpriority", "cloud.google.com/gke-spot")


class Placeholders:
    """Placeholder pods in the namespace of `api`, made of `image`, which is to do nothing."""

    takes = TAKES

    def __init__(self, api: Api, image: str = IMAGE) -> None:
        self._api = api
        self._image = image

    def ask(self, pool: Pool, wish: Wish, _now: float) -> str:
        """Keep as many placeholders as nodes are wished. Raises PeerError."""
        found, _ = self._api.list("Pod", f"app.kubernetes.io/name={_NAME}")
        alive = [each for each in found if not each["metadata"].get("deletionTimestamp")]
        for pod in [each for each in alive if _is_over(each, wish)]:
            self._delete(pod)  # another one is made in the next round
            alive.remove(pod)
        waiting = 0
        for market in MARKETS:
            mine = [e for e in alive if e["metadata"]["labels"].get(MARKET_LABEL) == market]
            self._keep(pool, market, wish.nodes.get(market, 0), mine, wish.busy)
            waiting += max(0, wish.missing(market))
        total = sum(wish.nodes.values())
        return f"{total} placeholders, {waiting} of them for nodes that are to come"

    def _keep(
        self, pool: Pool, market: str, wanted: int, found: list[Object], busy: frozenset[str]
    ) -> None:
        def order(pod: Object) -> tuple[bool, bool, str]:  # those that cost least to lose, first
            node = pod["spec"].get("nodeName")
            return node is not None, node in busy, pod["metadata"]["name"]

        for pod in sorted(found, key=order)[: max(0, len(found) - wanted)]:
            self._delete(pod)
        names = {pod["metadata"]["name"] for pod in found}
        free = (f"{_NAME}-{market}-{i}" for i in range(wanted + len(found)))
        new = (name for name in free if name not in names)
        for name in itertools.islice(new, max(0, wanted - len(found))):
            self._create(name, pod_template(pool, market, self._image))

    def _create(self, name: str, template: Object) -> None:
        about = {**template["metadata"], "name": name}
        try:
            self._api.create(
                "Pod", {"apiVersion": "v1", "kind": "Pod", **template, "metadata": about}
            )
        except ApiError as error:
            if error.status != 409:  # one of that name is just going
                raise

    def _delete(self, pod: Object) -> None:
        about = pod["metadata"]
        self._api.delete("Pod", about["name"], uid=about["uid"], grace_s=0)


def pod_template(pool: Pool, market: str, image: str = IMAGE) -> Object:
    """Make the template of a pod that has a node of a pool and market without others of its kind.

    It stands for one node: who makes nodes makes one for each.
    """
    terms = [
        {"key": key, "operator": "In", "values": [value]} for key, value in pool.labels.items()
    ]
    if pool.spot is not None:
        key, value = pool.spot
        operator = "In" if market == SPOT else "NotIn"
        terms.append({"key": key, "operator": operator, "values": [value]})
    affinity: dict[str, Any] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": _NAME}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    if terms:
        affinity["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": terms}]
            }
        }
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": affinity,
        "containers": [
            {
                "name": "placeholder",
                "image": image,
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        # That of the image, which is not root.
        "securityContext": pods.security_context(pods.ANY_USER, ""),
    }
    if market != ON_DEMAND:
        spec["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in _SPOT_TAINTS
        ]
    labels = {"app.kubernetes.io/name": _NAME, MARKET_LABEL: market}
    return {"metadata": {"labels": labels}, "spec": spec}


def _is_over(pod: Object, wish: Wish) -> bool:
    """Tell whether a placeholder has ended, or its node has, or will soon."""
    node = pod["spec"].get("nodeName")
    gone = node is not None and node not in wish.fleet.kinds.keys() - wish.fleet.notices.keys()
    return gone or not takes_room(pod)
