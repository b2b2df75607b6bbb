"""Peers of the tensor plane that die, stop, rest or send garbage change nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import EdlError, Unreachable
from edl.proto import ps_pb2 as pb
from edl.ps.wire import frames
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.frames import Head
from edl.wire import handshake

from .planes import IDENTITY, TRANSPORTS, frame, pull, push, received


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
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.05)
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
    assert 0 == len(shard.plane._idle)


def test_connection_for_which_there_is_no_thread_ends_and_the_next_is_served(
    start, restless, monkeypatch, caplog
):
    shard = start()
    connection = shard.connect()
    connection.start_pull(pull(("t", [1])), FAR_S)()
    until(lambda: len(shard.plane._idle) == 1)
    begin, missing = threading.Thread.start, ["of an idle one", "of a new one"]

    def start_thread(thread):
        if thread.name == "ps" and missing:
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
    told = b"".join(iter(lambda: received(sock), b""))

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
    for link in list(connection._pool._all):
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
