"""A store behind a tensor plane, connections to it, and the requests that tests make of it."""

from __future__ import annotations

import socket
import time

import numpy as np
from tools.waiting import FAR_S

from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics
from edl.ps.wire import frames
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.plane import Plane
from edl.ps.wire.shard import ShardPull, ShardPush
from edl.wire import handshake

IDENTITY = Identity("secret")
CHUNK = 1 << 20
SPEC = ModelSpec(
    (DenseSpec("w", (CHUNK + 3,)),),
    (
        TableSpec("t", 16),
        TableSpec("odd", 3),
        TableSpec("nine", 9),
        TableSpec("half", 3, dtype="bfloat16"),
    ),
    optimizers.SGD(1.0),
)
TRANSPORTS = ["tcp", "unix", "shm", "tls"]


class Shard:
    """A store behind a plane, and connections to it."""

    def __init__(self, identity=IDENTITY, policy=None, **options):
        self.store = Store(index=0, slot_map=SlotMap(1), policy=policy or Policy(use_async=True))
        self.attached = True
        self.identity = identity
        self._connections, self._sockets = [], []
        self.plane = Plane(
            lambda: self.store if self.attached else None,
            Metrics(0).calls,
            index=0,
            identity=identity,
            **options,
        )

    def init(self):
        values = np.arange(CHUNK + 3, dtype=np.float32)
        self.store.init(SPEC, {("w", 0): values[:CHUNK], ("w", 1): values[CHUNK:]}, True)
        return self

    @property
    def endpoint(self):
        told = self.plane.listening
        return PlaneEndpoint("127.0.0.1", told.tcp_port, told.unix_name, told.host_id)

    def connect(self, transport="tcp", identity=None, slot_map_version=1):
        connection = PlaneShardConnection(
            self.endpoint, identity or self.identity, slot_map_version, transport=transport
        )
        self._connections.append(connection)
        return connection

    def peer(self, tls=False):
        """Return an admitted socket, to say what no client would."""
        sock = socket.create_connection(("127.0.0.1", self.plane.listening.tcp_port))
        self._sockets.append(sock)
        return sock, handshake.greet(sock, self.identity, tls, time.monotonic() + FAR_S)

    def unix_peer(self):
        sock = socket.socket(socket.AF_UNIX)
        self._sockets.append(sock)
        sock.connect(f"\0{self.plane.listening.unix_name}")
        return sock, handshake.greet(sock, self.identity, False, time.monotonic() + FAR_S)

    def close(self):
        for each in (*self._connections, *self._sockets):
            each.close()
        self.plane.close()


def pull(*tables, dense=False, **options):
    return ShardPull(dense, tables={table: np.asarray(ids) for table, ids in tables}, **options)


def push(start, end, ids=(), value=1.0, **options):
    ids = np.asarray(ids, np.int64)
    tables = {"t": (ids, np.full((len(ids), 16), value, np.float32))} if len(ids) else {}
    return ShardPush(Span(0, 1, start, end), 0, tables=tables, **options)


def frame(head, *told):
    arrays, descriptors, nbytes = frames.describe(told)
    ids = sum(8 * array.count for array in arrays if array.kind == frames.ROWS)
    head = head._replace(
        descriptors_nbytes=len(descriptors), body_nbytes=nbytes + frames.padded(ids)
    )
    return frames.pack_head(head) + descriptors


def received(sock):
    try:
        return sock.recv(1000)
    except ConnectionResetError:
        return b""
