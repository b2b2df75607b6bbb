"""KServe's v2 protocol over HTTP/1.1, as a plain ASGI application.

    GET  /v2                                            what server this is
    GET  /v2/health/live, /v2/health/ready              200, or 503
    GET  /v2/models/NAME[/versions/V]                   metadata
    GET  /v2/models/NAME[/versions/V]/ready             200, or 503
    GET  /v2/models/NAME[/versions/V]/config            as Triton tells it, and so the following
    GET  /v2/models/stats, .../NAME[/versions/V]/stats  what was asked and how long it took
    POST /v2/repository/index                           the versions of all models
    POST /v2/models/NAME[/versions/V]/infer             an answer
    GET  /metrics                                       Prometheus

An error is {"error": "..."}. With a token all but health and metrics want `Authorization: Bearer`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...common import finite, foreign
from ..repository import Repository
from . import answers, compression, tensors, unserved
from .asking import Asking
from .refused import Refused, Why

Scope = Mapping[str, Any]
Headers = Iterable[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_JSON_NBYTES = b"inference-header-content-length"
_JSON = [(b"content-type", b"application/json")]
_OCTETS = b"application/octet-stream"
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_FEW_NBYTES = 1 << 16  # of what is asked about the repository


class _HungUp(Exception):
    """The client that has asked is gone."""


@dataclass(frozen=True)
class Limits:
    """The limits of a request: a body of so many bytes, within so many seconds.

    A body that is compressed has as many at most once it is unpacked, too.
    """

    body_nbytes: int = 64 << 20
    body_s: float = 30.0


class _Told(NamedTuple):
    """The sizes and codings of a request and its answer, as the request's header has them."""

    nbytes: int = 0  # 0: it does not say
    json_nbytes: str = ""
    encoding: str = ""  # "": none
    accepts: str = ""


class App:
    """The application, of one event loop."""

    def __init__(
        self,
        repository: Repository,
        asking: Asking,
        *,
        token: str = "",
        limits: Limits | None = None,
    ) -> None:
        """`token` "": anybody may ask."""
        self._repository, self._asking = repository, asking
        self._token = f"Bearer {token}".encode() if token else b""
        self._limits = limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not served here")
        try:
            await self._answer(scope, receive, send)
        except Refused as error:
            await _say(send, error.why.status, {"error": str(error)}, _closing(error))
        except _HungUp:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        method: str = scope["method"]
        if path == "/v2/models/stats" and "stats" not in self._repository.names:
            self._check_token(scope["headers"])
            _must_be(method, "GET", path)
            await _say(send, 200, self._asking.statistics())
        elif path.startswith("/v2/models/"):
            self._check_token(scope["headers"])
            name, version, verb = _named(path)
            if verb == "infer":
                _must_be(method, "POST", path)
                await self._infer(scope["headers"], receive, send, name, version)
                return
            _must_be(method, "GET", path)
            if verb == "ready":
                await _say_ready(send, self._asking.unready(name, version), {"name": name})
            else:
                await _say(send, 200, self._of_model[verb](self._asking, name, version))
        elif path == "/v2/repository/index":
            self._check_token(scope["headers"])
            _must_be(method, "POST", path)
            await self._index(receive, send)
        else:
            await self._tell(path, method, scope["headers"], send)

    _of_model: Mapping[str, Callable[[Asking, str, str], dict[str, Any]]] = {
        "": Asking.model,
        "config": Asking.config,
        "stats": Asking.statistics,
    }

    async def _tell(self, path: str, method: str, headers: Headers, send: Send) -> None:
        """Answer what is asked of the server itself."""
        known = {"/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/metrics"}
        if path not in known:
            unserved.check_path(path)
            raise Refused(
                Why.UNKNOWN, f"there is nothing at {path[:200]}: models are at /v2/models/NAME"
            )
        _must_be(method, "GET", path)
        if path == "/v2/health/live":
            await _say(send, 200, {"live": True})
        elif path == "/v2/health/ready":
            await _say_ready(send, self._repository.unready(), {})
        elif path == "/metrics":
            from prometheus_client import generate_latest

            text = generate_latest(self._repository.metrics.registry)
            await _send(send, 200, [(b"content-type", _METRICS_TYPE)], text)
        else:
            self._check_token(headers)
            await _say(send, 200, self._asking.server())

    async def _index(self, receive: Receive, send: Send) -> None:
        body = await self._body(receive, _FEW_NBYTES)
        try:
            asked = foreign.parse(body or b"{}")
            foreign.must_be(asked, dict)
        except ValueError as error:
            raise Refused(
                Why.INVALID, f"the request is no JSON of the protocol: {error}"
            ) from error
        await _say(send, 200, self._asking.index(asked.get("ready") is True))

    async def _infer(
        self, headers: Headers, receive: Receive, send: Send, name: str, version: str
    ) -> None:
        given = _told(headers)
        most = self._limits.body_nbytes
        if given.nbytes > most:
            raise _too_large(str(given.nbytes), most)
        body = await self._body(receive, most)
        if given.encoding:
            body = await asyncio.to_thread(compression.unpacked, body, given.encoding, most)
        question, answer, version = await self._asking.infer(
            name,
            version,
            lambda inputs, outputs: tensors.from_http(body, given.json_nbytes, inputs, outputs),
            large=len(body) > tensors.LARGE_NBYTES,
        )
        told = answer, question, name, version
        if answers.is_large(answer):
            head, bodies = await asyncio.to_thread(answers.as_http, *told)
        else:
            head, bodies = answers.as_http(*told)
        lines = [*_JSON]
        if bodies:
            lines = [(b"content-type", _OCTETS), (_JSON_NBYTES, b"%d" % len(head))]
        whole = b"".join((head, *bodies))
        encoding = compression.chosen(given.accepts)
        if encoding and len(whole) >= compression.WORTH_NBYTES:
            whole = await asyncio.to_thread(compression.packed, whole, encoding)
            lines.append((b"content-encoding", encoding.encode()))
        await _send(send, 200, lines, whole)

    async def _body(self, receive: Receive, most: int) -> bytes:
        """Return a request's body. Raises Refused where it is too large or comes too slowly."""
        try:
            async with asyncio.timeout(self._limits.body_s):
                message = await self._more(receive)
                if not message.get("more_body", False) and len(message.get("body", b"")) <= most:
                    whole: bytes = message.get("body", b"")
                    return whole
                found = bytearray(message.get("body", b""))
                while message.get("more_body", False) and len(found) <= most:
                    message = await self._more(receive)
                    found += message.get("body", b"")
        except TimeoutError as error:
            raise Refused(
                Why.SLOW, f"the request was not there within {self._limits.body_s:g} s"
            ) from error
        if len(found) > most:
            raise _too_large(f"more than {most}", most)
        return bytes(found)

    async def _more(self, receive: Receive) -> Mapping[str, Any]:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        return message

    def _check_token(self, headers: Headers) -> None:
        if not self._token:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        if not hmac.compare_digest(given, self._token):
            raise Refused(
                Why.NO_TOKEN, "the token is missing or wrong: send Authorization: Bearer TOKEN"
            )


def _named(path: str) -> tuple[str, str, str]:
    """Return the model, the version and the verb of a path. Raises Refused."""
    verbs = ("infer", "ready", "config", "stats")
    match path.split("/")[3:]:
        case [name]:
            return name, "", ""
        case [name, verb] if verb in verbs:
            return name, "", verb
        case [name, "versions", version]:
            return name, version, ""
        case [name, "versions", version, verb] if verb in verbs:
            return name, version, verb
        case [_, "versions", _, verb, *_] | [_, verb, *_]:
            unserved.check_verb(verb)
    raise Refused(
        Why.UNKNOWN,
        f"there is nothing at {path[:200]}: of a model there are "
        f"/v2/models/NAME[/versions/VERSION][/{' | /'.join(verbs)}]",
    )


def _must_be(method: str, wanted: str, path: str) -> None:
    if method != wanted and (method, wanted) != ("HEAD", "GET"):
        raise Refused(Why.NO_SUCH_METHOD, f"{path[:200]} is asked by {wanted}, not {method[:20]}")


def _too_large(said: str, most: int) -> Refused:
    return Refused(
        Why.TOO_LARGE,
        f"the request has {said} bytes, and {most} are taken (--max_body_mib)",
    )


def _told(headers: Headers) -> _Told:
    """Return what a header says of bodies. Raises Refused for an encoding that is not known."""
    nbytes, json_nbytes, encodings, accepts = 0, "", "", ""
    for name, value in headers:
        if name == b"content-length":
            nbytes = int(value) if value.isdigit() else 0
        elif name == _JSON_NBYTES:
            json_nbytes = value.decode("latin-1") or "?"
        elif name == b"content-encoding":
            encodings += f",{value.decode('latin-1')}"
        elif name == b"accept-encoding":
            accepts += f",{value.decode('latin-1')}"
    return _Told(nbytes, json_nbytes, compression.known(encodings[1:]), accepts[1:])


def _closing(error: Refused) -> list[tuple[bytes, bytes]]:
    """Return a header that ends the connection, on which the rest of a body may still come."""
    return [(b"connection", b"close")] if error.why in (Why.TOO_LARGE, Why.SLOW) else []


async def _say(
    send: Send, status: int, told: Any, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await _send(send, status, [*_JSON, *more], finite.dumps(told).encode())


async def _say_ready(send: Send, why_not: str, told: Mapping[str, Any]) -> None:
    """Tell that something is ready, or why it is not."""
    if why_not:
        await _say(send, 503, {**told, "ready": False, "error": why_not})
    else:
        await _say(send, 200, {**told, "ready": True})


async def _send(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    lines = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
