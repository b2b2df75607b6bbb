"""The API server over HTTP: dicts in, dicts out. The only file that speaks to it.

The official client finds the cluster (kubeconfig, a pod's service account and its renewal, TLS,
proxies); its typed objects are left alone: they change from version to version, cost a second to
import, and templates, patches and our own resource are dicts anyhow.

A request that met nobody, 429 or a 5xx is made again, as long as `patience_s`, after what Retry-After
says; all that we ask for is idempotent: objects are created under names of their own (409 says that
it is there), and deleted by name and uid.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..common.errors import EdlError, PeerError, Unreachable, UsageError
from ..common.retry import Backoff, retry
from .names import GROUP, PLURAL, VERSION

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
    "Job": ("apis/batch/v1", "jobs"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "SelfSubjectAccessReview": ("apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "LocalSubjectAccessReview": ("apis/authorization.k8s.io/v1", "localsubjectaccessreviews"),
    "PodMetrics": ("apis/metrics.k8s.io/v1beta1", "pods"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "EdlJob": (f"apis/{GROUP}/{VERSION}", PLURAL),
}
_CLUSTER_WIDE = {
    "Node",
    "Namespace",
    "PriorityClass",
    "CustomResourceDefinition",
    "SelfSubjectAccessReview",
}
_MERGE_PATCH = "application/merge-patch+json"
_CONNECT_S, _READ_S = 5.0, 30.0
_PATIENCE_S = 20.0
_BACKOFF = Backoff(0.2, 5.0)  # guesses
_PAGE = 500  # objects of one answer to a list, as kubectl asks for
_VERSION = re.compile(r"v(\d+)\.(\d+)")
_AGAIN = {429, 500, 502, 503, 504}
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(PeerError):
    """The API server refuses. `status` is HTTP's, `reason` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the Kubernetes API refuses ({status} {reason}): {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Features:
    """What depends on a cluster's age."""

    grpc_probes: bool = True  # kubelets ask a health service: since 1.24, without a switch
    budgets: str = "v1"  # version of policy/..., since 1.21; 1.25 has left older ones alone


NEWEST = Features()


class Api:
    """One cluster, one namespace ("": all, to list and watch). Any thread may call; `close` ends the
    waiting of all."""

    def __init__(self, configuration: Any, namespace: str, patience_s: float = _PATIENCE_S) -> None:
        """`configuration` is the official client's; `patience_s` is of requests that say none."""
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = 16
        self.namespace = namespace
        self._patience_s = patience_s
        self._configuration = configuration
        self._pool = RESTClientObject(configuration).pool_manager
        self._closed = threading.Event()
        self._features: list[Features] = []  # once they are known; of all namespaces

    @classmethod
    def connect(cls, namespace: str = "", patience_s: float = _PATIENCE_S) -> Api:
        """The cluster of this pod, or of the kubeconfig. Raises UsageError where there is neither."""
        from kubernetes import config
        from kubernetes.client import Configuration

        configuration = Configuration()
        if (_SERVICE_ACCOUNT / "token").exists():
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException as error:
                raise UsageError(f"This pod's service account cannot be used: {error}.") from error
            own = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
            return cls(configuration, namespace or own, patience_s)
        try:
            config.load_kube_config(client_configuration=configuration)
            _, active = config.list_kube_config_contexts()
        except config.ConfigException as error:
            raise UsageError(
                f"No Kubernetes cluster is known here: {error}. Name its kubeconfig in KUBECONFIG, "
                "or leave out --runtime kubernetes to run on this machine."
            ) from error
        own = active["context"].get("namespace") or "default"
        return cls(configuration, namespace or own, patience_s)

    def inside(self, namespace: str) -> Api:
        """The same cluster by the same connections, in another namespace; "": in all of them."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def close(self) -> None:
        self._closed.set()
        self._pool.clear()

    # -- objects

    def get(self, kind: str, name: str) -> Object | None:
        """None where there is none."""
        try:
            return self.request("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, kind: str, selector: str = "", patience_s: float | None = None
    ) -> tuple[list[Object], str]:
        """Return all of them, by label selector, and the resource version that they are of."""
        items: list[Object] = []
        query: dict[str, Any] = {
            "limit": _PAGE,
            **({"labelSelector": selector} if selector else {}),
        }
        while True:
            page = self.request("GET", self.path(kind), query=query, patience_s=patience_s)
            items += page["items"]
            rest = page["metadata"].get("continue")
            if not rest:
                return items, page["metadata"]["resourceVersion"]
            query["continue"] = rest

    def create(self, kind: str, body: Object, patience_s: float | None = None) -> Object:
        """Raises ApiError: 409 where one of that name is there."""
        return self.request("POST", self.path(kind), body=body, patience_s=patience_s)

    def patch(
        self,
        kind: str,
        name: str,
        body: Object,
        subresource: str = "",
        patience_s: float | None = None,
    ) -> Object:
        """Merge what `body` says into it."""
        path = self.path(kind, name) + (f"/{subresource}" if subresource else "")
        return self.request(
            "PATCH", path, body=body, content_type=_MERGE_PATCH, patience_s=patience_s
        )

    def replace(self, kind: str, name: str, body: Object) -> Object:
        """Replace all of it; ApiError 409 where its resourceVersion is not the one in `body`."""
        return self.request("PUT", self.path(kind, name), body=body)

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
        """Delete it; return whether it was there (and, where `uid` is given, was that one)."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", self.path(kind, name), body=body, patience_s=patience_s)
        except ApiError as error:
            if error.status == 404 or (error.status == 409 and uid):
                return False
            raise
        return True

    def watch(self, kind: str, selector: str, version: str, timeout_s: float) -> Iterator[Object]:
        """Events ({"type", "object"}) after a resource version, bookmarks among them.

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
        response = self._open(self.path(kind), query, timeout_s + _READ_S)
        try:
            rest = b""
            for chunk in self._stream(response):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code", 500), event["object"])
                    yield event
        finally:
            response.close()

    def log(self, pod: str, *, follow: bool, tail: int | None = None) -> Iterator[bytes]:
        """Yield what a pod's container has written, in pieces; `follow`: until it ends."""
        query: dict[str, Any] = {"follow": "true"} if follow else {}
        if tail is not None:
            query["tailLines"] = tail
        response = self._open(self.path("Pod", pod) + "/log", query, None)
        try:
            yield from self._stream(response)
        finally:
            response.close()

    def version(self) -> tuple[Object, str]:
        """Return what the server says of itself, and its clock (the header Date)."""
        response = self._open("/version", {}, _READ_S)
        return json.loads(b"".join(self._stream(response))), response.headers.get("Date") or ""

    # -- HTTP

    def path(self, kind: str, name: str = "") -> str:
        root, plural = PATHS[kind]
        if kind == "PodDisruptionBudget":
            root = f"apis/policy/{self.features().budgets}"
        everywhere = kind in _CLUSTER_WIDE or not self.namespace
        space = "" if everywhere else f"/namespaces/{self.namespace}"
        return f"/{root}{space}/{plural}" + (f"/{name}" if name else "")

    def features(self) -> Features:
        """Asked once."""
        if not self._features:
            found = _VERSION.match(self.request("GET", "/version")["gitVersion"])
            probes = found is None or tuple(map(int, found.groups())) >= (1, 24)
            self._features.append(Features(probes, self._budgets()))
        return self._features[0]

    def _budgets(self) -> str:
        try:
            self.request("GET", "/apis/policy/v1")
        except ApiError as error:
            if error.status != 404:
                raise
            return "v1beta1"
        return "v1"

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        patience_s: float | None = None,
    ) -> Object:
        """Return the answer; what passes is tried again.

        Raises ApiError where it is refused, Unreachable where nobody answers for so long.
        """

        def attempt(left_s: float) -> Object:
            response = self._send(method, path, query, body, content_type, _READ_S)
            return dict(json.loads(b"".join(self._stream(response))))

        try:
            return retry(
                attempt,
                _BACKOFF,
                self._patience_s if patience_s is None else patience_s,
                on=(_Again, Unreachable),
                wait=self._closed.wait,
            )
        except _Again as error:
            raise error.error from error

    def _open(self, path: str, query: Mapping[str, Any], read_s: float | None) -> Any:
        """A response that is read as it comes."""
        try:
            return self._send("GET", path, query, None, "", read_s)
        except _Again as error:
            raise error.error from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Object | None,
        content_type: str,
        read_s: float | None,
    ) -> Any:
        """A response of 200 to 299, not read yet."""
        import urllib3

        headers = {"Accept": "application/json"}
        for found in self._configuration.auth_settings().values():  # renews a token that is old
            if found.get("value"):
                headers[found["key"]] = found["value"]
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            response = self._pool.request(
                method,
                self._configuration.host + path + (f"?{urlencode(query)}" if query else ""),
                body=json.dumps(body).encode() if body is not None else None,
                headers=headers,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
                retries=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(
                f"the Kubernetes API at {self._configuration.host} does not answer: {_why(error)}"
            ) from error
        if 200 <= response.status < 300:
            return response
        text = b"".join(self._stream(response))
        refusal = _refusal(response.status, _said(text))
        if response.status in _AGAIN:
            raise _Again(refusal, _seconds(response.headers.get("Retry-After", "")))
        raise refusal

    def _stream(self, response: Any) -> Iterator[bytes]:
        """Yield its body as it comes; then the connection is free."""
        import urllib3

        try:
            while chunk := response.read1():
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"the Kubernetes API broke off: {error}") from error
        response.release_conn()


class _Again(EdlError):
    """To be asked again. `error`: what it is if it stays so."""

    def __init__(self, error: ApiError, after_s: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


def _why(error: BaseException) -> str:
    """The cause at the bottom, in one line: what lies over it names our own objects."""
    while (below := error.__cause__ or error.__context__ or getattr(error, "reason", None)) and (
        isinstance(below, BaseException)
    ):
        error = below
    return " ".join(str(error).split()) or type(error).__name__


def _said(text: bytes) -> Object:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text.decode(errors="replace")[:500]}


def _refusal(status: int, said: Object) -> ApiError:
    return ApiError(status, said.get("reason") or "", said.get("message") or "no reason is given")


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
