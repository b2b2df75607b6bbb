"""The client's end of the tensor plane: pull and push of one shard over sockets or shared memory.

A connection keeps a few sockets. A call takes an idle one or opens one, so any number of calls run
at the same time and each socket has one request: nothing needs to be told apart. A call that
fails, or ends before its reply is complete, drops its socket, and the next one connects anew;
repeating it is harmless (a push by the ledger).

A socket that is dropped takes its shared regions (regions.py) along: the server may still be at
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...common.errors import EdlError, Unreachable
from ...common.identity import Identity
from ...common.listen import joined
from ...wire.pool import Pool
from ...wire.reach import Caller
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
        self._pool = Pool[Link]()
        self._sizes = Sizes()

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        return self._start(Link.send_pull, Link.pulled, pull, timeout_s)

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        return self._start(Link.send_push, Link.pushed, push, timeout_s)

    def close(self) -> None:
        self._pool.close()

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
        if (idle := self._pool.take()) is not None:
            return idle
        stream = self._connect(deadline)
        shares = stream.shares_memory and self._transport != "unix"
        link = Link(stream, self._slot_map_version, self._sizes, shares, self._stall_s)
        return self._pool.add(link)

    def _end(self, link: Link) -> None:
        """Keep the socket if the whole reply was read; else others are stale as well."""
        if link.sound:
            self._pool.give(link)
        else:
            self._pool.drop(link)
            self._pool.drop_idle()

    def _connect(self, deadline: float) -> Stream:
        """Return a stream to the server, by the way that `transport` names."""
        where = self._endpoint
        caller = Caller(self._identity, deadline, self._stall_s, where.shard)
        is_near = self._transport == "auto" and where.host_id == host_id()
        if is_near or self._transport in ("shm", "unix"):
            try:
                return caller.near(where.unix_name)
            except (ConnectionRefusedError, FileNotFoundError, PermissionError):
                if not is_near:
                    raise
        # A way on which packets vanish, as to a pod that is gone, is silent like any other.
        tls = self._transport == "tls"
        return caller.far(where.host, where.tcp_port, self._stall_s, tls=tls)
