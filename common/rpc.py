"""gRPC at the edges: servers and channels with the job's token, deadlines, message limits.

Every server refuses a call without the job's token (UNAUTHENTICATED); every call has a deadline.
The token reaches a process through the environment variable EDL_TOKEN, never through arguments.
`call` turns gRPC's errors into ours, so that no other file needs to know status codes.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from . import unreliable
from .errors import EdlError, NotPinned, Unauthenticated, Unreachable

TOKEN_VARIABLE = "EDL_TOKEN"
_TOKEN_KEY = "x-edl-token"
SHARD_KEY = (
    "edl-shard"  # whom a call is for: another server may be given the port of one that is gone
)
MASTER_EPOCH_KEY = "edl-master-epoch"  # of a master's calls, so that an older one's are refused

# A plain push of one batch's rows may be large; chunked Init and Pull keep dense messages far below.
_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
]
_SILENT_S = 10.0  # a connection on which nothing came for so long is asked whether it lives
_ALIVE = [
    ("grpc.http2.ping_timeout_ms", 5000),  # the one that closes it: keepalive_timeout_ms does not
    ("grpc.keepalive_time_ms", int(_SILENT_S * 1e3)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no limit
]
# A channel whose peer went away must find its replacement soon: cap gRPC's two-minute backoff. One
# that is half open (the way is gone, both ends hold it) would else fail all calls for a quarter of
# an hour: it must be closed to be made anew.
_CHANNEL_OPTIONS = [
    *_OPTIONS,
    *_ALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

Reply = TypeVar("Reply")


def job_token() -> str:
    """The token of the job that this process belongs to ("" outside of one)."""
    return os.environ.get(TOKEN_VARIABLE, "")


class _TokenCheck(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Refuse calls that do not carry the token; health checks are open."""

    def __init__(self, token: str) -> None:
        self._token = token

        def refuse(request: Any, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is missing or wrong")

        self._refuse = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        if details.method.startswith("/grpc.health."):
            return continuation(details)
        given = dict(details.invocation_metadata or ()).get(_TOKEN_KEY, "")
        if not hmac.compare_digest(str(given), self._token):
            return self._refuse
        return continuation(details)


class Server:
    """A gRPC server with health, bound to loopback unless told otherwise."""

    def __init__(
        self,
        register: Callable[[grpc.Server], None],
        *,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int = 32,
    ) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="rpc"),
            interceptors=[_TokenCheck(token)],
            options=[
                *_OPTIONS,
                *_ALIVE,
                ("grpc.http2.min_ping_interval_without_data_ms", int(_SILENT_S * 500)),
                ("grpc.so_reuseport", 0),
            ],
        )
        register(self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise EdlError(
                f"cannot listen on {host}:{port}: choose another --port, or 0 for any"
            ) from error
        self.address = f"{host}:{bound}"
        self._server.start()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace_s: float = 0.5) -> None:
        """Refuse new calls, let running ones end within `grace_s`, close."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1.0)


class Channel:
    """A channel to a peer of the job for a generated stub; each of its calls carries the token.

    Not an interceptor: gRPC would make a new multicallable for each call, which is slow, and which
    crashes the process where another thread has just closed the channel. `master_epoch` is that of
    the calling master; `shard` is the server that the calls are for.
    """

    def __init__(
        self,
        address: str,
        token: str,
        master_epoch: int | None = None,
        shard: int | None = None,
    ) -> None:
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._metadata: tuple[tuple[str, str], ...] = ((_TOKEN_KEY, token),)
        if master_epoch is not None:
            self._metadata += ((MASTER_EPOCH_KEY, str(master_epoch)),)
        if shard is not None:
            self._metadata += ((SHARD_KEY, str(shard)),)

    def unary_unary(self, path: str, *arguments: Any, **options: Any) -> Any:
        method = _Method(self._channel.unary_unary(path, *arguments, **options), self._metadata)
        return unreliable.Method(method, path) if unreliable.armed else method

    def close(self) -> None:
        self._channel.close()


class _Method:
    def __init__(self, method: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._method = method
        self._metadata = metadata

    def __call__(self, request: Any, timeout: float) -> Any:
        return self._method(request, timeout=timeout, metadata=self._metadata)

    def future(self, request: Any, timeout: float) -> Any:
        return self._method.future(request, timeout=timeout, metadata=self._metadata)


def call(method: Callable[..., Reply], request: Any, timeout_s: float) -> Reply:
    """One RPC under a deadline.

    Raises Unreachable where the peer does not answer in time or is gone, Unauthenticated where it
    refuses the token, EdlError (with the peer's own message) where it refuses the request.
    """
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise translate(error) from error


def translate(error: grpc.RpcError) -> EdlError:
    """Our error for gRPC's."""
    code = error.code() if hasattr(error, "code") else None
    details = error.details() if hasattr(error, "details") else str(error)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(details or "unauthenticated")
    if code == grpc.StatusCode.NOT_FOUND:
        return NotPinned(details or "not pinned")
    if code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    ):
        return Unreachable(f"{code.name}: {details}")
    return EdlError(f"{code.name if code else 'RPC'}: {details}")
