"""Small pulls answered by compiled code: the same bytes as Python answers, and never a stale row."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from edl.common.errors import EdlError
from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps import frames
from edl.ps.aggregation import Policy, Update
from edl.ps.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.frames import Head
from edl.ps.ledger import Span
from edl.ps.lock import SharedLock
from edl.ps.metrics import Metrics
from edl.ps.plane import Plane, _Session
from edl.ps.shard import ShardPull, ShardPush
from edl.ps.slots import SlotMap
from edl.ps.store import Books, Store
from edl.ps.stream import Stream

IDENTITY = Identity.create("secret")
SPEC = ModelSpec(
    (),
    (TableSpec("t", 16), TableSpec("long name", 3), TableSpec("half", 3, dtype="float16")),
    optimizers.SGD(1.0),
)
KNOWN = np.arange(100, dtype=np.int64) * 7919
FAR_S = 120.0  # a deadline that no test reaches, though kernels are compiled meanwhile


class Slow(Store):
    """Answers everything in Python."""

    board = None


def filled(kind=Store, policy=None):
    store = kind(index=0, slot_map=SlotMap(1), policy=policy or Policy(use_async=True))
    store.init(SPEC, {}, True)
    rows = {t.name: (KNOWN, np.ones((len(KNOWN), t.dim), np.float32)) for t in SPEC.tables}
    store.push(Span(0, 1, 0, 1), 0, Update({}, rows))
    return store


@contextlib.contextmanager
def served(store, transport="unix"):
    plane = Plane(lambda: store, Metrics(0), index=0, identity=IDENTITY)
    told = plane.listening
    endpoint = PlaneEndpoint("127.0.0.1", told.tcp_port, told.unix_name, told.host_id)
    connection = PlaneShardConnection(endpoint, IDENTITY, 1, transport=transport)
    try:
        yield connection, plane
    finally:
        connection.close()
        plane.close()


def pull(connection, **tables):
    return connection.start_pull(ShardPull(False, tables=tables), FAR_S)()


def answer(store, data):
    """The bytes that a connection answers to these, after which nothing comes."""
    plane = Plane(lambda: store, Metrics(0), index=0, identity=IDENTITY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        stream = Stream(theirs)
        stream.arm(None)
        with contextlib.suppress(EdlError, OSError):
            _Session(plane, stream).run()
        theirs.shutdown(socket.SHUT_RDWR)
        told = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    plane.close()
    return told


def request(tables, flags=0, code=1, **fields):
    told = tuple((frames.ROWS, frames.NONE, name, 0, len(ids)) for name, ids in tables)
    _, descriptors, _ = frames.describe(told)
    body = b"".join(np.asarray(ids, np.int64).tobytes() for _, ids in tables)
    body += bytes(frames.padded(len(body)) - len(body))
    head = Head(frames.PULL, flags, code, body_nbytes=len(body), **fields)
    return frames.pack_head(head._replace(descriptors_nbytes=len(descriptors))) + descriptors + body


@pytest.fixture(scope="module")
def stores():
    return filled(), filled(Slow)


@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_known_rows_are_answered_without_python(monkeypatch, transport):
    store = filled()
    with served(store, transport) as (connection, plane):
        first = pull(connection, t=KNOWN[:5])
        monkeypatch.setattr(store, "plan_pull", None)
        for _ in range(3):
            pulled = pull(connection, t=KNOWN[5:9], half=KNOWN[:1], **{"long name": KNOWN[:7]})
        monkeypatch.undo()
        assert first.tables["t"].shape == (5, 16)
        for name, ids in ("t", KNOWN[5:9]), ("half", KNOWN[:1]), ("long name", KNOWN[:7]):
            np.testing.assert_array_equal(pulled.tables[name], rows_of(store, name, ids))
        assert (pulled.outcome, pulled.version) == (pb.PullReply.OK, 1)
    # once a connection has ended it has counted its last call
    assert until(lambda: not plane.connections)
    metrics = generate_latest(plane.metrics.registry).decode()
    assert 'edl_ps_rpc_duration_seconds_count{code="OK",method="Pull"} 4.0' in metrics
    assert "edl_ps_bytes_received_total 976.0" in metrics


def rows_of(store, name, ids):
    return store.pull(dense=False, known_version=None, tables=[(name, ids)])[2][0]


def until(true):
    """Poll, for what another thread does."""
    deadline = time.monotonic() + FAR_S
    while not true() and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return true()


ids_lists = st.lists(
    st.sampled_from(KNOWN.tolist()) | st.integers(-(2**63), 2**63 - 1), max_size=40
)
mostly_known = st.lists(st.sampled_from(KNOWN.tolist()), max_size=60) | ids_lists
names = st.sampled_from(["t", "half", "long name", "none", "T", ""])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(names, mostly_known), max_size=4), st.sampled_from([0, 2, 1, 4, 9]),
       st.sampled_from([0, 1, 2]), st.data())  # fmt: skip
def test_every_request_is_answered_as_python_answers_it(stores, tables, flags, code, data):
    whole = request(tables, flags, code)
    for _ in range(data.draw(st.integers(0, 2), "bytes changed")):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    whole = whole[: data.draw(st.sampled_from([len(whole), len(whole), len(whole) // 2]))]
    whole += data.draw(st.sampled_from([b"", b"", request([("t", KNOWN[:3])]), b"x"]))
    compiled, plain = (answer(store, whole) for store in stores)
    assert plain == compiled


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 900, 8_000, 8_100])
def test_any_number_of_rows(stores, count):
    """The request of 8,100 is too long to be answered by compiled code."""
    whole = request([("t", np.resize(KNOWN, count)), ("half", KNOWN[:count])])
    assert answer(stores[1], whole) == answer(stores[0], whole)
    assert len(answer(stores[0], whole)) > 64 * count


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
@pytest.mark.parametrize("behind_a_push", [False, True])
def test_thousands_of_rows_are_answered_without_python(monkeypatch, transport, behind_a_push):
    """Their ids come in several encrypted records."""
    store = filled()
    with served(store, transport) as (connection, _):
        ids = np.resize(KNOWN, 8_000)
        if behind_a_push:
            new = np.arange(2_000) * 7919
            rows = {"t": (new, np.zeros((len(new), 16), np.float32))}
            connection.start_push(ShardPush(Span(0, 1, 1, 2), 1, tables=rows), FAR_S)()
        expected = rows_of(store, "t", ids)
        pull(connection, half=KNOWN)  # now there is a board
        monkeypatch.setattr(store, "plan_pull", None)
        for _ in range(2):
            np.testing.assert_array_equal(pull(connection, t=ids).tables["t"], expected)


def test_small_push_is_received_and_answered_without_python(monkeypatch):
    store = filled()
    with served(store, "tcp") as (connection, _):
        # Behind a large frame little is read at once.
        for position, count in ((1, 5_000), (2, 1_000)):
            ids = np.arange(count) * 7919
            rows = {"t": (ids, np.ones((count, 16), np.float32))}
            push = ShardPush(Span(0, 1, position, position + 1), 1, tables=rows)
            pushed = connection.start_push(push, FAR_S)()
            assert pushed.outcome == pb.PushReply.APPLIED
            monkeypatch.setattr(Stream, "receive", None)
            monkeypatch.setattr(Stream, "write", None)
        monkeypatch.undo()
        assert store.version == 3


def test_version_and_rows_are_those_of_now():
    store = filled()
    with served(store) as (connection, _):
        before = pull(connection, t=KNOWN[:2])
        grads = np.full((2, 16), 0.5, np.float32)
        store.push(Span(0, 1, 1, 2), 0, Update({}, {"t": (KNOWN[:2], grads)}))
        after = pull(connection, t=KNOWN[:2])
        assert (1, 2) == (before.version, after.version)
        np.testing.assert_array_equal(before.tables["t"] - 0.5, after.tables["t"])


def test_all_connections_have_one_board():
    store, boards = filled(), []
    asking = [threading.Thread(target=lambda: boards.append(store.board)) for _ in range(4)]
    with store._lock:  # so that all of them find none
        for thread in asking:
            thread.start()
        asking[-1].join(0.05)
    for thread in asking:
        thread.join(FAR_S)
    assert {id(store.board)} == {id(board) for board in boards}


def test_restored_store_is_asked_again():
    store = filled()
    with served(store) as (connection, _):
        before = pull(connection, t=KNOWN[:2])
        store.restore(SPEC, Books(9, 0, (), 0, Update({}, {})), new_job=False)
        after = pull(connection, t=KNOWN[:2])
        assert (1, 9) == (before.version, after.version)
        first = filled(Slow)
        np.testing.assert_array_equal(after.tables["t"] - 1, rows_of(first, "t", KNOWN[:2]))


def test_torn_store_answers_no_more(monkeypatch):
    store = filled()
    with served(store) as (connection, _):
        pull(connection, t=KNOWN[:2])
        monkeypatch.setattr(store._parameters, "apply", None)
        with pytest.raises(TypeError):
            store.push(Span(0, 1, 1, 2), 0, Update({}, {"t": (KNOWN[:1], np.ones((1, 16), "f"))}))
        with pytest.raises(EdlError, match="no longer exact"):
            pull(connection, t=KNOWN[:2])


def test_kernels_wait_for_nobody_and_somebody_alone_waits_for_them():
    lock = SharedLock()
    with lock.alone() as share:
        assert lock.word[0] != 0
        share()
        assert 0 == lock.word[0]
    lock.word[0] = 2  # a kernel shares
    went = []
    other = threading.Thread(target=lambda: went.append(lock.alone().__enter__()))
    other.start()
    other.join(0.05)
    assert not went
    lock._add(lock.word, -2)
    other.join(FAR_S)
    assert went


def test_table_may_grow_while_it_is_read():
    store = filled()
    ended = threading.Event()
    wrong = []

    def read(connection):
        expected = rows_of(store, "t", KNOWN)
        while not ended.is_set():
            if not np.array_equal(pull(connection, t=KNOWN).tables["t"], expected):
                wrong.append(store.version)

    with served(store) as (connection, _):
        readers = [threading.Thread(target=read, args=(connection,)) for _ in range(3)]
        for reader in readers:
            reader.start()
        grads = np.zeros((1_000, 16), np.float32)
        for step in range(1, 150):
            new = np.arange(1_000) + 10**9 * step
            store.push(Span(0, 1, step, step + 1), 0, Update({}, {"t": (new, grads)}))
        ended.set()
        for reader in readers:
            reader.join(FAR_S)
    assert not wrong
