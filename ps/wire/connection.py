"""The client's end of the tensor plane: pull and push of one shard over sockets or shared memory.

A connection keeps a few sockets. A call takes an idle one or opens one, so any number of calls run
at the same time and each socket has one request: nothing needs to be told apart. A call that
fails, or ends before its reply is complete, drops its socket, and the next one connects anew;
repeating it is harmless (a push by the ledger).

A socket that is dropped takes its shared regions (regions.py) along: the server may still be at
them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...common.errors import EdlError, Unreachable
from ...common.identity import Identity
from ...common.listen import is_loopback, joined
from ...wire.handshake import greet
from ...wire.stream import SILENT_S, Stream, host_id
from .link import Link, Sizes
from .shard import ShardPull, ShardPulled, ShardPush, ShardPushed, Waiter

TRANSPORTS = ("auto", "shm", "unix", "tcp", "tls")
Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PlaneEndpoint:
    """The ports of a plane at `host` (`Plane.listening`). `shard` None: whosever it is."""

    host: str
    tcp_port: int
    unix_name: str
    host_id: str
    shard: int | None = None


class PlaneShardConnection:
    """A ShardConnection (shard.py). Any thread may call; `close` wakes whoever waits."""

    def __init__(
        self,
        endpoint: PlaneEndpoint,
        identity: Identity,
        slot_map_version: int,
        *,
        transport: str = "auto",
        stall_s: float = SILENT_S,
    ) -> None:
        """Prepare a connection, which connects at its first call.

        `transport` "auto": shared memory on the same host, else TCP, with TLS off loopback.

        `stall_s`: a call in which nothing moves for so long is given up, whatever its deadline:
        the next one connects anew.
        """
        if transport not in TRANSPORTS:
            raise ValueError(f"transport {transport!r} is none of {', '.join(TRANSPORTS)}")
        self._endpoint = endpoint
        self._identity = identity
        self._slot_map_version = slot_map_version
        self._transport = transport
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._links = set[Link]()
        self._closed = False
        self._sizes = Sizes()

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        return self._start(Link.send_pull, Link.pulled, pull, timeout_s)

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        return self._start(Link.send_push, Link.pushed, push, timeout_s)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for link in self._links:
                link.stream.abort()
            for link in self._idle:
                self._links.discard(link)
                link.stream.close()
            self._idle.clear()

    def _start(
        self,
        send: Callable[[Link, Request, float], None],
        gather: Callable[[Link, Request, float], Result],
        request: Request,
        timeout_s: float,
    ) -> Waiter[Result]:
        deadline = time.monotonic() + timeout_s
        sent = False
        try:
            link = self._link(deadline)
            try:
                link.stream.arm(deadline)
                send(link, request, deadline)
                sent = True
            finally:  # whatever failed, an array of the caller's, say: it may be half written
                if not sent:
                    self._end(link)
        except (EdlError, OSError) as error:
            failure = self._told(error)

            def fail() -> Result:
                raise failure

            return fail

        def wait() -> Result:
            try:
                link.stream.arm(deadline)
                return gather(link, request, deadline)
            except OSError as error:
                raise self._told(error) from error
            finally:
                self._end(link)

        return wait

    def _told(self, error: EdlError | OSError) -> EdlError:
        if isinstance(error, EdlError):
            return error
        where = joined(self._endpoint.host, self._endpoint.tcp_port)
        return Unreachable(f"the tensor plane at {where}: {error}")

    def _link(self, deadline: float) -> Link:
        if self._closed:
            raise Unreachable("the connection was closed")
        try:
            return self._idle.pop()  # atomic
        except IndexError:
            pass
        stream = self._connect(deadline)
        shares = stream.shares_memory and self._transport != "unix"
        link = Link(stream, self._slot_map_version, self._sizes, shares, self._stall_s)
        self._keep(link)
        return link

    def _keep(self, link: Link) -> None:
        with self._lock:
            if self._closed:  # meanwhile
                link.stream.close()
                raise Unreachable("the connection was closed")
            self._links.add(link)

    def _end(self, link: Link) -> None:
        """Keep the socket if the whole reply was read; else others are stale as well."""
        with self._lock:
            if link.sound and not self._closed:
                self._idle.append(link)
                return
            stale = [link, *self._idle]
            self._idle.clear()
            self._links.difference_update(stale)
        for one in stale:
            one.stream.close()

    # -- Connecting

    def _connect(self, deadline: float) -> Stream:
        if self._transport in ("tcp", "tls"):
            return self._tcp(deadline)
        near = self._endpoint.host_id == host_id()
        if not near and self._transport == "auto":
            return self._tcp(deadline)
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            return self._greeted(sock, f"\0{self._endpoint.unix_name}", False, deadline)
        except (ConnectionRefusedError, FileNotFoundError, PermissionError):
            if self._transport != "auto":
                raise
        return self._tcp(deadline)  # another pod of this host, or one that is confined

    def _tcp(self, deadline: float) -> Stream:
        where = (self._endpoint.host, self._endpoint.tcp_port)
        # A way on which packets vanish, as to a pod that is gone, is silent like any other.
        left_s = min(self._stall_s, max(0.001, deadline - time.monotonic()))
        sock = socket.create_connection(where, left_s)
        tls = self._transport == "tls" or not is_loopback(sock.getpeername()[0])
        return self._greeted(sock, None, tls, deadline)

    def _greeted(self, sock: socket.socket, name: str | None, tls: bool, deadline: float) -> Stream:
        with contextlib.ExitStack() as failed:
            failed.callback(sock.close)
            if name is not None:
                sock.connect(name)
            shard = self._endpoint.shard
            stream = greet(sock, self._identity, tls, deadline, self._stall_s, shard)
            failed.pop_all()
        return stream
