"""Ask by a Karpenter NodePool: its limit is what the wished nodes have, and pods bring them about.

Karpenter makes nodes for pods that wait, so there are placeholders here, too; the limit keeps it
from making more than pay, whatever other pods wait for. The NodePool is the user's: all but its
`spec.limits.cpu` is left as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...common.errors import UsageError
from ...k8s.api import Api
from .fleet import Pool, Wish
from .placeholders import IMAGE, TAKES, Placeholders

LABEL = "karpenter.sh/nodepool"


class NodePool:
    """The NodePool of this name, with placeholders in the namespace of `api`."""

    takes = TAKES

    def __init__(self, api: Api, name: str, image: str = IMAGE) -> None:
        self._api = api
        self._name = name
        self._pods = Placeholders(api, image)

    def ask(self, pool: Pool, wish: Wish, now: float) -> str:
        """Set the limit, and keep the placeholders.

        Raises PeerError, and UsageError where there is no such NodePool.
        """
        found = self._api.get("NodePool", self._name)
        if found is None:
            raise UsageError(f"There is no NodePool {self._name!r}: make one, or name another.")
        total = sum(wish.nodes.values())
        cores = total * math.ceil(pool.node.cpu)  # what a node has is a little more than pods get
        limits = found["spec"].get("limits") or {}
        if str(limits.get("cpu", "")) != str(cores):
            change = {"spec": {"limits": {"cpu": str(cores)}}}
            self._api.patch("NodePool", self._name, change)
        labels = {**pool.labels, LABEL: self._name}
        said = self._pods.ask(replace(pool, labels=labels), wish, now)
        return f"the NodePool {self._name} is limited to {cores} cores; {said}"
