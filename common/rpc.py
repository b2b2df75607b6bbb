"""gRPC at the edges: servers and channels with the job's identity, deadlines, message limits.

Every server refuses a call without the job's token (UNAUTHENTICATED), before it takes the message
in; every call has a deadline. Where the job has a certificate, servers and channels speak mutual
TLS and accept that one alone. No channel goes by way of a proxy, whatever the environment says.
Both reach a process through the environment (EDL_TOKEN, EDL_IDENTITY), never through arguments.
`call` turns gRPC's errors into ours, so that no other file needs to know status codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from . import unreliable
from .errors import EdlError, NotPinned, Unauthenticated, Unreachable, UsageError
from .identity import CERTIFIED_NAME, IDENTITY_VARIABLE, TOKEN_VARIABLE, Identity, job_identity
from .listen import HEALTH_PORT_VARIABLE, fixed_port, host_of, joined, own_host
from .process import check_threads
from .token_check import TOKEN_KEY, AsyncTokenCheck, TokenCheck

# Whom a call is for: another server may be given the port of one that is gone.
SHARD_KEY = "edl-shard"
MASTER_EPOCH_KEY = "edl-master-epoch"  # of a master's calls, so that an older one's are refused

# A plain push of one batch's rows may be large; chunked Init and Pull keep dense messages far
# below.
LARGEST_NBYTES = 1 << 30
# To a process that holds no parameters: the largest is the result of a task, a few hundred KiB.
_CONTROL_NBYTES = 32 << 20
_HEALTH_NBYTES = 4 << 10
_RECEIVE, _SEND = "grpc.max_receive_message_length", "grpc.max_send_message_length"
_START_S = 30.0  # for a server's thread to start, or to end
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
    (_RECEIVE, LARGEST_NBYTES),
    (_SEND, LARGEST_NBYTES),
    *_ALIVE,
    # Peers of a job reach each other themselves. gRPC would obey http_proxy and its like also for
    # 127.0.0.1, and would say nothing where that proxy is none.
    ("grpc.enable_http_proxy", 0),
    ("grpc.address_http_proxy_enabled_addresses", ""),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

# What gRPC says where a handshake fails. The latter two may pass: a port that is another process's
# by now, a peer that ends just then.
_OTHER_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
_HINTS = {
    "WRONG_VERSION_NUMBER": f"it does not encrypt: was it started without {IDENTITY_VARIABLE}?",
    "Socket closed": f"it may want the job's certificate: is {IDENTITY_VARIABLE} set here?",
}

Reply = TypeVar("Reply")


def job_token() -> str:
    """Return the token of the job that this process belongs to ("" outside of one)."""
    return os.environ.get(TOKEN_VARIABLE, "")


class Server:
    """A gRPC server with health.

    It is bound to EDL_HOST and of this process's job unless told otherwise.
    """

    def __init__(
        self,
        register: Callable[[grpc.Server], None],
        *,
        token: str,
        identity: Identity | None = None,
        host: str | None = None,
        port: int = 0,
        threads: int = 32,
        receive_nbytes: int = _CONTROL_NBYTES,
    ) -> None:
        """Begin to serve.

        `receive_nbytes`: of the largest message that is taken from whoever has the token.

        Raises EdlError where it cannot listen there, or may not without a certificate.
        """
        self._health = health.HealthServicer()
        self._threads = futures.ThreadPoolExecutor(threads, thread_name_prefix="rpc")
        self._server = grpc.server(
            self._threads,
            interceptors=[TokenCheck(token, self._whole_health)],
            options=_server_options(receive_nbytes),
        )
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.address = _bind(self._server, token, identity, host, port)
        self._server.start()
        check_threads()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def _whole_health(self) -> bytes:
        """Return the health service's answer for the server as a whole."""
        whole: Any = None  # the context, which only a service that is unknown is told to
        reply = self._health.Check(health_pb2.HealthCheckRequest(), whole)
        return bytes(reply.SerializeToString())

    def stop(self, grace_s: float = 0.5) -> None:
        """Refuse new calls, let running ones end within `grace_s`, close."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self._threads.shutdown(wait=False)


def _server_options(receive_nbytes: int) -> list[tuple[str, Any]]:
    return [
        (_RECEIVE, receive_nbytes),
        (_SEND, LARGEST_NBYTES),
        *_ALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", int(_SILENT_S * 500)),
        ("grpc.so_reuseport", 0),
    ]


def _bind(server: Any, token: str, identity: Identity | None, host: str | None, port: int) -> str:
    """Let the server listen; return the address. Raises EdlError."""
    identity, host = identity or job_identity(token), host or own_host()
    where = joined(host, port)
    encrypts = identity.encrypts(host)
    try:
        if encrypts:
            bound = server.add_secure_port(where, _server_credentials(identity))
        else:
            bound = server.add_insecure_port(where)
    except RuntimeError as error:
        raise EdlError(f"cannot listen on {where}: choose another --port, or 0 for any") from error
    return joined(host, bound)


class AsyncServer:
    """A Server for handlers that are coroutines: however many calls wait, they cost no thread.

    One thread runs them all; none may block it.
    """

    def __init__(
        self,
        register: Callable[[Any], None],
        *,
        token: str,
        identity: Identity | None = None,
        host: str | None = None,
        port: int = 0,
        receive_nbytes: int = _CONTROL_NBYTES,
    ) -> None:
        """Begin to serve.

        Raises EdlError where it cannot listen there, or may not without a certificate.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rpc", daemon=True)
        self._thread.start()

        async def start() -> tuple[Any, str]:
            server = grpc.aio.server(
                interceptors=[AsyncTokenCheck(token)], options=_server_options(receive_nbytes)
            )
            register(server)
            healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
            health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
            address = _bind(server, token, identity, host, port)
            await server.start()
            await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
            return server, address

        with contextlib.ExitStack() as undo:
            undo.callback(self._end)
            self._server, self.address = self._run(start())
            check_threads()
            undo.pop_all()

    def stop(self, grace_s: float = 0.5) -> None:
        """Refuse new calls, let running ones end within `grace_s`, close. Again is harmless."""
        if self._loop.is_closed():
            return

        async def stop() -> None:
            await self._server.stop(grace_s)

        self._run(stop(), grace_s)
        self._end()

    def _run(self, work: Any, more_s: float = 0.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(more_s + _START_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()


def serve_health() -> grpc.Server | None:
    """Serve gRPC health, plain, to whoever asks whether this process lives: a kubelet, say.

    At EDL_HEALTH_PORT, for as long as the caller keeps it; None where that is not set. Raises
    UsageError where the port is taken.
    """
    port = fixed_port(HEALTH_PORT_VARIABLE)
    if not port:
        return None
    server = grpc.server(
        futures.ThreadPoolExecutor(2, thread_name_prefix="health"),
        options=[("grpc.so_reuseport", 0), (_RECEIVE, _HEALTH_NBYTES)],
    )
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    where = joined(own_host(), port)
    try:
        server.add_insecure_port(where)
    except RuntimeError as error:
        raise UsageError(
            f"cannot serve health on {where}: set {HEALTH_PORT_VARIABLE} to a port that is free."
        ) from error
    server.start()
    return server


def _server_credentials(identity: Identity) -> grpc.ServerCredentials:
    certificate, key = identity.certificate_pem.encode(), identity.key_pem.encode()
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=certificate, require_client_auth=True
    )


def _open(address: str, identity: Identity) -> grpc.Channel:
    # No address: of a shard that nobody calls, as in a replay.
    if not address or not identity.encrypts(host_of(address)):
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    certificate, key = identity.certificate_pem.encode(), identity.key_pem.encode()
    return grpc.secure_channel(
        address,
        grpc.ssl_channel_credentials(certificate, key, certificate),
        options=[*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", CERTIFIED_NAME)],
    )


class Channel:
    """A channel to a peer of the job for a generated stub; each of its calls carries the token.

    Not an interceptor: gRPC would make a new multicallable for each call, which is slow, and which
    crashes the process where another thread has just closed the channel. `master_epoch` is that of
    the calling master; `shard` is the server that the calls are for; `identity` is by default that
    of this process. Raises EdlError where the peer may not be called without a certificate.
    """

    def __init__(
        self,
        address: str,
        token: str,
        master_epoch: int | None = None,
        shard: int | None = None,
        identity: Identity | None = None,
    ) -> None:
        self._channel = _open(address, identity or job_identity(token))
        self._metadata: tuple[tuple[str, str], ...] = ((TOKEN_KEY, token),)
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


def call(method: Callable[..., Reply], request: object, timeout_s: float) -> Reply:
    """Make one RPC under a deadline.

    Raises Unreachable where the peer does not answer in time or is gone, Unauthenticated where it
    refuses the token or has another certificate, EdlError (with the peer's own message) where it
    refuses the request.
    """
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise translate(error) from error
    except ValueError as error:  # the channel was closed meanwhile: its server was replaced
        raise Unreachable(f"the connection was closed: {error}") from error


def translate(error: grpc.RpcError) -> EdlError:
    """Return our error for gRPC's."""
    code = error.code() if hasattr(error, "code") else None
    details = (error.details() if hasattr(error, "details") else str(error)) or ""
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(details or "unauthenticated")
    if code == grpc.StatusCode.NOT_FOUND:
        return NotPinned(details or "not pinned")
    if code == grpc.StatusCode.UNAVAILABLE and _OTHER_CERTIFICATE in details:
        return Unauthenticated(f"the peer has another job's certificate: {details}")
    if code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    ):
        connecting = "failed to connect" in details
        hints = [f" ({hint})" for sign, hint in _HINTS.items() if connecting and sign in details]
        return Unreachable(f"{code.name}: {details}{''.join(hints)}")
    return EdlError(f"{code.name if code else 'RPC'}: {details}")
