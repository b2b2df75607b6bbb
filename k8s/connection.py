"""HTTP with an API server: who it is, one request and its answer, when it is asked again.

The official client finds the cluster (kubeconfig, a pod's service account and its renewal, TLS,
proxies); its typed objects are left alone: they change from version to version, cost a second to
import, and templates, patches and our own resource are dicts anyhow.

A request that met nobody, 429 or a 5xx is made again, as long as `patience_s`, after what
Retry-After says: all that we ask for is idempotent (api.py).

Credentials end: a token in a pod or a kubeconfig is renewed by somebody else, and revoked. Where
they are refused (401), kubeconfig or service account are read anew, and the request is made once
more. Refused again it raises Refused, with which a command ends at once; whoever runs on
(controller, scheduler, master, dashboard) is told by `on_end` when that has lasted for REFUSED_S,
and ends.

Each component has a name: that of its requests (User-Agent), and of the fields that it writes
(fieldManager), so that an audit log and a conflict of two managers say who it was.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from .. import __version__
from ..common.errors import EdlError, PeerError, Unreachable, UsageError
from ..common.retry import Backoff, retry
from . import kubeconfig

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse

log = logging.getLogger(__name__)

_CONNECT_S, READ_S = 5.0, 30.0
PATIENCE_S = 20.0
_BACKOFF = Backoff(0.2, 5.0)  # guesses
_AGAIN = {429, 500, 502, 503, 504}
_REFUSED = 401
REFUSED_S = 60.0  # credentials that were refused for so long will not be taken any more: a guess
_ANEW_S = 5.0  # until credentials that were read anew are so again: a plugin may take seconds
CLIENT = "edl"  # the command line; others are edl-controller, edl-scheduler, edl-master
_WEBHOOK = re.compile(r'failed calling webhook "([^"]+)": (?:failed to call webhook: )?(.*)')
_WRITES = ("POST", "PUT", "PATCH")
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(PeerError):
    """The API server refuses. `status` is HTTP's, `reason` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the Kubernetes API refuses ({status} {reason}): {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Refused(ApiError):
    """The API server does not take our credentials, those read anew neither (401)."""

    def __init__(self, host: str, whose: str) -> None:
        super().__init__(_REFUSED, "Unauthorized", f"it does not take the credentials of {whose}")
        said = (
            f"The Kubernetes API at {host} refuses the credentials of {whose} (401 Unauthorized), "
            "also read anew: they have ended, or are another cluster's. Log in to the cluster "
            "again, or name another kubeconfig in KUBECONFIG; a pod whose account was made anew "
            "must be started again."
        )
        self.args = (said,)


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

    def __init__(
        self,
        configuration: Configuration,
        patience_s: float = PATIENCE_S,
        client: str = CLIENT,
        anew: Callable[[], Configuration] | None = None,
    ) -> None:
        """Connect by what the official client knows; `patience_s` is of requests that say none.

        `client`: who asks. `anew` reads the configuration again, where credentials are refused.
        """
        self._patience_s = patience_s
        self._client = client
        self._anew = anew
        self.on_end: Callable[[Refused], object] | None = None  # called once, by its own thread
        self._whose = "this process"
        self._way = _Way(configuration)
        self._lock = threading.Lock()  # of the way, and of:
        self._read = -_ANEW_S  # when the credentials were read anew last
        self._refused: float | None = None  # since when they are refused
        self._closed = threading.Event()

    @classmethod
    def find(cls, patience_s: float = PATIENCE_S, client: str = CLIENT) -> tuple[Self, str]:
        """Connect to the cluster of this pod or of the kubeconfig; return also the usual namespace.

        Raises UsageError where there is neither, or it cannot be used.
        """
        in_pod = (_SERVICE_ACCOUNT / "token").exists()
        read = _of_pod if in_pod else kubeconfig.load
        configuration, own = read()
        made = cls(configuration, patience_s, client, lambda: read()[0])
        made._whose = "this pod's service account" if in_pod else kubeconfig.said()
        return made, own

    def close(self) -> None:
        """End all waiting, and close the connections that nobody uses."""
        self._closed.set()
        self._way.pool.clear()

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
        query = dict(query or {})
        if method in _WRITES:
            query["fieldManager"] = self._client
        path += f"?{urlencode(query)}" if query else ""
        headers = {"Accept": "application/json", "User-Agent": f"{self._client}/{__version__}"}
        if body is not None:
            headers["Content-Type"] = content_type
        data = json.dumps(body).encode() if body is not None else None
        way = self._way
        response = way.ask(method, path, data, headers, read_s)
        if response.status == _REFUSED and (renewed := self._renewed(way)) is not way:
            response.drain_conn()
            way = renewed
            response = way.ask(method, path, data, headers, read_s)
        answer = Answer(response)
        if response.status != _REFUSED:
            self._refused = None
        if 200 <= response.status < 300:
            return answer
        said = _said(answer.read())
        if response.status == _REFUSED:
            raise self._refusal(way)
        refused = refusal(response.status, said)
        if response.status in _AGAIN:
            raise _Again(refused, _seconds(answer.header("Retry-After")))
        raise refused

    def _renewed(self, refused: _Way) -> _Way:
        """Return the way by credentials read anew; that which was refused where there are none."""
        with self._lock:
            if self._way is not refused or self._anew is None:
                return self._way  # another thread has read them
            if time.monotonic() - self._read < _ANEW_S:
                return refused
            self._read = time.monotonic()
            try:
                self._way = _Way(self._anew())
            except (UsageError, OSError, ValueError) as error:  # it is being written, or is gone
                log.warning("the credentials cannot be read anew: %s", error)
            return self._way

    def _refusal(self, way: _Way) -> Refused:
        with self._lock:
            now = time.monotonic()
            self._refused = now if self._refused is None else self._refused
            refused = Refused(way.host, self._whose)
            if self.on_end is not None and now - self._refused >= REFUSED_S:
                # its own thread: it may wait for the end of whoever asked just now
                threading.Thread(target=self.on_end, args=(refused,), daemon=True).start()
                self.on_end = None
            return refused


class _Way:
    """One configuration, and the connections that are made by it."""

    def __init__(self, configuration: Configuration) -> None:
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = 16
        self._configuration = configuration
        self.pool = RESTClientObject(configuration).pool_manager
        self.host = str(configuration.host)

    def ask(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        read_s: float | None,
    ) -> BaseHTTPResponse:
        """Return the answer, whatever it is, not read yet. Raises Unreachable."""
        import urllib3

        settings: Mapping[str, Any] = self._configuration.auth_settings()
        own = {  # asking has renewed a token that is old
            found["key"]: found["value"] for found in settings.values() if found.get("value")
        }
        try:
            response: BaseHTTPResponse = self.pool.request(
                method,
                self.host + path,
                body=data,
                headers={**headers, **own},
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
                retries=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(
                f"the Kubernetes API at {self.host} does not answer: {_why(error)}"
            ) from error
        return response


def _of_pod() -> tuple[Configuration, str]:
    """Return the configuration of this pod's service account, and its namespace."""
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
        own = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    except (config.ConfigException, OSError) as error:
        raise UsageError(f"This pod's service account cannot be used: {error}.") from error
    return configuration, own


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
    message = _cause(str(said.get("message") or "no reason is given"))
    return ApiError(status, said.get("reason") or "", message)


def _cause(message: str) -> str:
    """Return a message with what refused first: who reads its beginning alone knows that."""
    message = " ".join(message.removeprefix("Internal error occurred: ").split())
    if found := _WEBHOOK.fullmatch(message):
        return f"the webhook {found[1]} cannot be asked: {found[2]}"
    return message


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
