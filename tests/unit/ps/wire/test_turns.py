"""Turns: one thread at a time, nobody who waits has one, a forgotten one is taken away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import Unreachable
from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics
from edl.ps.wire import frames
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.frames import Head
from edl.ps.wire.plane import Plane
from edl.ps.wire.shard import ShardPull, ShardPush
from edl.ps.wire.turns import Turns
from edl.wire import handshake, listener

IDENTITY = Identity.create("secret")
SPEC = ModelSpec((DenseSpec("w", (3,)),), (TableSpec("t", 16),), optimizers.SGD(1.0))
SOON_S = 20.0  # after which who waits for a turn that nobody ends is given up
SHORT, MIDDLE, LONG = 100, 3_000, 10_000  # rows: received at once, in two, and without a turn


def started(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


# -- Turns


def test_one_thread_at_a_time_has_a_turn():
    turns = Turns(FAR_S)
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(200):
            turns.take()
            inside += 1
            os.sched_yield()
            most = max(most, inside)
            inside -= 1
            turns.end()

    for thread in [started(work) for _ in range(6)]:
        thread.join(FAR_S)

    assert (inside, most) == (0, 1)


def test_a_turn_may_be_asked_for_twice_and_ended_by_who_has_none():
    turns, order = Turns(FAR_S), []
    turns.end()
    turns.take()
    turns.take()

    def next_one():
        turns.end()  # it has none: nobody else's ends by that
        turns.take()
        order.append("next")
        turns.end()

    thread = started(next_one)
    os.sched_yield()
    order.append("first")
    turns.end()
    thread.join(FAR_S)

    assert order == ["first", "next"]


def test_a_turn_that_is_not_ended_is_taken_away_and_counts_once():
    turns, order = Turns(0.001), []
    forgetful = started(turns.take)
    forgetful.join(FAR_S)
    turns.take()  # its patience is over
    turns.record["patience"] = int(FAR_S * 1e9)

    def next_one():
        turns.take()
        order.append("next")
        turns.end()

    thread = started(next_one)
    order.append("here")
    turns.end()
    thread.join(FAR_S)

    assert order == ["here", "next"]


def test_who_lost_a_turn_ends_none_when_he_comes_back():
    turns, order = Turns(0.001), []
    has, lost, ended = (threading.Event() for _ in range(3))

    def stopped():
        turns.take()
        has.set()
        assert lost.wait(FAR_S)
        turns.end()
        ended.set()

    def next_one():
        turns.take()
        order.append("next")
        turns.end()

    started(stopped)
    assert has.wait(FAR_S)
    turns.take()
    turns.record["patience"] = int(FAR_S * 1e9)
    lost.set()
    assert ended.wait(FAR_S)
    thread = started(next_one)
    os.sched_yield()
    order.append("here")
    turns.end()
    thread.join(FAR_S)

    assert order == ["here", "next"]


def test_who_awaits_a_turn_has_patience_while_others_get_theirs():
    patience_s = 0.3
    turns, order, ended = Turns(patience_s), [], threading.Event()
    turns.take()

    def next_one():
        turns.take()
        order.append("next")

    def others():
        while not ended.wait(0.001):
            turns.record["count"] += 1

    more = started(others)
    thread = started(next_one)
    thread.join(3 * patience_s)
    order.append("here")
    ended.set()
    more.join(FAR_S)
    thread.join(FAR_S)  # nobody gets a turn any more: this one takes it

    assert order == ["here", "next"]


def test_receiving_ends_a_turn_and_takes_one():
    turns, into = Turns(FAR_S), np.zeros(8, np.uint8)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns.take()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1000))
        assert turns.receive(ours.fileno(), into) == -1  # nothing in time
        other = started(lambda: (turns.take(), theirs.send(b"abc"), turns.end()))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        assert turns.receive(ours.fileno(), into) == 3
        assert into[:3].tobytes() == b"abc"
        other.join(FAR_S)
        last = started(turns.take)
        theirs.close()
        assert turns.receive(ours.fileno(), into) == 0
        last.join(FAR_S)
        fd = ours.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        turns.receive(fd, into)


def test_receiving_goes_on_after_a_signal():
    turns, into, got = Turns(FAR_S), np.zeros(8, np.uint8), []
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(FAR_S), 0))
        thread = started(lambda: got.append(turns.receive(ours.fileno(), into)))
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        for _ in range(20):
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
        theirs.send(b"abc")
        thread.join(FAR_S)
    signal.signal(signal.SIGUSR1, before)

    assert got == [3]


# -- A plane


class Shard:
    """A store behind a plane whose turns nobody takes away."""

    def __init__(self, policy=None, **options):
        self.store = Store(index=0, slot_map=SlotMap(1), policy=policy or Policy(use_async=True))
        self.store.init(SPEC, {("w", 0): np.zeros(3, np.float32)}, True)
        self.plane = Plane(
            lambda: self.store,
            Metrics(0).calls,
            index=0,
            identity=IDENTITY,
            turns=Turns(FAR_S),
            **options,
        )
        self._socks = {}
        self._ends = contextlib.ExitStack()
        self._ends.callback(self.plane.close)

    def connect(self, transport="tcp"):
        told = self.plane.listening
        endpoint = PlaneEndpoint("127.0.0.1", told.tcp_port, told.unix_name, told.host_id)
        connection = PlaneShardConnection(endpoint, IDENTITY, 1, transport=transport)
        self._ends.callback(connection.close)
        return connection

    def peer(self, tls):
        """Return an admitted stream, to say what no client would."""
        sock = socket.socket()
        self._ends.callback(sock.close)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        sock.connect(("127.0.0.1", self.plane.listening.tcp_port))
        peer = handshake.greet(sock, IDENTITY, tls, time.monotonic() + FAR_S)
        self._socks[peer] = sock
        return peer

    def came(self, peer):
        """Return how many bytes wait to be received."""
        told = fcntl.ioctl(self._socks[peer].fileno(), termios.FIONREAD, bytes(4))
        return struct.unpack("i", told)[0]

    def close(self):
        self._ends.close()


@pytest.fixture
def start():
    """Yield start(**options of Shard) -> Shard."""
    with contextlib.ExitStack() as shards:

        def begun(**options):
            shard = Shard(**options)
            shards.callback(shard.close)
            return shard

        yield begun


@pytest.fixture(params=["tcp", "tls", "unix", "shm"])
def transport(request):
    return request.param


def push(task=0, start=0, rows=SHORT, **options):
    tables = {"t": (np.arange(rows), np.ones((rows, 16), np.float32))} if rows else {}
    return ShardPush(Span(task, 1, start, start + 1), 0, tables=tables, **options)


def is_served(connection, task=9, **options):
    """Tell whether a push is served by Python, in its turn."""
    waiter = connection.start_push(push(task=task, **options), SOON_S)
    return waiter().outcome == pb.PushReply.APPLIED


def head_of_push(rows):
    told = ((frames.ROWS, frames.FLOAT32, "t", 16, rows),)
    _, descriptors, nbytes = frames.describe(told)
    head = Head(
        frames.PUSH,
        code=1,
        descriptors_nbytes=len(descriptors),
        body_nbytes=frames.padded(8 * rows) + nbytes,
        attempt=1,
        end=1,
    )
    return frames.pack_head(head) + descriptors


def test_pushes_of_many_connections_are_served_one_at_a_time(start, transport, monkeypatch):
    shard = start()
    inside, most = 0, 0
    of_store = shard.store.push

    def counted(*args, **options):
        nonlocal inside, most
        inside += 1
        os.sched_yield()
        most = max(most, inside)
        pushed = of_store(*args, **options)
        most = max(most, inside)
        inside -= 1
        return pushed

    monkeypatch.setattr(shard.store, "push", counted)

    def work(task):
        connection = shard.connect(transport)
        for number in range(30):
            connection.start_push(push(task=task, start=number, rows=1_000), FAR_S)()

    for thread in [started(work, task) for task in range(5)]:
        thread.join(FAR_S)

    assert (inside, most, shard.store.version) == (0, 1, 150)


def test_large_pushes_are_applied_at_the_same_time(start, transport, monkeypatch):
    shard, both = start(), threading.Barrier(2)
    of_store = shard.store.push

    def together(*args, **options):
        both.wait(SOON_S)
        return of_store(*args, **options)

    monkeypatch.setattr(shard.store, "push", together)
    waiters = [
        shard.connect(transport).start_push(push(task=task, rows=LONG), FAR_S) for task in (1, 2)
    ]

    assert [waiter().outcome for waiter in waiters] == [pb.PushReply.APPLIED] * 2


@pytest.mark.parametrize("rows", [SHORT, MIDDLE, LONG])
def test_pushes_that_a_freeze_holds_back_have_no_turn(start, transport, rows):
    shard = start()
    shard.store.pins.freeze("cut", FAR_S)
    held = [
        shard.connect(transport).start_push(push(task=task, rows=rows), FAR_S) for task in (1, 2)
    ]
    connection = shard.connect(transport)
    unknown = ShardPull(False, tables={"t": np.array([10**6])})  # which Python answers

    assert connection.start_pull(unknown, SOON_S)().outcome == pb.PullReply.OK
    shard.store.pins.unpin("cut")
    assert [waiter().outcome for waiter in held] == [pb.PushReply.APPLIED] * 2


def test_push_that_waits_for_its_version_has_no_turn(start, transport):
    policy = Policy(use_async=False, grads_to_wait=2, staleness=0)
    shard, dense = start(policy=policy), [("w", 0, np.ones(3, np.float32))]
    first, second = (
        shard.connect(transport).start_push(
            push(task=task, rows=0, dense=dense, then=ShardPull(True, 0)), SOON_S
        )
        for task in (1, 2)
    )

    assert first().pulled
    assert second().pulled


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("rows", [SHORT, MIDDLE, LONG])
@pytest.mark.parametrize(
    "ids", ["missing", "in order", "all alike"]
)  # the last are refused, once all came
def test_peer_that_stops_in_mid_frame_has_no_turn(start, tls, rows, ids):
    shard = start()
    told = {"in order": np.arange(rows).tobytes(), "all alike": bytes(8 * rows)}
    data = head_of_push(rows) + told.get(ids, b"")
    shard.peer(tls).send([data], len(data), None)
    connection = shard.connect("tls" if tls else "tcp")

    assert is_served(connection)


def test_push_that_waits_for_the_budget_has_no_turn(start):
    shard = start(budget_nbytes=1 << 20)  # one buffer
    head = head_of_push(MIDDLE)
    for count in (1, 2):
        shard.peer(tls=False).send([head], len(head), None)
        until(lambda: shard.plane.buffers.nbytes > 0)
        until(lambda count=count: shard.plane.buffers.waiting == count - 1)

    assert is_served(shard.connect())


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("rows", [SHORT, 7_000, 30_000, 400_000])
@pytest.mark.parametrize("begin", [80, 200])
def test_peer_that_takes_no_reply_has_no_turn(start, tls, rows, begin, monkeypatch):
    def admit(sock, *options):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        return handshake.admit(sock, *options)

    monkeypatch.setattr(listener, "admit", admit)
    shard = start()
    connection = shard.connect("tls" if tls else "tcp")
    connection.start_push(push(rows=7_000), FAR_S)()
    _, told, _ = frames.describe(((frames.ROWS, frames.NONE, "t", 0, rows),))
    nbytes = frames.padded(8 * rows)
    head = Head(frames.PULL, code=1, descriptors_nbytes=len(told), body_nbytes=nbytes)
    request = frames.pack_head(head) + told + np.arange(rows).tobytes()
    peer = shard.peer(tls)
    peer.send([request[:begin]], begin, None)
    assert is_served(connection, task=8)  # it has come by then
    peer.send([request[begin:]], len(request) - begin, None)

    come, still, number = 0, 0, 0
    while still < 30:  # by then the server has sent as much as it can
        assert is_served(connection, start=number)
        number, before, come = number + 1, come, shard.came(peer)
        still = still + 1 if come == before > 0 else 0


@pytest.mark.parametrize("tls", [False, True])
def test_connection_that_ends_has_no_turn(start, tls):
    shard = start()
    peer = shard.peer(tls)
    peer.send([bytes(80)], 80, None)  # no frame
    told = memoryview(bytearray(80))
    peer.arm(time.monotonic() + FAR_S)
    peer.receive(told, time.monotonic() + FAR_S)

    def receive_more():
        while True:
            peer.receive(memoryview(bytearray(1)), time.monotonic() + FAR_S)

    with pytest.raises((Unreachable, OSError)):
        receive_more()

    assert is_served(shard.connect("tls" if tls else "tcp"))


class Plain(Store):
    board = None


@pytest.mark.parametrize("rows", [SHORT, MIDDLE, LONG])
def test_idle_connections_have_no_turn(start, transport, rows, monkeypatch):
    shard = start()
    for kind in (Store, Plain):
        shard.store.__class__ = kind
        first, second = shard.connect(transport), shard.connect(transport)
        base = 10 if kind is Store else 20
        for start_ in range(2):
            assert is_served(first, base, start=start_, rows=rows)
            assert is_served(second, base + 1, start=start_, rows=rows)
