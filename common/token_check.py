"""The check of the job's token, for gRPC's servers: a call without it is refused.

Whoever has no token is answered by a handler of the streaming kind that never asks for a message:
gRPC takes one in, of any size, only when the handler wants it.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

TOKEN_KEY = "x-edl-token"
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_REFUSED = "the job's token is missing or wrong"


class TokenCheck(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """A check that refuses calls without the token.

    `health`, the answer to a health check, is open to all.
    """

    def __init__(self, token: str, health: Callable[[], bytes]) -> None:
        self._token = token.encode()

        def refuse(_messages: object, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSED)

        def check(_messages: object, _context: grpc.ServicerContext) -> Iterator[bytes]:
            yield health()

        self._refuse = grpc.stream_stream_rpc_method_handler(refuse)
        self._check = grpc.stream_stream_rpc_method_handler(check)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        if _has_token(details, self._token):
            return continuation(details)
        return self._check if details.method == _HEALTH_CHECK else self._refuse


class AsyncTokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The TokenCheck of coroutines; a process is healthy where this answers."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

        async def refuse(_messages: object, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSED)

        async def check(_messages: object, _context: object) -> AsyncIterator[bytes]:
            serving = health_pb2.HealthCheckResponse.SERVING
            yield health_pb2.HealthCheckResponse(status=serving).SerializeToString()

        self._refuse = grpc.stream_stream_rpc_method_handler(refuse)
        self._check = grpc.stream_stream_rpc_method_handler(check)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        if _has_token(details, self._token):
            return await continuation(details)
        return self._check if details.method == _HEALTH_CHECK else self._refuse


def _has_token(details: grpc.HandlerCallDetails, token: bytes) -> bool:
    given = dict(details.invocation_metadata or ()).get(TOKEN_KEY, "")
    return hmac.compare_digest(str(given).encode(), token)
