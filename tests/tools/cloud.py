"""A cloud that makes and takes nodes of a test's cluster, as a cluster autoscaler and Karpenter do.

Each placeholder that no node takes gets a process node of its own after `boot_s`, with the labels
that its affinity asks for. A node that has had no placeholder for `idle_s` is given back: it gets
the taint karpenter.sh/disrupted, its pods are deleted `notice_s` later, and then it is. `notice`
gives a node a notice by hand; `take` takes nodes away, without one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable

from tools.kube import Cluster
from tools.kube_api import UNREACHABLE, ApiError, Object, path_of

MERGE = "application/merge-patch+json"
TAINT = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
_MADE = "prockubelet/made=true"
_PLACEHOLDERS = "app.kubernetes.io/name=edl-placeholder"


class Cloud:
    """A cloud of one pool of nodes, until `close`. `history`: (s, nodes there) at each change."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        *,
        boot_s: float = 5.0,
        idle_s: float = 10.0,
        notice_s: float = 5.0,
        most: int = 8,
        labels: dict[str, str] | None = None,
    ) -> None:
        self._cluster, self._namespace, self.api = cluster, namespace, cluster.api
        self._boot_s, self._idle_s, self._notice_s, self._most = boot_s, idle_s, notice_s, most
        self._labels = labels or {}
        self._began = time.monotonic()
        self._coming: dict[str, tuple[float, Object]] = {}  # by placeholder: due, its pod
        self._idle: dict[str, float] = {}
        self._going: dict[str, float] = {}  # told so, until
        self._number = 0
        self.history: list[tuple[float, int]] = []
        self.is_empty = False  # nobody gets a node
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cloud")
        self._thread.start()

    def close(self) -> None:
        """End, and take all nodes away."""
        self._closed.set()
        self._thread.join()
        for name in self.nodes():
            self._delete(name)

    def nodes(self) -> dict[str, Object]:
        """Return the nodes that it has made, by name."""
        found = self.api.call("GET", path_of("nodes", labelSelector=_MADE))["items"]
        return {node["metadata"]["name"]: node for node in found}

    @property
    def is_going(self) -> bool:
        """Whether a node has a notice."""
        return bool(self._going)

    def notice(self, name: str) -> None:
        """Tell that a node will be taken; it is `notice_s` later."""
        self._taint(name)
        self._going[name] = time.monotonic() + self._notice_s

    def add(self, labels: dict[str, str]) -> str:
        """Make a node with these labels, whoever asked for it; return its name."""
        self._number += 1
        name = f"cloud-{self._number}"
        own = {"prockubelet/made": "true", "kubernetes.io/hostname": name}
        about = {"name": name, "labels": {**own, **self._labels, **labels}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": about}
        self.api.call("POST", path_of("nodes"), node)
        return name

    def take(self, names: Iterable[str]) -> None:
        """Take nodes away now, with all that runs there, and without a notice."""
        for name in names:
            self._delete(name)

    def _run(self) -> None:
        while not self._closed.wait(0.5):
            with contextlib.suppress(ApiError, *UNREACHABLE):  # it looks again
                self._look(time.monotonic())

    def _look(self, now: float) -> None:
        path = path_of("pods", self._namespace, labelSelector=_PLACEHOLDERS)
        pods = {pod["metadata"]["uid"]: pod for pod in self.api.call("GET", path)["items"]}
        nodes = self.nodes()
        if not self.history or self.history[-1][1] != len(nodes):
            self.history.append((now - self._began, len(nodes)))
        waiting = {uid: pod for uid, pod in pods.items() if _is_waiting(pod)}
        self._coming = {uid: each for uid, each in self._coming.items() if uid in waiting}
        for uid, pod in waiting.items():
            due, _ = self._coming.setdefault(uid, (now + self._boot_s, pod))
            if now >= due and not self.is_empty and len(nodes) < self._most:
                self._make(pod)
                self._coming[uid] = now + 60.0, pod  # it is there, and not yet taken
                nodes[f"new-{uid}"] = {}
        used = {pod["spec"].get("nodeName") for pod in pods.values()}
        for name in [name for name in nodes if not name.startswith("new-")]:
            since = self._idle.setdefault(name, now)
            if name in used:
                self._idle[name] = now
            elif now - since > self._idle_s and name not in self._going:
                self.notice(name)
        for name in [name for name, until in self._going.items() if now > until]:
            del self._going[name]
            if name in nodes:
                self._delete(name)

    def _make(self, pod: Object) -> None:
        affinity = pod["spec"]["affinity"].get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = (required.get("nodeSelectorTerms") or [{}])[0].get("matchExpressions") or []
        asked = {term["key"]: term["values"][0] for term in terms if term["operator"] == "In"}
        self.add(asked)

    def _taint(self, name: str) -> None:
        change = {"spec": {"taints": [TAINT]}}
        self.api.call("PATCH", path_of("nodes", name=name), change, content_type=MERGE)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(ApiError):
            self.api.call("DELETE", path_of("nodes", name=name))


def _is_waiting(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
