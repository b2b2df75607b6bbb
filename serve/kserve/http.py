"""KServe's v2 protocol over HTTP/1.1, as a plain ASGI application.

    GET  /v2                                            what server this is
    GET  /v2/health/live, /v2/health/ready              200, or 503
    GET  /v2/models/NAME[/versions/V]                   metadata
    GET  /v2/models/NAME[/versions/V]/ready             200, or 503
    POST /v2/models/NAME[/versions/V]/infer             an answer
    GET  /metrics                                       Prometheus

An error is {"error": "..."}. With a token all but health and metrics want `Authorization: Bearer`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..repository import Repository
from . import answers, tensors
from .asking import Asking
from .refused import Refused, Why

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_JSON_NBYTES = b"inference-header-content-length"
_JSON = [(b"content-type", b"application/json")]
_OCTETS = b"application/octet-stream"
_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class _HungUp(Exception):
    """The client that has asked is gone."""


@dataclass(frozen=True)
class Limits:
    """The limits of a request: a body of so many bytes, within so many seconds."""

    body_nbytes: int = 64 << 20
    body_s: float = 30.0


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
        if path.startswith("/v2/models/"):
            name, version, verb = _named(path)
            self._check_token(scope["headers"])
            if verb == "infer":
                _must_be(method, "POST", path)
                await self._infer(scope["headers"], receive, send, name, version)
            elif verb == "ready":
                _must_be(method, "GET", path)
                await _say_ready(send, self._asking.unready(name, version), {"name": name})
            else:
                _must_be(method, "GET", path)
                await _say(send, 200, self._asking.model(name, version))
        else:
            await self._tell(path, method, scope["headers"], send)

    async def _tell(
        self, path: str, method: str, headers: Iterable[tuple[bytes, bytes]], send: Send
    ) -> None:
        """Answer what is asked of the server itself."""
        known = {"/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/metrics"}
        if path not in known:
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

    async def _infer(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
        name: str,
        version: str,
    ) -> None:
        nbytes, json_nbytes = _lengths(headers)
        if nbytes > self._limits.body_nbytes:
            raise self._too_large(str(nbytes))
        body = await self._body(receive)
        question, answer, version = await self._asking.infer(
            name,
            version,
            lambda inputs, outputs: tensors.from_http(body, json_nbytes, inputs, outputs),
            large=len(body) > tensors.LARGE_NBYTES,
        )
        told = answer, question, name, version
        if answers.is_large(answer):
            head, bodies = await asyncio.to_thread(answers.as_http, *told)
        else:
            head, bodies = answers.as_http(*told)
        if not bodies:
            await _send(send, 200, _JSON, head)
            return
        lines = [(b"content-type", _OCTETS), (_JSON_NBYTES, b"%d" % len(head))]
        await _send(send, 200, lines, b"".join((head, *bodies)))

    async def _body(self, receive: Receive) -> bytes:
        """Return a request's body. Raises Refused where it is too large or comes too slowly."""
        most = self._limits.body_nbytes
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
            raise self._too_large(f"more than {most}")
        return bytes(found)

    async def _more(self, receive: Receive) -> Mapping[str, Any]:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        return message

    def _too_large(self, said: str) -> Refused:
        return Refused(
            Why.TOO_LARGE,
            f"the request has {said} bytes, and {self._limits.body_nbytes} are taken "
            "(--max_body_mib)",
        )

    def _check_token(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if not self._token:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        if not hmac.compare_digest(given, self._token):
            raise Refused(
                Why.NO_TOKEN, "the token is missing or wrong: send Authorization: Bearer TOKEN"
            )


def _named(path: str) -> tuple[str, str, str]:
    """Return the model, the version and the verb of a path. Raises Refused."""
    match path.split("/")[3:]:
        case [name]:
            return name, "", ""
        case [name, ("infer" | "ready") as verb]:
            return name, "", verb
        case [name, "versions", version]:
            return name, version, ""
        case [name, "versions", version, ("infer" | "ready") as verb]:
            return name, version, verb
    raise Refused(
        Why.UNKNOWN,
        f"there is nothing at {path[:200]}: of a model there are "
        "/v2/models/NAME[/versions/VERSION][/ready | /infer]",
    )


def _must_be(method: str, wanted: str, path: str) -> None:
    if method != wanted and (method, wanted) != ("HEAD", "GET"):
        raise Refused(Why.NO_SUCH_METHOD, f"{path[:200]} is asked by {wanted}, not {method[:20]}")


def _lengths(headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str]:
    """Return the bytes that a body says it has (0: it does not), and those of its JSON, or ""."""
    nbytes, json_nbytes = 0, ""
    for name, value in headers:
        if name == b"content-length":
            nbytes = int(value) if value.isdigit() else 0
        elif name == _JSON_NBYTES:
            json_nbytes = value.decode("latin-1") or "?"
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise Refused(Why.INVALID, "a compressed body is not taken: send it as it is")
    return nbytes, json_nbytes


def _closing(error: Refused) -> list[tuple[bytes, bytes]]:
    """Return a header that ends the connection, on which the rest of a body may still come."""
    return [(b"connection", b"close")] if error.why in (Why.TOO_LARGE, Why.SLOW) else []


async def _say(
    send: Send, status: int, told: Mapping[str, Any], more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await _send(send, status, [*_JSON, *more], json.dumps(told).encode())


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
