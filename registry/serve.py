"""A registry's process: the roll behind gRPC. It holds nothing on disk.

The handlers are coroutines of one thread, so that the roll needs no lock, and a student that waits
for news costs no thread (common/rpc.AsyncServer).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from ..common import rpc
from ..common.clock import Clock, MonotonicClock
from ..common.identity import Identity
from ..common.listen import own_host
from ..common.process import end_by_signal
from ..proto import registry_pb2 as pb
from ..proto import registry_pb2_grpc
from .identity import identity_to_serve
from .roll import EPOCH_BITS, TICK_S, Entry, Roll

_LONGEST_WAIT_S = 60.0  # of a held call
_MOST_NBYTES = 64 << 10  # of a request

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class Registry:
    """A registry that serves from its making until `close`."""

    def __init__(
        self,
        identity: Identity,
        host: str,
        port: int = 0,
        *,
        epoch: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Begin to serve.

        `epoch`: a number that no registry has had here; None: it is drawn. Raises EdlError where
        it cannot listen there, or may not without a certificate.
        """
        roll = Roll(secrets.randbelow((1 << EPOCH_BITS) - 1) + 1 if epoch is None else epoch)
        servicer = _Servicer(roll, clock or MonotonicClock())
        self._server = rpc.AsyncServer(
            servicer.begin,
            token=identity.token,
            identity=identity,
            host=host,
            port=port,
            receive_nbytes=_MOST_NBYTES,
        )
        self.address = self._server.address

    def close(self, grace_s: float = 0.0) -> None:
        """Answer nobody any more."""
        self._server.stop(grace_s)


def serve(port: int, say: Callable[[str], None]) -> None:
    """Keep a registry until SIGTERM or SIGINT.

    `say` is told where, and how teachers and students prove that they may call.
    """
    host = own_host()
    registry = Registry(identity_to_serve(host, say), host, port)
    over = end_by_signal()
    try:
        say(f"registry at {registry.address}")
        over.wait()
    finally:
        registry.close()


class _Servicer(registry_pb2_grpc.RegistryServicer):
    def __init__(self, roll: Roll, clock: Clock) -> None:
        self._roll, self._clock = roll, clock
        self._news: asyncio.Future[None] | None = None  # of the next change; None: nobody waits
        self._told = 0  # changes

    def begin(self, server: Any) -> None:
        """Serve, in the loop that runs, and let time pass there."""
        registry_pb2_grpc.add_RegistryServicer_to_server(self, server)
        self._tick(asyncio.get_running_loop())

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._roll.pass_time(self._clock.now())
        self._tell()
        loop.call_later(TICK_S, self._tick, loop)

    async def Register(self, request: pb.RegisterRequest, _context: Context) -> pb.RegisterReply:
        told = request.teacher
        entry = Entry(told.address, told.fingerprint, told.incarnation, told.ttl_s)
        refused = self._roll.register(request.name, entry, self._clock.now())
        self._tell()
        return pb.RegisterReply(refused=refused)

    async def Leave(self, request: pb.LeaveRequest, _context: Context) -> pb.LeaveReply:
        self._roll.leave(request.name, request.address, request.incarnation)
        self._tell()
        return pb.LeaveReply()

    async def List(self, request: pb.ListRequest, _context: Context) -> pb.ListReply:
        deadline = self._clock.now() + max(0.0, min(request.wait_s, _LONGEST_WAIT_S))
        while True:
            now = self._clock.now()
            self._roll.pass_time(now)
            self._tell()
            version, teachers = self._roll.listed(request.name)
            if version != request.known_version or now >= deadline:
                return pb.ListReply(
                    version=version,
                    teachers=[pb.Teacher(**vars(each)) for each in teachers],
                    names=[] if teachers else self._roll.names,
                )
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            told, _ = await asyncio.wait([self._news], timeout=deadline - now)
            if not told:
                deadline = now

    def _tell(self) -> None:
        """Let all who wait look again where a list has changed: it may be theirs."""
        if self._roll.changes != self._told and self._news is not None:
            self._news.set_result(None)
            self._news = None
        self._told = self._roll.changes
