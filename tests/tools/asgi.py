"""Requests to an ASGI application, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Any,
    method: str,
    path: str,
    bodies: Sequence[bytes] = (b"",),
    headers: Sequence[tuple[str, str]] = (),
    *,
    stalls: bool = False,
) -> Reply:
    """Return the reply to a request whose body comes in these pieces; `stalls`: and never ends."""
    left = [
        {"type": "http.request", "body": body, "more_body": stalls or place < len(bodies) - 1}
        for place, body in enumerate(bodies)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop(0)
        if stalls:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    plain, _, query = path.partition("?")
    scope: dict[str, Any] = {"type": "http", "method": method, "headers": lines}
    scope |= {"path": unquote(plain), "query_string": query.encode(), "raw_path": plain.encode()}
    await app(scope, receive, send)
    start, *rest = sent
    return Reply(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(each.get("body", b"") for each in rest),
    )
