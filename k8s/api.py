"""The objects of an API server: dicts in, dicts out. All others speak to it by way of this.

All that is asked for is idempotent, so that any request may be made again (connection.py): objects
are created under names of their own (409 says that it is there), and deleted by name and uid.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from ..common.errors import UsageError
from ..common.values import check_namespace
from .connection import CLIENT, PATIENCE_S, READ_S, ApiError, Connection, refusal
from .names import CONTAINER, GROUP, PLURAL, VERSION

Object = dict[str, Any]

PATHS = {
    "Pod": ("api/v1", "pods"),
    "Service": ("api/v1", "services"),
    "Secret": ("api/v1", "secrets"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("api/v1", "events"),
    "Node": ("api/v1", "nodes"),
    "Namespace": ("api/v1", "namespaces"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "PodTemplate": ("api/v1", "podtemplates"),
    "Job": ("apis/batch/v1", "jobs"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "SelfSubjectAccessReview": ("apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "LocalSubjectAccessReview": ("apis/authorization.k8s.io/v1", "localsubjectaccessreviews"),
    "PodMetrics": ("apis/metrics.k8s.io/v1beta1", "pods"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "ProvisioningRequest": ("apis/autoscaling.x-k8s.io/v1", "provisioningrequests"),
    "NodePool": ("apis/karpenter.sh/v1", "nodepools"),
    "EdlJob": (f"apis/{GROUP}/{VERSION}", PLURAL),
    "Workload": ("apis/kueue.x-k8s.io", "workloads"),  # and its version: `Api.kueue`
    "ResourceFlavor": ("apis/kueue.x-k8s.io", "resourceflavors"),
}
_CLUSTER_WIDE = {
    "Node",
    "NodePool",
    "Namespace",
    "PriorityClass",
    "CustomResourceDefinition",
    "SelfSubjectAccessReview",
    "ResourceFlavor",
}
_KUEUE = ("v1beta2", "v1beta1")  # versions of Kueue's API that are spoken here, the best first
_MERGE_PATCH = "application/merge-patch+json"
_PAGE = 500  # objects of one answer to a list, as kubectl asks for
OLDEST = (1, 29)  # of Kubernetes that is supported: rules in CEL are stable there
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def too_old(version: Object) -> str:
    """Say that what an API server says of itself (/version) is too old; "" where it is not.

    What names itself in another way is believed to be new.
    """
    text = str(version.get("gitVersion") or "")
    found = _VERSION.match(text)
    if found is None or (int(found[1]), int(found[2])) >= OLDEST:
        return ""
    oldest = ".".join(map(str, OLDEST))
    return f"This cluster is of Kubernetes {text}, and edl needs {oldest} or newer: update it"


class Api:
    """The objects of one cluster and one namespace ("": of all, to list and watch).

    Any thread may call; `close` ends the waiting of all.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self.connection = connection
        self.namespace = namespace
        self._kueue: list[str] = []  # its version, once it is known; of all namespaces

    @classmethod
    def connect(
        cls, namespace: str = "", patience_s: float = PATIENCE_S, client: str = CLIENT
    ) -> Api:
        """Connect to the cluster of this pod or of the kubeconfig; `namespace` "": the usual one.

        `patience_s` is of requests that say none; `client`: who asks. Raises UsageError where there
        is no cluster, and for a name that no namespace has.
        """
        check_namespace(namespace, "--namespace")
        connection, own = Connection.find(patience_s, client)
        return cls(connection, namespace or own)

    def inside(self, namespace: str) -> Api:
        """Return the same cluster by the same connections, in another namespace; "": in all."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def close(self) -> None:
        self.connection.close()

    # -- objects

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object, None where there is none of that name."""
        try:
            return self.connection.request("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, kind: str, selector: str = "", patience_s: float | None = None, name: str = ""
    ) -> tuple[list[Object], str]:
        """Return all objects of a kind, by label selector, and the version that they are of.

        `name`: those of this name, of all namespaces say; who may see no others may list these.
        """
        items: list[Object] = []
        query: dict[str, Any] = {
            "limit": _PAGE,
            **({"labelSelector": selector} if selector else {}),
            **({"fieldSelector": f"metadata.name={name}"} if name else {}),
        }
        while True:
            page = self.connection.request(
                "GET", self.path(kind), query=query, patience_s=patience_s
            )
            items += page["items"]
            rest = page["metadata"].get("continue")
            if not rest:
                return items, page["metadata"]["resourceVersion"]
            query["continue"] = rest

    def create(self, kind: str, body: Object, patience_s: float | None = None) -> Object:
        """Make an object; return it as it is then. Raises ApiError: 409 where it is there."""
        return self.connection.request("POST", self.path(kind), body=body, patience_s=patience_s)

    def patch(
        self,
        kind: str,
        name: str,
        body: Object,
        subresource: str = "",
        patience_s: float | None = None,
    ) -> Object:
        """Merge what `body` says into an object; return it as it is then."""
        path = self.path(kind, name) + (f"/{subresource}" if subresource else "")
        return self.connection.request(
            "PATCH", path, body=body, content_type=_MERGE_PATCH, patience_s=patience_s
        )

    def replace(self, kind: str, name: str, body: Object) -> Object:
        """Replace all of an object; return it as it is then.

        Raises ApiError: 409 where its resourceVersion is not the one in `body`.
        """
        return self.connection.request("PUT", self.path(kind, name), body=body)

    def delete(
        self,
        kind: str,
        name: str,
        *,
        grace_s: int | None = None,
        uid: str = "",
        policy: str = "Background",
        patience_s: float | None = None,
    ) -> bool:
        """Delete an object; return whether it was there (where `uid` is given: that one)."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self.connection.request(
                "DELETE", self.path(kind, name), body=body, patience_s=patience_s
            )
        except ApiError as error:
            if error.status == 404 or (error.status == 409 and uid):
                return False
            raise
        return True

    def evict(self, pod: str) -> bool:
        """Ask for a pod's end in order, as a drain of its node does; return whether it was there.

        Raises ApiError: 429 where a disruption budget forbids it now.
        """
        body = {"metadata": {"name": pod, "namespace": self.namespace}}
        try:
            path = self.path("Pod", pod) + "/eviction"
            self.connection.request("POST", path, body=body, patience_s=0.0)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def watch(self, kind: str, selector: str, version: str, timeout_s: float) -> Iterator[Object]:
        """Yield events ({"type", "object"}) after a resource version, bookmarks among them.

        Ends after `timeout_s`. Raises ApiError (410: too old, list again), Unreachable where the
        stream breaks.
        """
        query = {
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": int(timeout_s),
        }
        if selector:
            query["labelSelector"] = selector
        with self.connection.open(self.path(kind), query, timeout_s + READ_S) as answer:
            rest = b""
            for chunk in answer.pieces():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise refusal(event["object"].get("code", 500), event["object"])
                    yield event

    def log(
        self, pod: str, *, container: str = CONTAINER, follow: bool, tail: int | None = None
    ) -> Iterator[bytes]:
        """Yield what a pod's container has written, in pieces; `follow`: until it ends."""
        query: dict[str, Any] = {"container": container, **({"follow": "true"} if follow else {})}
        if tail is not None:
            query["tailLines"] = tail
        with self.connection.open(self.path("Pod", pod) + "/log", query, None) as answer:
            yield from answer.pieces()

    def through(self, pod: str, port: int, path: str, read_s: float) -> Iterator[bytes]:
        """Yield what a pod answers to a GET over HTTPS at this port, in pieces.

        Raises ApiError where it cannot be reached, Unreachable where it says nothing for `read_s`.
        """
        where = f"{self.path('Pod', f'https:{pod}:{port}')}/proxy/{path}"
        with self.connection.open(where, {}, read_s) as answer:
            yield from answer.pieces()

    def version(self) -> tuple[Object, str]:
        """Return what the server says of itself, and its clock (the header Date)."""
        with self.connection.open("/version", {}, READ_S) as answer:
            return answer.json(), answer.header("Date")

    def check_version(self) -> None:
        """Check that the cluster is not older than what is supported. Raises UsageError."""
        if said := too_old(self.connection.request("GET", "/version")):
            raise UsageError(f"{said}.")

    # -- where they are

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of an object, or of all objects of a kind."""
        root, plural = PATHS[kind]
        if kind in ("Workload", "ResourceFlavor"):
            root += f"/{self.kueue() or _KUEUE[0]}"
        everywhere = kind in _CLUSTER_WIDE or not self.namespace
        space = "" if everywhere else f"/namespaces/{self.namespace}"
        return f"/{root}{space}/{plural}" + (f"/{name}" if name else "")

    def kueue(self) -> str:
        """Return the version of Kueue's API to speak, "" where it has none; it is asked once."""
        if not self._kueue:
            found: Object = {"versions": []}
            try:
                found = self.connection.request("GET", "/apis/kueue.x-k8s.io")
            except ApiError as error:
                if error.status != 404:
                    raise
            served = {each["version"] for each in found["versions"]}
            self._kueue.append(next((each for each in _KUEUE if each in served), ""))
        return self._kueue[0]
