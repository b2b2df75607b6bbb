"""Pulls and pushes over the tensor plane's real sockets, whatever the carrier."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from tools.waiting import FAR_S, until

from edl.common.errors import Unreachable
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Policy
from edl.ps.books.ledger import Span
from edl.ps.wire.connection import PlaneEndpoint
from edl.ps.wire.shard import ShardPull, ShardPush

from .planes import CHUNK, TRANSPORTS, pull, push


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
    def tried(within_s):
        shard = start(policy=Policy(grads_to_wait=2, staleness=0))
        return shard.connect().start_push(push(0, 8, [1], then=ShardPull(True)), within_s)()

    try:
        reply = tried(0.2)
    except Unreachable:  # a busy machine: the push itself took longer
        reply = tried(20.0)

    assert (reply.outcome, reply.pulled, list(reply.dense)) == (pb.PushReply.APPLIED, False, [])


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

    shares = [link.stream.shares_memory for c in (here, elsewhere, hidden) for link in c._pool._all]
    assert shares == [True, False, False]
