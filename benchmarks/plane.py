"""The tensor plane against a bare socket loop, shared memory against memcpy, and a small pull.

Client processes and one server process. The bare loop is what remains when nothing is checked: a
16-byte head, sendmsg out of and recv_into into arrays that are there. The plane sends the same
bytes as dense chunks to a backend that does nothing, so what differs is the plane itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.measure import Sample, alternate, sample, table
from edl.common.identity import Identity
from edl.kernels.malloc import keep_freed_memory
from edl.nn.model_spec import ModelSpec, TableSpec
from edl.nn.optimizers import SGD
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome, PullPlan, Pushed
from edl.ps.books.dense import Chunk
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.books.view import StoreView
from edl.ps.metrics import Metrics
from edl.ps.wire.backend import Backend
from edl.ps.wire.board import Board
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.plane import Plane
from edl.ps.wire.shard import ShardPull, ShardPush
from edl.wire.listener import Listening
from edl.wire.stream import LOOPBACK_CONGESTION, LOOPBACK_UNSENT_NBYTES, UNIX_SEND_NBYTES

MEGABYTES = (1, 4, 16, 64)
CLIENTS = (1, 4)
TURN_NBYTES = 256 << 20  # of one sample, each way, over all clients
PINGS = 2_000
ROWS, DIM = 64, 16
ROUNDS = 7
_STORE = 0  # among the backends, which are named by the bytes of their only chunk
_HEAD = struct.Struct("<QQ")  # 1 push, 2 pull; bytes
_DEADLINE_S = 60.0
_IDENTITY = Identity("benchmark")


def plane() -> str:
    """Make Markdown: throughput and CPU at 1-64 MB, small pulls."""
    parts = [_throughput(clients, size << 20) for clients in CLIENTS for size in MEGABYTES]
    return "\n\n".join([*parts, _memory(), *_small()])


def _throughput(clients: int, nbytes: int) -> str:
    with _processes(clients) as (run, pids):
        turns = max(1, TURN_NBYTES // nbytes // clients)
        found = alternate(
            {
                f"{carrier}, {clients} x {nbytes >> 20} MB": _work(
                    run, carrier, nbytes, turns, 2 * nbytes * turns * clients, pids
                )
                for carrier in ("bare TCP", "plane TCP", "bare unix", "plane unix")
            },
            ROUNDS,
        )
    names = list(found)
    return "\n\n".join(
        table(
            {name: found[name] for name in pair},
            [pair[0]],
            ("GB/s both ways", 1e-9),
            ("CPU s per GB", 1e9),
        )
        for pair in (names[:2], names[2:])
    )


def _memory() -> str:
    """Push and pull 16 MB through shared memory, against copying the same arrays once."""
    nbytes, turns = 16 << 20, 16
    with _processes(1) as (run, pids):
        names = {"memcpy": "memcpy", "plane shm": "plane shared memory"}
        found = alternate(
            {
                title: _work(run, name, nbytes, turns, 2 * nbytes * turns, pids)
                for name, title in names.items()
            },
            ROUNDS,
        )
    return table(found, ["memcpy"], ("GB/s, 16 MB both ways", 1e-9), ("CPU s per GB", 1e9))


def _small() -> Iterator[str]:
    """Measure small requests, by where both ends are.

    That decides more than what they do, and the system moves them by chance.
    """
    core, *others = sorted(os.sched_getaffinity(0))
    yield _small_on("both ends on one core", {core}, {core})
    if others:
        yield _small_on("each end on a core of its own", {core}, {others[0]})
        yield _small_on("where the system puts them", None, None)


def _small_on(where: str, server: Cores, client: Cores) -> str:
    with _processes(1, server, client) as (run, pids):
        found = alternate(
            {
                f"{carrier}": _work(run, name, 4 * ROWS * DIM, PINGS, PINGS, pids)
                for carrier, name in (
                    ("bare TCP, 4 KB ping-pong", "bare TCP ping"),
                    (f"plane TCP, {ROWS} rows of a store", "plane TCP rows"),
                    ("bare unix, 4 KB ping-pong", "bare unix ping"),
                    (f"plane unix, {ROWS} rows of a store", "plane unix rows"),
                )
            },
            ROUNDS,
        )
    names = list(found)
    baselines = [names[0], names[2]]
    columns = ("requests/s", 1.0), ("CPU us per request", 1e6)
    return f"Small requests, {where}:\n\n{table(found, baselines, *columns)}"


Run = Callable[[str, int, int], None]
Cores = set[int] | None  # None: any


def _work(
    run: Run, carrier: str, nbytes: int, turns: int, amount: int, pids: list[int]
) -> Callable[[], Sample]:
    return lambda: sample(amount, lambda: run(carrier, nbytes, turns), pids)


@contextlib.contextmanager
def _processes(
    clients: int, at_server: Cores = None, at_clients: Cores = None
) -> Iterator[tuple[Run, list[int]]]:
    """Start a server and its clients, on these cores.

    Yields what runs a carrier on all clients at once, and all pids.
    """
    spawn = multiprocessing.get_context("spawn")
    server_line, far = spawn.Pipe()
    processes = [spawn.Process(target=_serve, args=(far, at_server), daemon=True)]
    processes[0].start()
    told = server_line.recv()
    lines = [server_line]
    for _ in range(clients):
        line, far = spawn.Pipe()
        told_client = (far, at_clients, *told)
        processes.append(spawn.Process(target=_client, args=told_client, daemon=True))
        processes[-1].start()
        lines.append(line)

    def run(*what: Any) -> None:
        for line in lines[1:]:
            line.send(what)
        for line in lines[1:]:
            line.recv()

    try:
        yield run, [process.pid or 0 for process in processes]
    finally:
        for line in lines:
            with contextlib.suppress(BrokenPipeError):
                line.send(None)
        for process in processes:
            process.join(_DEADLINE_S)


# -- The server


class _Nothing:
    """A backend whose pull answers one chunk, and whose push drops all."""

    slot_map = SlotMap(1)
    spec = None
    initialized = True

    def __init__(self, nbytes: int) -> None:
        self._values = np.ones(nbytes >> 2, np.float32)
        chunk = Chunk(self._values, [], np.zeros(1, np.int64), 1)
        self._board = Board(StoreView(1, 1, {}, {("w", 0): chunk}))

    def watch(self, _make: Any) -> Board:
        return self._board

    def plan_pull(self, **_: Any) -> PullPlan:
        return PullPlan(1, [(("w", 0), self._values)], [])

    def check_rows(self, table: str, ids: Any, dim: int) -> None:
        pass

    def push(self, span: Span, *_: Any, **__: Any) -> Pushed:
        return Pushed(Outcome.APPLIED, 1, span.end, 1, 0)

    def lets_through(self, _span: Span) -> bool:
        return False

    def wait_version(self, newer_than: int, timeout_s: float) -> int:
        raise NotImplementedError


def _start_on(cores: Cores) -> None:
    """Move to these cores; threads that this one starts are there, too."""
    keep_freed_memory()
    if cores:
        os.sched_setaffinity(0, cores)


def _serve(line: Connection, cores: Cores) -> None:
    _start_on(cores)
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(ModelSpec((), (TableSpec("t", DIM),), SGD()), {}, True)
    ids = np.arange(100_000)
    store.push(Span(1, 1, 0, 1), 0, Update({}, {"t": (ids, np.ones((len(ids), DIM), np.float32))}))
    backends: dict[int, Backend] = {size << 20: _Nothing(size << 20) for size in MEGABYTES}
    backends[_STORE] = store
    planes = {
        name: Plane(lambda backend=backend: backend, Metrics(0).calls, index=0, identity=_IDENTITY)
        for name, backend in backends.items()
    }
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind("")  # any abstract name
    unix.listen()
    for listener in (tcp, unix):
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    addresses = {"TCP": tcp.getsockname(), "unix": unix.getsockname()}
    line.send((addresses, {name: plane.listening for name, plane in planes.items()}))
    line.recv()


def _accept(listener: socket.socket) -> None:
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_bare, args=(sock,), daemon=True).start()


def _bare(sock: socket.socket) -> None:
    head = memoryview(bytearray(_HEAD.size))
    values = memoryview(np.ones(max(MEGABYTES) << 20, np.uint8))
    into = memoryview(np.ones(max(MEGABYTES) << 20, np.uint8))
    _set_options(sock)
    while sock.recv_into(head, 0, socket.MSG_WAITALL):
        op, nbytes = _HEAD.unpack(head)
        if op == 1:
            sock.recv_into(into[:nbytes], nbytes, socket.MSG_WAITALL)
            sock.sendall(b"12345678")
        else:
            sock.sendmsg([values[:nbytes]])


def _set_options(sock: socket.socket) -> None:
    """Set the options of the plane's sockets."""
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOOPBACK_CONGESTION)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LOOPBACK_UNSENT_NBYTES)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_NBYTES)


# -- A client


class _Client:
    def __init__(self, addresses: dict[str, Any], planes: dict[int, Listening]) -> None:
        self._sockets = {}
        for carrier, address in addresses.items():
            family = socket.AF_INET if carrier == "TCP" else socket.AF_UNIX
            sock = self._sockets[carrier] = socket.socket(family)
            sock.connect(address)
            _set_options(sock)
        self._planes = {
            backend: {
                carrier: PlaneShardConnection(_endpoint(told), _IDENTITY, 1, transport=name)
                for carrier, name in (("TCP", "tcp"), ("unix", "unix"), ("shm", "shm"))
            }
            for backend, told in planes.items()
        }
        self._out = np.ones(max(MEGABYTES) << 18, np.float32)
        self._into = np.ones(max(MEGABYTES) << 18, np.float32)
        self._ack = memoryview(bytearray(8))
        self._ids = np.random.default_rng(0).permutation(100_000)[:ROWS]

    def run(self, carrier: str, nbytes: int, turns: int) -> None:
        kind, _, rest = carrier.partition(" ")
        carrier, _, small = rest.partition(" ")
        out, into = self._out[: nbytes // 4], self._into[: nbytes // 4]
        if kind == "memcpy":
            for _ in range(turns):
                np.copyto(into, out)
                np.copyto(out, into)
        elif kind == "bare":
            view, ack = memoryview(into).cast("B"), self._ack
            sock = self._sockets[carrier]
            for _ in range(turns):
                if not small:
                    sock.sendmsg([_HEAD.pack(1, nbytes), out])
                    sock.recv_into(ack, 8, socket.MSG_WAITALL)
                sock.sendmsg([_HEAD.pack(2, nbytes)])
                sock.recv_into(view, nbytes, socket.MSG_WAITALL)
        elif small:
            pull = ShardPull(False, None, {"t": self._ids})
            for _ in range(turns):
                self._planes[_STORE][carrier].start_pull(pull, _DEADLINE_S)()
        else:
            plane = self._planes[nbytes][carrier]
            place = None if carrier == "shm" else lambda _tensor, _number: into
            pull = ShardPull(True, into=place)
            push = ShardPush(Span(1, 1, 0, 1), 0, [("w", 0, out)])
            for _ in range(turns):
                plane.start_push(push, _DEADLINE_S)()
                plane.start_pull(pull, _DEADLINE_S)()


def _endpoint(told: Listening) -> PlaneEndpoint:
    return PlaneEndpoint("127.0.0.1", told.tcp_port, told.unix_name, told.host_id)


def _client(
    line: Connection, cores: Cores, addresses: dict[str, Any], planes: dict[int, Listening]
) -> None:
    _start_on(cores)
    client = _Client(addresses, planes)
    while (what := line.recv()) is not None:
        client.run(*what)
        line.send("done")


if __name__ == "__main__":
    print(plane())
