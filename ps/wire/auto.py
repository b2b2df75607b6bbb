"""The carrier that a server's own word decides: its tensor plane where it has one, else gRPC.

Where EDL_NET describes a bad network, what travels on the tensor plane meets it here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...common import rpc, unreliable
from ...common.errors import Unreachable
from ...common.identity import Identity
from ...common.listen import host_of
from ...proto import ps_pb2 as pb
from ...proto import ps_pb2_grpc
from .connection import PlaneEndpoint, PlaneShardConnection
from .grpc import GrpcShardConnection
from .shard import Reply, ShardConnection, ShardPull, ShardPulled, ShardPush, ShardPushed, Waiter


class AutoConnection:
    """Pull and push over the tensor plane, wherever the server says that it listens.

    It is asked at the first call, and again after a call that did not get through. A server
    without a tensor plane is spoken to over gRPC.
    """

    def __init__(
        self,
        address: str,
        stub: ps_pb2_grpc.ParameterServerStub,
        identity: Identity,
        slot_map_version: int,
        transport: str,
        shard: int,
    ) -> None:
        self._shard = shard
        self._host = host_of(address)
        self._stub = stub
        self._identity = identity
        self._slot_map_version = slot_map_version
        self._transport = transport
        self._lock = threading.Lock()
        self._plane: pb.PlaneReply | None = None
        self._connection: ShardConnection | None = None
        self._doubtful = True

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        return self._start(lambda connection: connection.start_pull(pull, timeout_s), timeout_s)

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        return self._start(lambda connection: connection.start_push(push, timeout_s), timeout_s)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _start(
        self, begin: Callable[[ShardConnection], Waiter[Reply]], timeout_s: float
    ) -> Waiter[Reply]:
        try:
            wait = begin(self._there(timeout_s))
        except Unreachable:
            self._doubtful = True
            raise

        def gathered() -> Reply:
            try:
                return wait()
            except Unreachable:
                self._doubtful = True
                raise

        return gathered

    def _there(self, timeout_s: float) -> ShardConnection:
        with self._lock:
            if self._connection is None or self._doubtful:
                plane = rpc.call(self._stub.Plane, pb.PlaneRequest(), timeout_s)
                if self._connection is None or plane != self._plane:
                    if self._connection is not None:
                        self._connection.close()
                    self._connection = self._open(plane)
                    self._plane = plane
                self._doubtful = False
            return self._connection

    def _open(self, plane: pb.PlaneReply) -> ShardConnection:
        if not plane.tcp_port:
            return GrpcShardConnection(self._stub, self._slot_map_version)
        connection = PlaneShardConnection(
            PlaneEndpoint(self._host, plane.tcp_port, plane.unix_name, plane.host_id, self._shard),
            self._identity,
            self._slot_map_version,
            transport=self._transport,
        )
        return _UnreliableConnection(connection) if unreliable.armed else connection


class _UnreliableConnection:
    """A tensor plane over the network that EDL_NET describes (common/unreliable.py)."""

    def __init__(self, connection: ShardConnection) -> None:
        self._connection = connection

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]:
        return self._start("Pull", lambda: self._connection.start_pull(pull, timeout_s))

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]:
        return self._start("Push", lambda: self._connection.start_push(push, timeout_s))

    def close(self) -> None:
        self._connection.close()

    def _start(self, method: str, begin: Callable[[], Waiter[Reply]]) -> Waiter[Reply]:
        wait = unreliable.start("ps", method, begin)

        def gathered() -> Reply:
            try:
                return wait()
            except unreliable.Lost as error:
                raise rpc.translate(error) from error

        return gathered
