"""Drain whatever is on a node that will be taken soon, as soon as that is known.

The notice is a taint, of Karpenter, of a cluster autoscaler or of a cloud's own agent (k8s/nodes.py
has them). A pod that is evicted is told to go: a worker hands back at the exact record, a server
leaves a last snapshot, and their master has others made, for which the taint leaves no room there.
Masters may not see nodes, and need not: whoever shares out nodes may, and an eviction is the least
right that drains. The master's own pod is left to whoever takes the node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ...common.errors import PeerError
from ...k8s import names
from ...k8s import nodes as told
from ...k8s.api import Api, Object
from ...k8s.connection import ApiError
from ...k8s.reflector import Change, Reflector
from ..place import Tell

log = logging.getLogger(__name__)

_ROLES = ("worker", "ps")  # in this order
_SELECTOR = f"app.kubernetes.io/name=edl,{names.ROLE_LABEL} in ({','.join(_ROLES)})"
_RESYNC_S = 10.0  # who could not be evicted (a disruption budget) is tried again so soon


class Notices:
    """A watch of all nodes; `start` begins it. `api`: of one namespace, or ("") of all."""

    def __init__(self, api: Api, tell: Tell) -> None:
        self._api = api
        self._tell = tell
        self._nodes = Reflector(
            api,
            "Node",
            "",
            self._changed,
            lambda _asked, found: self._look(found.values()),
            resync_s=_RESYNC_S,
        )

    def start(self) -> None:
        self._nodes.start()

    def close(self) -> None:
        self._nodes.close()

    def _changed(self, change: Change) -> None:
        if not change.gone:
            self._look([change.after])

    def _look(self, nodes: Iterable[Object]) -> None:
        notices = {
            node["metadata"]["name"]: notice for node in nodes if (notice := told.notice_of(node))
        }
        if not notices:
            return
        try:
            pods, _ = self._api.list("Pod", _SELECTOR)
            for role in _ROLES:
                for pod in pods:
                    if _is_on(pod, notices) and pod["metadata"]["labels"][names.ROLE_LABEL] == role:
                        self._evict(pod, notices[pod["spec"]["nodeName"]])
        except PeerError as error:  # the next list finds them again
            log.warning("a notice is not acted upon: %s", error)

    def _evict(self, pod: Object, notice: str) -> None:
        name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            if self._api.inside(space).evict(name):
                self._tell(f"{name} leaves {pod['spec']['nodeName']}, which has {notice}")
        except ApiError as error:
            if error.status != 429:
                raise
            log.info("pod=%s -> stays for now: %s", name, error)


def _is_on(pod: Object, nodes: Mapping[str, str]) -> bool:
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    going = pod["metadata"].get("deletionTimestamp")
    return not ended and not going and pod["spec"].get("nodeName") in nodes
