"""HTTP with an API server: who it is, one request and its answer, when it is asked again.

The official client finds the cluster (kubeconfig, a pod's service account and its renewal, TLS,
proxies); its typed objects are left alone: they change from version to version, cost a second to
import, and templates, patches and our own resource are dicts anyhow.

A request that met nobody, 429 or a 5xx is made again, as long as `patience_s`, after what
Retry-After says: all that we ask for is idempotent (api.py).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from ..common.errors import EdlError, PeerError, Unreachable, UsageError
from ..common.retry import Backoff, retry

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse

_CONNECT_S, READ_S = 5.0, 30.0
PATIENCE_S = 20.0
_BACKOFF = Backoff(0.2, 5.0)  # guesses
_AGAIN = {429, 500, 502, 503, 504}
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(PeerError):
    """The API server refuses. `status` is HTTP's, `reason` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the Kubernetes API refuses ({status} {reason}): {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Answer:
    """An answer that is read as it comes; to be closed, which `with` does."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        self._response = response

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._response.close()

    def header(self, name: str) -> str:
        """Return the value of a header, "" where there is none."""
        return self._response.headers.get(name) or ""

    def pieces(self) -> Iterator[bytes]:
        """Yield its body as it comes; then the connection is free.

        Raises Unreachable where it breaks off.
        """
        import urllib3

        try:
            while chunk := self._response.read1():
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"the Kubernetes API broke off: {error}") from error
        self._response.release_conn()

    def json(self) -> dict[str, Any]:
        """Return the object that its body is. Raises Unreachable where it breaks off."""
        try:
            return dict(json.loads(self.read()))
        except ValueError as error:  # half a body: not every server says how long it will be
            raise Unreachable("the Kubernetes API broke off: its answer is not whole") from error

    def read(self) -> bytes:
        """Return all of its body. Raises Unreachable where it breaks off."""
        return b"".join(self.pieces())


class Connection:
    """The way to one API server. Any thread may use it; `close` ends the waiting of all."""

    def __init__(self, configuration: Configuration, patience_s: float = PATIENCE_S) -> None:
        """Connect by what the official client knows; `patience_s` is of requests that say none."""
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = 16
        self._patience_s = patience_s
        self._configuration = configuration
        self._pool = RESTClientObject(configuration).pool_manager
        self._closed = threading.Event()

    @classmethod
    def find(cls, patience_s: float = PATIENCE_S) -> tuple[Self, str]:
        """Connect to the cluster of this pod or of the kubeconfig; return also the usual namespace.

        Raises UsageError where there is neither.
        """
        from kubernetes import config
        from kubernetes.client import Configuration

        configuration = Configuration()
        if (_SERVICE_ACCOUNT / "token").exists():
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException as error:
                raise UsageError(f"This pod's service account cannot be used: {error}.") from error
            own = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
            return cls(configuration, patience_s), own
        try:
            config.load_kube_config(client_configuration=configuration)
            _, active = config.list_kube_config_contexts()
        except config.ConfigException as error:
            raise UsageError(
                f"No Kubernetes cluster is known here: {error}. Name its kubeconfig in KUBECONFIG, "
                "or leave out --runtime kubernetes to run on this machine."
            ) from error
        own = active["context"].get("namespace") or "default"
        return cls(configuration, patience_s), own

    def close(self) -> None:
        """End all waiting, and close the connections that nobody uses."""
        self._closed.set()
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        patience_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the answer; what passes is tried again.

        Raises ApiError where it is refused, Unreachable where nobody answers for so long.
        """

        def attempt(_left_s: float) -> dict[str, Any]:
            return self._send(method, path, query, body, content_type, READ_S).json()

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

    def open(self, path: str, query: Mapping[str, Any], read_s: float | None) -> Answer:
        """Return an answer that is read as it comes; it is asked for once.

        Raises as `request` does.
        """
        try:
            return self._send("GET", path, query, None, "", read_s)
        except _Again as error:
            raise error.error from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: dict[str, Any] | None,
        content_type: str,
        read_s: float | None,
    ) -> Answer:
        """Return an answer of 200 to 299, not read yet."""
        import urllib3

        headers = {"Accept": "application/json"}
        settings: Mapping[str, Any] = self._configuration.auth_settings()
        for found in settings.values():  # asking has renewed a token that is old
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
        answer = Answer(response)
        if 200 <= response.status < 300:
            return answer
        refused = refusal(response.status, _said(answer.read()))
        if response.status in _AGAIN:
            raise _Again(refused, _seconds(answer.header("Retry-After")))
        raise refused


class _Again(EdlError):
    """A refusal to be asked again. `error`: the refusal that it is if it stays so."""

    def __init__(self, error: ApiError, after_s: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


def _why(error: BaseException) -> str:
    """Return the cause at the bottom, in one line: the errors over it name our own objects."""
    while (below := error.__cause__ or error.__context__ or getattr(error, "reason", None)) and (
        isinstance(below, BaseException)
    ):
        error = below
    return " ".join(str(error).split()) or type(error).__name__


def _said(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text.decode(errors="replace")[:500]}


def refusal(status: int, said: dict[str, Any]) -> ApiError:
    """Make the error of a status of HTTP and the body that came with it."""
    return ApiError(status, said.get("reason") or "", said.get("message") or "no reason is given")


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
