"""The tensor plane over real sockets: what it refuses, survives, bounds and gives back."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import EdlError, PeerError, Unauthenticated, Unreachable
from edl.common.identity import IDENTITY_VARIABLE, Identity, job_identity
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.parameters import Invalid
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics
from edl.ps.wire import frames, handshake, stream
from edl.ps.wire.buffers import Buffers
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.frames import Head
from edl.ps.wire.plane import Plane
from edl.ps.wire.regions import make_region
from edl.ps.wire.shard import ShardPull, ShardPush

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


@pytest.fixture
def start():
    """Yield start(**options of Plane) -> Shard with a model."""
    with contextlib.ExitStack() as shards:

        def started(**options):
            shard = Shard(**options)
            shards.callback(shard.close)
            return shard.init()

        yield started


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


# -- Pull and push, whatever the carrier


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [1, 64, 20_000])
def test_rows_and_chunks_come_and_go_exactly(start, certified, transport, count):
    shard = start(identity=certified)
    connection = shard.connect(transport)
    ids, odd = np.arange(count) * 7, np.arange(count // 2 + 1)
    gradients = np.random.default_rng(0).standard_normal((count, 16), np.float32)
    of_odd = np.ones((len(odd), 3), np.float32)
    everything = pull(("t", ids), ("odd", odd), dense=True)

    before = connection.start_pull(everything, FAR_S)()
    pushed = connection.start_push(
        ShardPush(
            Span(0, 1, 0, 8),
            before.version,
            [("w", 1, np.ones(3, np.float32))],
            {"t": (ids, gradients), "odd": (odd, of_odd)},
        ),
        FAR_S,
    )()
    after = connection.start_pull(
        pull(("t", ids), ("odd", odd), dense=True, known_version=0), FAR_S
    )()

    assert (pushed.outcome, pushed.version, pushed.applied) == (pb.PushReply.APPLIED, 1, 8)
    assert [(t, n, len(v)) for t, n, v in before.dense] == [("w", 0, CHUNK), ("w", 1, 3)]
    np.testing.assert_array_equal(before.dense[0][2], np.arange(CHUNK, dtype=np.float32))
    assert [(t, n) for t, n, _ in after.dense] == [("w", 1)]  # the other has not changed
    np.testing.assert_array_equal(after.dense[0][2], before.dense[1][2] - 1)
    np.testing.assert_array_equal(after.tables["t"], before.tables["t"] - gradients)
    np.testing.assert_array_equal(after.tables["odd"], before.tables["odd"] - 1)


@pytest.mark.parametrize(("table", "count", "dim"), [("nine", 20_001, 9), ("half", 90_001, 3)])
def test_parts_of_a_reply_may_end_anywhere(start, table, count, dim):
    shard = start()
    ids, more = np.arange(count), np.arange(3)  # rows of 36 or 6 bytes, more than one part of them
    expected = shard.store.pull(dense=False, known_version=None, tables=[(table, ids), ("t", more)])

    reply = shard.connect().start_pull(pull((table, ids), ("t", more), dense=True), FAR_S)()

    assert reply.tables[table].shape == (count, dim)
    np.testing.assert_array_equal(reply.tables[table], expected[2][0])
    np.testing.assert_array_equal(reply.tables["t"], expected[2][1])
    np.testing.assert_array_equal(reply.dense[1][2], CHUNK + np.arange(3))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_chunks_are_written_where_they_are_wanted(start, transport):
    shard = start()
    values = np.zeros(CHUNK + 3, np.float32)
    request = ShardPull(True, into=lambda tensor, number: values[number * CHUNK :][:CHUNK])
    connection = shard.connect(transport)

    for _ in range(2):  # the second has a region for its reply
        values[:] = 0
        reply = connection.start_pull(request, FAR_S)()

        np.testing.assert_array_equal(values, np.arange(CHUNK + 3, dtype=np.float32))
        assert all(np.shares_memory(values, v) for _, _, v in reply.dense)


@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_gradients_travel_in_fewer_bytes(start, transport, wire):
    shard = start()
    connection = shard.connect(transport)
    ids = np.arange(5000)
    gradients = np.tile(np.linspace(-1, 1, 16, dtype=np.float32), (5000, 1))
    before = connection.start_pull(pull(("t", ids)), FAR_S)().tables["t"].copy()

    connection.start_push(
        ShardPush(
            Span(0, 1, 0, 8),
            0,
            [("w", 1, np.array([1, 0.5, 0], np.float32))],
            {"t": (ids, gradients)},
            wire,
        ),
        FAR_S,
    )()

    after = connection.start_pull(pull(("t", ids), dense=True), FAR_S)()
    np.testing.assert_allclose(before - after.tables["t"], gradients, atol=1 / 254)
    np.testing.assert_allclose(after.dense[1][2], CHUNK + np.array([-1, 0.5, 2]), atol=1 / 8)


def test_many_calls_run_at_the_same_time(start):
    shard = start()
    connection = shard.connect()
    waiters = [connection.start_pull(pull(("t", [n])), FAR_S) for n in range(20)]

    rows = [wait().tables["t"] for wait in reversed(waiters)]

    expected = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(20))])[2]
    np.testing.assert_array_equal(np.concatenate(rows[::-1]), expected[0])


def test_push_brings_the_chunks_of_its_version_once_it_is_made(start):
    shard = start(policy=Policy(grads_to_wait=2, staleness=0))
    chunks = [("w", 1, np.full(3, 2, np.float32))]
    then = ShardPull(True, 0)
    connection = shard.connect()
    first = connection.start_push(ShardPush(Span(0, 1, 0, 8), 0, chunks, then=then), FAR_S)
    until(lambda: shard.store.ledger())

    second = connection.start_push(ShardPush(Span(1, 1, 0, 8), 0, chunks, then=then), FAR_S)()
    first = first()

    for reply in first, second:
        assert (reply.outcome, reply.version, reply.pulled) == (pb.PushReply.APPLIED, 1, True)
        assert [(t, n, v.tolist()) for t, n, v in reply.dense] == [
            ("w", 1, [CHUNK - 2, CHUNK - 1, CHUNK])
        ]


def test_push_and_what_it_brings_lie_in_two_regions(start):
    connection = start().connect("shm")
    everything = pull(dense=True, known_version=None)
    before = connection.start_pull(everything, FAR_S)()  # a large reply is expected from now on
    del before
    ids = np.arange(20_000)
    for step in range(3):
        asked = push(step, step + 1, ids, then=everything)
        pushed = connection.start_push(asked, FAR_S)()
        assert (True, 2) == (pushed.pulled, len(pushed.dense))
        np.testing.assert_array_equal(np.arange(CHUNK, dtype=np.float32), pushed.dense[0][2])


def test_version_that_does_not_come_in_time_brings_nothing(start):
    shard = start(policy=Policy(grads_to_wait=2, staleness=0))

    reply = shard.connect().start_push(push(0, 8, [1], then=ShardPull(True)), 0.2)()

    assert (reply.outcome, reply.pulled, list(reply.dense)) == (pb.PushReply.APPLIED, False, [])


# -- What is refused


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_other_token_is_refused_by_both_ends(start, transport):
    connection = start().connect(transport, Identity("guess"))

    with pytest.raises(Unauthenticated, match="does not hold"):
        connection.start_pull(pull(), FAR_S)()


def test_peer_without_the_proof_is_not_listened_to(start):
    shard = start()
    with socket.create_connection(("127.0.0.1", shard.plane.listening.tcp_port)) as sock:
        sock.sendall(handshake.HELLO.pack(frames.MAGIC, frames.PROTOCOL, 0, bytes(32)) + bytes(32))
        sock.sendall(frame(Head(frames.PULL, frames.DENSE)))
        told = b"".join(iter(lambda: _received(sock), b""))

    assert len(told) == handshake.CHALLENGE.size + handshake.VERDICT.size
    assert handshake.VERDICT.unpack(told[-handshake.VERDICT.size :])[2] == 0


def _received(sock):
    try:
        return sock.recv(1000)
    except ConnectionResetError:
        return b""


def test_other_certificate_is_refused(start, certified):
    shard = start(identity=certified)
    connection = shard.connect("tls", Identity.create(certified.token))

    with pytest.raises(Unauthenticated, match="another identity"):
        connection.start_pull(pull(), FAR_S)()


def test_server_refuses_a_client_of_another_certificate(start, certified):
    shard = start(identity=certified)
    other = Identity.create(certified.token)
    context = other.client_context
    context.check_hostname, context.verify_mode = False, 0  # a client that trusts anybody
    sock = socket.create_connection(("127.0.0.1", shard.plane.listening.tcp_port))
    with context.wrap_socket(sock) as wrapped, contextlib.suppress(OSError):
        wrapped.sendall(bytes(40))
        assert wrapped.recv(1) == b""
    until(lambda: not shard.plane.connections)


def test_idle_strangers_make_room_for_each_other_and_keep_nobody_out(start, monkeypatch):
    monkeypatch.setattr("edl.ps.wire.plane.MOST_STRANGERS", 3)
    monkeypatch.setattr("edl.ps.wire.plane.STRANGERS_S", 0.01)
    shard = start()
    where = ("127.0.0.1", shard.plane.listening.tcp_port)
    idle = []
    for _ in range(10):
        idle.append(socket.create_connection(where, 10))
        until(lambda: shard.plane.connections == min(len(idle), 3))
    ended = [sock.recv(1) for sock in idle[:7]]

    replies = [shard.connect().start_pull(pull(), FAR_S)() for _ in range(4)]

    assert [b""] * 7 == ended
    assert [pb.PullReply.OK] * 4 == [reply.outcome for reply in replies]
    for sock in idle:
        sock.close()


def test_plane_needs_a_token():
    with pytest.raises(ValueError, match="token"):
        Shard(Identity(""))


def test_identity_travels_in_the_environment(monkeypatch, certified):
    monkeypatch.setenv(IDENTITY_VARIABLE, certified.to_variable())

    assert job_identity("secret") == certified
    assert "secret" not in repr(certified)
    with pytest.raises(ValueError, match="no identity"):
        Identity.from_variable("bm9uZQ==")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pull(("unknown", [1])), "INVALID_ARGUMENT: unknown table"),
        (pull(cut="c"), "cut 'c' is not pinned"),
        (push(0, 8, [1, 1]), "INVALID_ARGUMENT: .* not unique"),
        (push(0, 8, 50_000 * [1]), "INVALID_ARGUMENT: .* not unique"),
        (push(0, 8, dense=[("w", 9, np.zeros(3, np.float32))]), "INVALID_ARGUMENT: chunk 9"),
    ],
    ids=["table", "cut", "twice", "twice, values dropped", "chunk"],
)
def test_refusal_is_told_and_the_connection_goes_on(start, request_, message):
    shard = start()
    connection = shard.connect()
    begin = connection.start_pull if isinstance(request_, ShardPull) else connection.start_push

    with pytest.raises(EdlError, match=message) as error:
        begin(request_, FAR_S)()

    assert not isinstance(error.value, PeerError)
    assert connection.start_push(push(0, 8, [1]), FAR_S)().outcome == pb.PushReply.APPLIED
    assert shard.plane.connections == 1


def test_server_without_a_store_is_unreachable(start):
    shard = start()
    shard.attached = False

    with pytest.raises(Unreachable, match="is starting"):
        shard.connect().start_push(push(0, 8, range(10_000)), FAR_S)()


def test_other_slot_map_is_moved(start):
    connection = start().connect(slot_map_version=2)

    assert connection.start_pull(pull(("t", [1])), FAR_S)().outcome == pb.PullReply.MOVED
    assert connection.start_push(push(0, 8, [1]), FAR_S)().outcome == pb.PushReply.MOVED


def test_uninitialized_is_told():
    shard = Shard()
    try:
        connection = shard.connect()
        assert connection.start_pull(pull(("t", [1])), FAR_S)().outcome == 1
        pushed = connection.start_push(push(0, 8, [1]), FAR_S)()
        assert pushed.outcome == pb.PushReply.UNINITIALIZED
    finally:
        shard.close()


def test_reply_that_breaks_off_is_no_reply(start, monkeypatch):
    shard = start()
    plan_pull = shard.store.plan_pull

    def breaking(**asked):
        plan = plan_pull(**asked)
        (rows,) = plan.tables

        class Breaking:
            dim, dtype = rows.dim, rows.dtype

            def gather(self, first, stop, out):
                if stop == 65532:
                    raise Invalid("as long as what is missing" * 9)
                rows.gather(first, stop, out)

        plan.tables = [Breaking()]
        return plan

    monkeypatch.setattr(shard.store, "plan_pull", breaking)

    with pytest.raises(Unreachable):
        shard.connect().start_pull(pull(("t", np.arange(65532))), FAR_S)()  # four rows are missing


def test_nothing_is_paced_on_loopback(start):
    shard = start()
    ours, _ = shard.peer()
    until(lambda: shard.plane._peers)
    theirs = next(iter(shard.plane._peers)).stream._sock

    found = [s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) for s in (ours, theirs)]

    assert [name.rstrip(b"\0") for name in found] == [b"reno", b"reno"]


def test_only_the_sender_sends_on_loopback(start):
    shard = start()
    ours, _ = shard.peer()
    until(lambda: shard.plane._peers)
    theirs = next(iter(shard.plane._peers)).stream._sock

    found = [s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) for s in (ours, theirs)]

    assert found == [1 << 16, 1 << 16]


# -- Peers that fail


def test_peer_that_dies_in_mid_frame_changes_nothing(start):
    shard = start()
    before = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(9999))])
    sock, _ = shard.peer()
    head = Head(frames.PUSH, attempt=1, end=8)
    sock.sendall(frame(head, (frames.ROWS, frames.FLOAT32, "t", 16, 9999)))
    sock.sendall(np.arange(9999).tobytes() + bytes(9999 * 64 - 7))
    until(lambda: shard.plane.buffers.nbytes)
    sock.close()
    until(lambda: not shard.plane.connections)

    after = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(9999))])
    assert (shard.store.version, shard.store.ledger()) == (0, ())
    np.testing.assert_array_equal(before[2][0], after[2][0])
    assert shard.plane.buffers.kept == shard.plane.buffers.nbytes  # nothing is lent any more
    assert shard.connect().start_push(push(0, 8, [1]), FAR_S)().outcome == pb.PushReply.APPLIED


@pytest.mark.parametrize("tls", [False, True])
def test_peer_that_stops_in_mid_frame_is_given_up(start, certified, tls):
    shard = start(stall_s=0.05, identity=certified)
    sock, peer = shard.peer(tls)
    peer.write(frame(Head(frames.PULL))[:50], None)

    assert sock.recv(1) == b""


def test_bytes_that_were_changed_on_their_way_end_an_encrypted_connection(start, certified, caplog):
    shard = start(identity=certified)
    sock, peer = shard.peer(tls=True)
    peer._tls.write(frame(Head(frames.PUSH), (frames.CHUNK, frames.FLOAT32, "w", 1, 3)) + bytes(16))
    record = bytearray(peer._to_send.read())
    record[-20] ^= 1
    sock.sendall(record)

    until(lambda: not shard.plane.connections)
    assert "BAD_RECORD_MAC" in caplog.text
    assert (shard.store.version, shard.store.ledger()) == (0, ())


def test_silent_peer_of_a_tls_handshake_is_given_up(start, certified, monkeypatch):
    monkeypatch.setattr(stream, "HANDSHAKE_S", 0.05)
    shard = start(identity=certified)
    with socket.create_connection(("127.0.0.1", shard.plane.listening.tcp_port)) as sock:
        sock.sendall(b"\x16\x03\x01")
        assert sock.recv(1) == b""


@pytest.fixture
def restless(monkeypatch):
    """Have connections be idle at once."""
    monkeypatch.setattr("edl.ps.wire.plane.REST_S", 0.01)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_idle_peer_is_not_given_up_and_has_no_buffers(start, certified, transport, restless):
    shard = start(identity=certified)
    connection, ids = shard.connect(transport), np.arange(20_000)
    for turn in range(3):
        connection.start_push(push(turn, turn + 1, ids[:5_000]), FAR_S)()
        reply = connection.start_pull(pull(("t", ids)), FAR_S)()
        until(lambda: len(shard.plane._idle) == 1)
        (session,) = shard.plane._peers
        _, _, (rows,) = shard.store.pull(dense=False, known_version=None, tables=[("t", ids)])

        assert np.array_equal(rows, reply.tables["t"])
        assert shard.plane.connections == 1
        assert (0, 0) == (session._received.first.nbytes, session._received.view.nbytes)
        assert shard.plane.parts.kept == shard.plane.parts.nbytes
    assert shard.store.version == 3


def test_idle_peer_that_hangs_up_is_forgotten(start, restless):
    shard = start()
    sock, _ = shard.peer()
    until(lambda: len(shard.plane._idle) == 1)

    sock.close()

    until(lambda: not shard.plane.connections)


def test_connection_for_which_there_is_no_thread_ends_and_the_next_is_served(
    start, restless, monkeypatch, caplog
):
    shard = start()
    connection = shard.connect()
    connection.start_pull(pull(("t", [1])), FAR_S)()
    until(lambda: len(shard.plane._idle) == 1)
    begin, missing = threading.Thread.start, ["of an idle one", "of a new one"]

    def start_thread(thread):
        if thread.name == "plane" and missing:
            missing.pop()
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start_thread)
    for _ in range(2):
        with pytest.raises(Unreachable):
            connection.start_pull(pull(("t", [1])), FAR_S)()

    assert connection.start_pull(pull(("t", [1])), FAR_S)().outcome == pb.PullReply.OK
    assert caplog.text.count("can't start new thread") == 2


def test_plane_hangs_up_on_idle_peers_when_it_closes(start, restless):
    shard = start()
    sock, _ = shard.peer()
    until(lambda: len(shard.plane._idle) == 1)

    shard.plane.close()

    assert sock.recv(1) == b""
    until(lambda: not shard.plane.connections)


def test_peer_whose_request_comes_slowly_is_not_idle(start, restless):
    shard = start()
    _, peer = shard.peer()
    request = frame(Head(frames.PULL), (frames.ROWS, frames.NONE, "t", 0, 1)) + bytes(16)
    told = memoryview(bytearray(frames.HEAD_NBYTES))
    for part in (request[:40], request[40:90], request[90:]):
        peer.write(part, None)
        threading.Event().wait(0.1)

    peer.receive(told, time.monotonic() + FAR_S)

    assert frames.parse_head(told, frames.REPLIES).op == frames.PULLED


@pytest.mark.parametrize("garbage", [b"\0" * 80, b"EDLP\1\1" + b"\xff" * 74], ids=["zeros", "huge"])
def test_malformed_frame_is_told_and_ends_the_connection(start, garbage):
    shard = start()
    sock, _ = shard.peer()
    sock.sendall(garbage)
    told = b"".join(iter(lambda: _received(sock), b""))

    assert frames.parse_head(told, frames.REPLIES).code == 3
    assert shard.plane.buffers.nbytes == 0  # nothing was allocated for it


def test_client_finds_a_server_that_was_started_again(start):
    shard, successor = start(), start()
    connection = shard.connect()
    connection.start_push(push(0, 8, [1]), FAR_S)()
    shard.plane.close()
    with pytest.raises(Unreachable):
        connection.start_pull(pull(("t", [1])), FAR_S)()
    connection._endpoint = successor.endpoint

    reply = connection.start_push(push(0, 8, [1]), FAR_S)()

    assert reply.outcome == pb.PushReply.APPLIED


def test_push_whose_reply_was_lost_is_applied_once(start):
    shard = start()
    connection = shard.connect()
    lost = connection.start_push(push(0, 8, [1]), FAR_S)  # sent, and its reply is not read
    until(lambda: shard.store.version == 1)
    for link in list(connection._links):
        link.stream.abort()

    reply = connection.start_push(push(0, 8, [1]), FAR_S)()

    assert (reply.outcome, reply.applied) == (pb.PushReply.DUPLICATE, 8)
    assert shard.store.version == 1
    with contextlib.suppress(Unreachable):
        lost()  # closes its socket


@contextlib.contextmanager
def mute():
    """Yield the endpoint of a server that admits and then says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def admit():
        with contextlib.suppress(OSError, EdlError):
            while True:
                kept.append(handshake.admit(listener.accept()[0], IDENTITY, FAR_S, 0))

    thread = threading.Thread(target=admit, daemon=True)
    thread.start()
    try:
        yield PlaneEndpoint("127.0.0.1", listener.getsockname()[1], "", "")
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for peer in kept:
            peer.close()


@pytest.mark.parametrize("ids", [1, 4_000_000], ids=["receiving", "sending"])
def test_deadline_fires(ids):
    with mute() as endpoint:
        connection = PlaneShardConnection(endpoint, IDENTITY, 1, transport="tcp")

        with pytest.raises(Unreachable):
            connection.start_pull(pull(("t", np.arange(ids))), 0.1)()
        connection.close()


def test_close_wakes_whoever_waits():
    with mute() as endpoint:
        connection = PlaneShardConnection(endpoint, IDENTITY, 1, transport="tcp")
        wait = connection.start_pull(pull(("t", [1])), FAR_S)
        found = []

        def waiting():
            with pytest.raises(Unreachable) as error:
                wait()
            found.append(error.value)

        waiter = threading.Thread(target=waiting)
        waiter.start()
        connection.close()
        waiter.join(FAR_S)

        assert len(found) == 1
        with pytest.raises(Unreachable, match="closed"):
            connection.start_pull(pull(), FAR_S)()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_plane_hangs_up_on_everybody_when_it_closes(start, certified, transport):
    shard = start(identity=certified)
    shard.connect(transport).start_pull(pull(("t", [1])), FAR_S)()
    sock, _ = shard.peer()

    shard.plane.close()

    assert sock.recv(1) == b""
    until(lambda: not shard.plane.connections)


# -- Memory


def test_slow_server_bounds_the_memory_of_pushes(start):
    budget = 4 << 20
    shard = start(budget_nbytes=budget)
    entered, go = threading.Semaphore(0), threading.Event()
    apply, shard.store.push = shard.store.push, None

    def slow(*arguments, **options):
        entered.release()
        assert go.wait(FAR_S)
        return apply(*arguments, **options)

    shard.store.push = slow
    connection = shard.connect()
    ids = np.arange(20_000)  # 1.4 MB
    replies = []

    def one(task):
        values = np.ones((len(ids), 16), np.float32)
        request = ShardPush(Span(task, 1, 0, 8), 0, tables={"t": (ids, values)})
        replies.append(connection.start_push(request, FAR_S)().outcome)

    threads = [threading.Thread(target=one, args=(task,)) for task in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert entered.acquire(timeout=FAR_S)
    until(lambda: shard.plane.buffers.waiting == 6)

    assert shard.plane.buffers.nbytes <= budget
    go.set()
    for thread in threads:
        thread.join(FAR_S)
    assert replies == 8 * [pb.PushReply.APPLIED]
    assert shard.plane.buffers.nbytes <= budget


def test_push_that_a_pin_waits_for_needs_no_budget(start):
    shard = start(budget_nbytes=2 << 20)
    store, ids = shard.store, np.arange(20_000)  # 1.4 MB
    assert store.push(Span(1, 1, 0, 8), 0, Update()).outcome is Outcome.APPLIED
    store.pins.freeze("c", FAR_S)
    connection = shard.connect()
    replies = []

    def one(task, first):
        tables = {"t": (ids, np.ones((len(ids), 16), np.float32))}
        request = ShardPush(Span(task, 1, first, first + 8), 0, tables=tables)
        replies.append((task, connection.start_push(request, FAR_S)().outcome))

    threads = [threading.Thread(target=one, args=spans) for spans in ((0, 0), (1, 8))]
    threads[0].start()  # held back with all of the budget
    until(lambda: shard.plane.buffers.nbytes)
    threads[1].start()
    until(lambda: shard.plane.buffers.waiting)

    assert store.pins.pin("c", {1: 16}, FAR_S) == (True, 2)

    for thread in threads:
        thread.join(FAR_S)
    assert sorted(replies) == [(0, pb.PushReply.APPLIED), (1, pb.PushReply.APPLIED)]
    assert shard.plane.buffers.nbytes <= 2 << 20


def test_memory_that_is_given_back_wakes_one_of_those_that_wait_for_it(monkeypatch):
    monkeypatch.setattr("edl.ps.wire.buffers._LOOK_S", FAR_S)
    buffers, looks, taken = Buffers(1 << 20), [], []

    def take(number):
        taken.append((number, buffers.take(1 << 20, lambda: looks.append(number) or False)))

    first = buffers.take(1 << 20)
    for number in range(5):
        threading.Thread(target=take, args=(number,), daemon=True).start()
        until(lambda number=number: buffers.waiting == number + 1)
    for number in range(5):
        buffers.give(taken[-1][1] if taken else first)
        until(lambda number=number: len(taken) == number + 1)

    assert list(range(5)) == [number for number, _ in taken]
    assert list(range(5)) == looks  # each, before it waited


def test_push_beyond_the_budget_is_refused(start):
    shard = start(budget_nbytes=1 << 20)

    with pytest.raises(EdlError, match="this server takes"):
        shard.connect().start_push(push(0, 8, np.arange(20_000)), FAR_S)()


def test_buffers_that_do_not_fit_make_room():
    buffers = Buffers(4 << 20)
    buffers.give(buffers.take(3 << 20))

    assert len(buffers.take(2 << 20)) == 4 << 20  # the one that is there
    with pytest.raises(Invalid):
        buffers.take(5 << 20)
    buffers = Buffers(4 << 20)
    for size in (1, 2, 4):
        buffers.give(buffers.take(size << 20))
    assert (buffers.nbytes, buffers.kept) == (4 << 20, 4 << 20)


def test_large_buffers_may_have_huge_pages():
    buffer = Buffers(8 << 20).take(3 << 20)

    assert (len(buffer), buffer.ctypes.data % (2 << 20)) == (4 << 20, 0)
    smaps = re.findall(
        r"^(\w+)-(\w+) (\S+).*?VmFlags: (.*?)$",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    (found,) = [
        (access, flags.split())
        for begin, end, access, flags in smaps
        if int(begin, 16) <= buffer.ctypes.data < int(end, 16)
    ]
    assert found[0] == "rw-p"  # memory that is shared has none, unless the system is told to
    assert "hg" in found[1]


# -- Shared regions


def test_region_is_used_again_when_its_views_are_gone(start):
    shard = start()
    connection = shard.connect("shm")
    request = pull(("t", np.arange(10_000)))
    connection.start_pull(request, FAR_S)()  # tells the client how wide rows are
    held = connection.start_pull(request, FAR_S)().tables["t"]
    expected = held.copy()
    (link,) = connection._links
    regions = link.regions.sizes

    again = connection.start_pull(request, FAR_S)().tables["t"]

    assert not np.shares_memory(held, again)
    np.testing.assert_array_equal(held, expected)
    assert len(link.regions) == len(regions) + 1
    del held, again
    gc.collect()
    for _ in range(5):
        connection.start_pull(request, FAR_S)()
    assert len(link.regions) == len(regions) + 1
    assert link.regions.free == len(link.regions)


def test_rows_are_views_of_shared_memory(start):
    connection = start().connect("shm")
    request = pull(("t", np.arange(10_000)))
    connection.start_pull(request, FAR_S)()

    rows = connection.start_pull(request, FAR_S)().tables["t"]

    assert not rows.flags.owndata


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_region_that_could_shrink_is_refused(start, seals):
    shard = start()
    fd = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)

    assert "sealed" in shared(shard, fd, 4096)


def test_region_that_is_too_short_is_refused(start):
    fd, _ = make_region(4096)

    assert "long enough" in shared(start(), fd, 8192)


def test_descriptor_that_is_no_memory_is_refused(start):
    assert "no shared region" in shared(start(), os.open("/dev/null", os.O_RDWR), 4096)


def shared(shard, fd, nbytes):
    """Return the error that the server tells of a region."""
    sock, peer = shard.unix_peer()
    told = bytearray(1000)
    sock.sendall(frames.pack_head(Head(frames.MAP, body_nbytes=nbytes, body_region=1)))
    assert sock.recv_into(told) == frames.HEAD_NBYTES
    peer.send_descriptor(fd)
    os.close(fd)
    count = sock.recv_into(told)
    sock.close()
    assert frames.parse_head(told, frames.REPLIES).op == frames.ERROR
    return frames.error_text(told[frames.HEAD_NBYTES : count])


def test_regions_are_not_shared_over_tcp(start):
    shard = start()
    sock, _ = shard.peer()
    sock.sendall(frames.pack_head(Head(frames.MAP, body_nbytes=4096, body_region=1)))
    told = b"".join(iter(lambda: _received(sock), b""))

    assert frames.parse_head(told, frames.REPLIES).op == frames.ERROR


class Later:
    """A peer whose push of rows of ones lies in a region, its values not yet."""

    def __init__(self, shard, ids):
        self._sock, peer = shard.unix_peer()
        fd, self._memory = make_region(1 << 20)
        self._sock.sendall(frames.pack_head(Head(frames.MAP, body_nbytes=1 << 20, body_region=1)))
        self.reply()
        peer.send_descriptor(fd)
        os.close(fd)
        self.reply()
        self._ids = np.asarray(ids, np.int64)
        self._memory[: self._ids.nbytes] = self._ids.view(np.uint8)
        head = Head(frames.PUSH, frames.LATER, attempt=1, end=8, body_region=1)
        told = (frames.ROWS, frames.FLOAT32, "t", 16, len(ids))
        self._sock.sendall(frame(head, told))

    def complete(self):
        values = np.ones((len(self._ids), 16), np.float32)
        start = frames.padded(self._ids.nbytes)
        self._memory[start : start + values.nbytes] = values.reshape(-1).view(np.uint8)
        self._sock.sendall(b"V")

    def reply(self):
        """Return the head of the reply; None: the server hung up."""
        told = self._sock.recv(1000)
        return frames.parse_head(told, frames.REPLIES) if told else None

    def close(self):
        self._sock.close()


def test_ids_in_a_region_are_checked_before_the_values_are_there(start, monkeypatch):
    shard = start()
    checked = threading.Event()
    check_rows = shard.store.check_rows
    monkeypatch.setattr(
        shard.store, "check_rows", lambda *asked: (check_rows(*asked), checked.set())
    )
    before = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(3))])

    peer = Later(shard, np.arange(3))
    assert checked.wait(FAR_S)
    assert shard.store.version == 0
    peer.complete()

    assert peer.reply().code == pb.PushReply.APPLIED
    after = shard.store.pull(dense=False, known_version=None, tables=[("t", np.arange(3))])
    np.testing.assert_array_equal(after[2][0], before[2][0] - 1)


@pytest.mark.parametrize("ends", ["stops", "dies"])
def test_push_whose_values_never_come_changes_nothing(start, ends):
    shard = start(stall_s=0.05 if ends == "stops" else FAR_S)

    peer = Later(shard, np.arange(3))
    if ends == "dies":
        peer.close()
    else:
        assert peer.reply() is None
    until(lambda: not shard.plane.connections)

    assert (shard.store.version, shard.store.ledger()) == (0, ())


def test_refusal_waits_for_the_values_so_that_the_region_is_free(start):
    shard = start()

    peer = Later(shard, [1, 1])
    peer.complete()

    assert (peer.reply().op, shard.store.version) == (frames.ERROR, 0)
    peer._sock.sendall(frames.pack_head(Head(frames.PULL)))
    assert peer.reply().op == frames.PULLED


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_large_push_of_ids_that_come_twice_is_refused_and_changes_nothing(
    start, certified, transport
):
    shard = start(identity=certified)
    connection = shard.connect(transport)

    with pytest.raises(EdlError, match="twice|unique"):
        connection.start_push(push(0, 8, np.arange(20_000) // 2), FAR_S)()

    assert shard.store.version == 0
    assert connection.start_push(push(0, 8, [1]), FAR_S)().outcome == pb.PushReply.APPLIED
    assert len(connection._links) == 1


def test_body_in_a_region_that_is_not_shared_is_malformed(start):
    shard = start()
    sock, _ = shard.unix_peer()
    head = Head(frames.PULL, body_region=3)
    sock.sendall(frame(head, (frames.ROWS, frames.NONE, "t", 0, 4)))
    told = b"".join(iter(lambda: _received(sock), b""))

    assert frames.error_text(told[frames.HEAD_NBYTES :]) == "region 3 has 0 bytes, not 32"


def test_auto_takes_shared_memory_here_and_tcp_elsewhere(start):
    shard = start()
    here = shard.connect("auto")
    here.start_pull(pull(("t", [1])), FAR_S)()
    elsewhere = shard.connect("auto")
    told = shard.endpoint
    elsewhere._endpoint = PlaneEndpoint(told.host, told.tcp_port, told.unix_name, "another host")
    elsewhere.start_pull(pull(("t", [1])), FAR_S)()
    hidden = shard.connect("auto")
    hidden._endpoint = PlaneEndpoint(told.host, told.tcp_port, "not there", told.host_id)
    hidden.start_pull(pull(("t", [1])), FAR_S)()

    shares = [link.stream.shares_memory for c in (here, elsewhere, hidden) for link in c._links]
    assert shares == [True, False, False]
