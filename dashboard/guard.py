"""The guard before the application: who may ask, from which page, and what a browser may do.

A page of another site can send requests to this address from the user's browser, and a name that
its owner points here (DNS rebinding) makes them its own origin. So three things must be right: the
Host is one of ours, an Origin is that very Host, and the token is there, in a cookie that no other
site's request carries. `/?token=...` sets the cookie and leads to the page.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..common.listen import is_loopback

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any
]

CSRF_HEADER = "x-edl-csrf"
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """An ASGI application around another.

    `hosts`: names by which it is asked, beside loopback's; `cookie`: the name of the token's.
    """

    def __init__(
        self, app: App, token: str, hosts: Iterable[str] = (), cookie: str = "edl"
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.lower() for host in hosts}
        self._cookie = cookie

    @property
    def csrf(self) -> str:
        """Return what a page must send with an action: only who has read the page knows it."""
        return hmac.new(self._token.encode(), b"csrf", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in scope["headers"]}
        host = headers.get("host", "")
        if not self._is_ours(host):
            await _refuse(send, 421, "This address is not one that the dashboard is asked by.")
            return
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            await _refuse(send, 403, "A page of another site may not ask the dashboard.")
            return
        if scope["path"] == "/" and (given := _token_of(scope)) is not None:
            await self._enter(given, scope.get("scheme") == "https", send)
            return
        if not self._may_ask(headers):
            await _refuse(send, 401, "Open the address that `edl dashboard` printed.")
            return
        acts = scope["method"] not in ("GET", "HEAD")
        if acts and not _equal(headers.get(CSRF_HEADER, ""), self.csrf):
            await _refuse(send, 403, "An action needs the page's own X-EDL-CSRF header.")
            return
        await self._app(scope, receive, _with_headers(send))

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name.lower() in self._hosts

    def _may_ask(self, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return _equal(given.strip(), self._token)
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(self._cookie)
        return found is not None and _equal(found.value, self._token)

    async def _enter(self, given: str, secure: bool, send: Any) -> None:
        if not _equal(given, self._token):
            await _refuse(send, 401, "This token is not the dashboard's: see what it printed.")
            return
        cookie = (
            f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict{'; Secure' * secure}"
        )
        headers = [("location", "./"), ("set-cookie", cookie)]
        await _answer(send, 303, b"", headers)


def _token_of(scope: Message) -> str | None:
    found = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
    return found[0] if found else None


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _with_headers(send: Any) -> Callable[[Message], Awaitable[None]]:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.encode(): value.encode() for name, value in _HEADERS.items()}
            told = [(n, v) for n, v in message.get("headers", []) if n.lower() not in own]
            message = {**message, "headers": [*told, *own.items()]}
        await send(message)

    return sending


async def _refuse(send: Any, code: int, text: str) -> None:
    await _answer(send, code, text.encode(), [("content-type", "text/plain; charset=utf-8")])


async def _answer(send: Any, code: int, body: bytes, headers: list[tuple[str, str]]) -> None:
    lines = [(name.encode(), value.encode()) for name, value in headers]
    sending = _with_headers(send)
    await sending({"type": "http.response.start", "status": code, "headers": lines})
    await sending({"type": "http.response.body", "body": body})
