"""Requests to the API server of a test's cluster, and the paths of its resources."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Object = dict[str, Any]  # as the API has it
UNREACHABLE = (OSError, http.client.HTTPException)
RETRY_S = 0.1  # between two tries while the API server is away

GROUPS = {
    **dict.fromkeys(("nodes", "namespaces", "persistentvolumes"), "api/v1"),
    **dict.fromkeys(("pods", "events", "services", "endpoints", "configmaps"), "api/v1"),
    **dict.fromkeys(("secrets", "serviceaccounts", "persistentvolumeclaims"), "api/v1"),
    "resourcequotas": "api/v1",
    **dict.fromkeys(("deployments", "replicasets"), "apis/apps/v1"),
    "jobs": "apis/batch/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
    "customresourcedefinitions": "apis/apiextensions.k8s.io/v1",
    "edljobs": "apis/edl.dev/v1alpha1",
}


class ApiError(Exception):
    """An answer of the API server other than expected; `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class Api:
    """Requests without retries, so that a test sees what there is to see."""

    def __init__(self, url: str, *, ca: Path, token: str) -> None:
        self._url = urllib.parse.urlparse(url)
        self._context = ssl.create_default_context(cafile=ca)
        self._token = token

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 30.0,
    ) -> Object:
        found: Object = json.loads(self.text(method, path, body, content_type, timeout_s))
        return found

    def text(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        timeout_s: float = 30.0,
    ) -> str:
        with self._request(method, path, body, content_type, timeout_s) as (_, response):
            return response.read().decode(errors="replace")

    def lines(self, path: str, *, within_s: float) -> Iterator[bytes]:
        """Yield a stream's lines until it ends. Raises TimeoutError where that takes longer."""
        deadline = time.monotonic() + within_s
        with self._request("GET", path, None, "", within_s) as (connection, response):
            while line := response.readline():
                yield line
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise TimeoutError(f"{path} goes on after {within_s} s")
                if connection.sock is not None:  # None: all of it has been received
                    connection.sock.settimeout(left_s)

    def watch(self, path: str, version: str, *, within_s: float) -> Iterator[Object]:
        """Yield events since `version`. ApiError(410) where it is too old, however that is told."""
        mark = "&" if "?" in path else "?"
        seconds = max(1, int(within_s))
        query = f"{mark}watch=1&resourceVersion={version}&timeoutSeconds={seconds}"
        for line in self.lines(path + query, within_s=within_s):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ApiError(event["object"]["code"], event["object"].get("message", ""))
            yield event

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: Object | None, content_type: str, timeout_s: float
    ) -> Iterator[tuple[http.client.HTTPSConnection, http.client.HTTPResponse]]:
        host, port = self._url.hostname or "", self._url.port
        connection = http.client.HTTPSConnection(
            host, port, context=self._context, timeout=timeout_s
        )
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise ApiError(response.status, response.read().decode(errors="replace")[:1000])
            yield connection, response
        finally:
            connection.close()


def path_of(resource: str, namespace: str = "", name: str = "", **query: str) -> str:
    parts = [GROUPS[resource], *(("namespaces", namespace) if namespace else ()), resource, name]
    path = "/" + "/".join(part for part in parts if part)
    query = {key: value for key, value in query.items() if value}
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path
