"""The tensor plane refuses strangers and wrong requests, says why, and goes on."""

from __future__ import annotations

import contextlib
import socket

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import EdlError, PeerError, Unauthenticated, Unreachable
from edl.common.identity import IDENTITY_VARIABLE, Identity, job_identity
from edl.proto import ps_pb2 as pb
from edl.ps.books.parameters import Invalid
from edl.ps.wire import frames
from edl.ps.wire.frames import Head
from edl.ps.wire.shard import ShardPull
from edl.wire import handshake

from .planes import TRANSPORTS, Shard, frame, pull, push, received


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
        told = b"".join(iter(lambda: received(sock), b""))

    assert len(told) == handshake.CHALLENGE.size + handshake.VERDICT.size
    assert handshake.VERDICT.unpack(told[-handshake.VERDICT.size :])[2] == 0


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
    monkeypatch.setattr("edl.wire.listener.MOST_STRANGERS", 3)
    monkeypatch.setattr("edl.wire.listener.STRANGERS_S", 0.01)
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
    assert len(connection._pool._all) == 1
