"""Drain whatever is on a node that will be taken soon, as soon as that is known.

The notice is a taint, of Karpenter, of a cluster autoscaler or of a cloud's own agent (k8s/nodes.py
has them). A pod that is evicted is told to go: a worker hands back at the exact record, a server
leaves a last snapshot, and their master has others made, for which the taint leaves no room there.
Masters may not see nodes, and need not: whoever shares out nodes may, and an eviction is the least
right that drains. The master's own pod is left to whoever takes the node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from ...common.errors import PeerError
from ...k8s import names
from ...k8s import nodes as told
from ...k8s.api import Api, Object
from ...k8s.connection import ApiError
from ...k8s.job_status import lives
from ...k8s.reflector import Change, Reflector
from ..place import Tell

log = logging.getLogger(__name__)

_ROLES = ("worker", "ps", "teacher")  # in this order
_SELECTOR = f"app.kubernetes.io/name=edl,{names.ROLE_LABEL} in ({','.join(_ROLES)})"
_AGAIN_S = 2.0  # while a node has a notice: who came late, or could not be evicted, is tried again


class Notices:
    """A watch of all nodes; `start` begins it. `api`: of one namespace, or ("") of all."""

    def __init__(self, api: Api, tell: Tell) -> None:
        self._api = api
        self._tell = tell
        self._notices: dict[str, str] = {}  # the taint, by node
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._nodes = Reflector(api, "Node", "", self._changed)
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._nodes.start()
        self._thread.start()

    def close(self) -> None:
        self._nodes.close()
        self._closed.set()
        self._wake.set()

    def _changed(self, change: Change) -> None:
        notice = "" if change.gone else told.notice_of(change.after)
        name = change.after["metadata"]["name"]
        if notice != self._notices.get(name, ""):
            notices = {**self._notices, name: notice}
            self._notices = {node: each for node, each in notices.items() if each}
            self._wake.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(_AGAIN_S if self._notices else None)
            self._wake.clear()
            notices = self._notices
            if notices and not self._closed.is_set():
                try:
                    self._drain(notices)
                except PeerError as error:
                    log.warning("a notice is not acted upon yet: %s", error)

    def _drain(self, notices: Mapping[str, str]) -> None:
        pods, _ = self._api.list("Pod", _SELECTOR)
        for role in _ROLES:
            for pod in pods:
                if _is_on(pod, notices) and pod["metadata"]["labels"][names.ROLE_LABEL] == role:
                    self._evict(pod, notices[pod["spec"]["nodeName"]])

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
    going = pod["metadata"].get("deletionTimestamp")
    return lives(pod) and not going and pod["spec"].get("nodeName") in nodes
