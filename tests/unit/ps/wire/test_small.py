"""Small pulls answered by compiled code: the same bytes as of Python, and never a stale row."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from tools.turns import examples
from tools.waiting import FAR_S, until

from edl.common.errors import EdlError
from edl.common.identity import Identity
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.proto import ps_pb2 as pb
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.dense import Chunk
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.state import ShardBooks
from edl.ps.books.store import Store
from edl.ps.metrics import Metrics
from edl.ps.rows.lock import SharedLock
from edl.ps.wire import board, frames
from edl.ps.wire.connection import PlaneEndpoint, PlaneShardConnection
from edl.ps.wire.frames import Head
from edl.ps.wire.plane import Plane
from edl.ps.wire.session import Session
from edl.ps.wire.shard import ShardPull, ShardPush
from edl.wire.stream import Stream

IDENTITY = Identity.create("secret")
SPEC = ModelSpec(
    (DenseSpec("w", (40, 50)), DenseSpec("bias", (3,)), DenseSpec("count", (), "buffer")),
    (TableSpec("t", 16), TableSpec("long name", 3), TableSpec("half", 3, dtype="float16")),
    optimizers.SGD(1.0),
)
KNOWN = np.arange(100, dtype=np.int64) * 7919


class Slow(Store):
    """A store that answers everything in Python."""

    def watch(self, make):
        return None


class Counted(Store):
    """A store that counts the pulls that Python answers."""

    asked = 0

    def plan_pull(self, **pull):
        self.asked += 1
        return super().plan_pull(**pull)


def filled(kind=Store, policy=None):
    store = of_dense(SPEC.dense, kind, policy)
    rows = {t.name: (KNOWN, np.ones((len(KNOWN), t.dim), np.float32)) for t in SPEC.tables}
    store.push(Span(0, 1, 0, 1), 0, Update({("bias", 0): np.ones(3, np.float32)}, rows))
    return store


def of_dense(dense, kind=Store, policy=None):
    """Return a store of these tensors, of one chunk each, and of SPEC's tables."""
    store = kind(index=0, slot_map=SlotMap(1), policy=policy or Policy(use_async=True))
    store.init(ModelSpec(dense, SPEC.tables, SPEC.optimizer), first_values(dense), True)
    return store


def first_values(dense):
    return {(d.name, 0): np.arange(d.elements, dtype=np.float32) for d in dense}


def step(store, position, *tensors):
    """Take one from all values of these tensors."""
    sizes = {d.name: d.elements for d in store.spec.dense}
    grads = {(name, 0): np.ones(sizes[name], np.float32) for name in tensors}
    store.push(Span(0, 1, position, position + 1), store.version, Update(grads, {}))


@contextlib.contextmanager
def served(store, transport="unix"):
    plane = Plane(lambda: store, Metrics(0).calls, index=0, identity=IDENTITY)
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
    """Return the bytes that a connection answers to these, after which nothing comes."""
    plane = Plane(lambda: store, Metrics(0).calls, index=0, identity=IDENTITY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        stream = Stream(theirs)
        stream.arm(None)
        with contextlib.suppress(EdlError, OSError):
            Session(plane.serving, stream).run()
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
    until(lambda: not plane.connections)
    registry = CollectorRegistry()
    registry.register(plane.serving.calls)
    metrics = generate_latest(registry).decode()
    assert 'edl_ps_rpc_duration_seconds_count{code="OK",method="Pull"} 4.0' in metrics
    assert "edl_ps_bytes_received_total 976.0" in metrics


FIRST = [
    TableSpec("uniform", 5, scale=0.3),
    TableSpec("zeros", 5, "zeros"),
    TableSpec("float16", 5, dtype="float16", scale=0.3),
    TableSpec("bfloat16", 5, dtype="bfloat16", rounding="stochastic"),
    TableSpec("no halves", 5, "zeros", dtype="float16"),
]


@pytest.mark.parametrize("transport", ["unix", "tls"])
@pytest.mark.parametrize("table", FIRST, ids=[t.name for t in FIRST])
def test_unknown_rows_are_answered_without_python(transport, table):
    """The ids are of any sign, and some are known."""
    store = Counted(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(ModelSpec((), (table,), optimizers.SGD(1.0), seed=3), {}, True)
    ids = np.array([-1, 0, 7, 2**62, -(2**63), 8])
    rows = {table.name: (ids[2:4], np.ones((2, table.dim), np.float32))}
    store.push(Span(0, 1, 0, 1), 0, Update({}, rows))
    expected = rows_of(store, table.name, ids)
    with served(store, transport) as (connection, _):
        for _ in range(2):
            pulled = pull(connection, **{table.name: ids}).tables[table.name]
            np.testing.assert_array_equal(expected, pulled)
    assert 1 == store.asked  # by this test
    assert 2 == len(store._state.parameters.tables[table.name])


def test_unknown_rows_of_a_normal_distribution_are_answered_by_python():
    store = Counted(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(ModelSpec((), (TableSpec("t", 4, "normal"),), optimizers.SGD(1.0)), {}, True)
    with served(store) as (connection, _):
        expected = rows_of(store, "t", KNOWN)
        np.testing.assert_array_equal(expected, pull(connection, t=KNOWN).tables["t"])
    assert 2 == store.asked


def rows_of(store, name, ids):
    return store.pull(dense=False, known_version=None, tables=[(name, ids)])[2][0]


ids_lists = st.lists(
    st.sampled_from(KNOWN.tolist()) | st.integers(-(2**63), 2**63 - 1), max_size=40
)
mostly_known = st.lists(st.sampled_from(KNOWN.tolist()), max_size=60) | ids_lists
names = st.sampled_from(["t", "half", "long name", "none", "T", ""])


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.tuples(names, mostly_known), max_size=4),
       st.sampled_from([0, 1, 2, 3, 4, 9]), st.sampled_from([0, 1, 2]),
       st.sampled_from([-(2**63), -1, 0, 1, 2, 2**63 - 1]), st.data())  # fmt: skip
def test_every_request_is_answered_as_python_answers_it(stores, tables, flags, code, known, data):
    whole = request(tables, flags, code, known=known)
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


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 1023, 1024, 1025, 90_000, 140_000]), max_size=6),
       st.sampled_from([0, 1, 90]), st.data())  # fmt: skip
def test_chunks_of_any_size_are_answered_as_python_answers_them(sizes, count, data):
    """Small ones are copied, large ones sent from where they live, and all are padded."""
    dense = tuple(DenseSpec(f"w{'x' * k}", (size,)) for k, size in enumerate(sizes))
    changed = data.draw(st.sets(st.sampled_from(dense)) if dense else st.just(()), "changed")
    answers = []
    for kind in Store, Slow:
        store = of_dense(dense, kind)
        rows = {"t": (KNOWN, np.ones((len(KNOWN), 16), np.float32))}
        store.push(Span(0, 1, 0, 1), 0, Update({}, rows))
        step(store, 1, *(d.name for d in changed))
        asked = [request([("t", KNOWN[:count])], flags, known=1) for flags in (1, 3)]
        answers.append([answer(store, each) for each in asked])
    compiled, plain = answers
    assert len(plain[0]) >= 80 + 4 * sum(sizes) + 64 * count
    assert plain == compiled


MANY = tuple(DenseSpec(f"w{k}", (k + 1,)) for k in range(256))
LARGE = (DenseSpec("w0", (100_000,)), DenseSpec("w1", (3,)), DenseSpec("w2", (700_000,)))


@pytest.mark.parametrize(
    ("transport", "dense"),
    [
        ("unix", MANY),
        ("tcp", MANY),
        ("tls", MANY),
        ("unix", LARGE),
        ("tcp", LARGE),
        ("tls", LARGE[:2]),
    ],
)
def test_chunks_that_changed_are_answered_without_python(monkeypatch, transport, dense):
    """The chunks are as many as compiled code knows, or some are larger than any buffer."""
    store = of_dense(dense)
    with served(store, transport) as (connection, _):
        connection.start_pull(ShardPull(False), FAR_S)()  # now there is a board
        step(store, 0, "w1")
        monkeypatch.setattr(store, "plan_pull", None)
        pulled = [connection.start_pull(ShardPull(True, v), FAR_S)() for v in (None, 0, 1, 2)]
        monkeypatch.undo()

        for each, names in zip(pulled, ([d.name for d in dense], ["w1"], [], ...), strict=True):
            assert names in (..., [name for name, _, _ in each.dense])
            for name, number, values in each.dense:
                expected = first_values(dense)[name, number] - (name == "w1")
                np.testing.assert_array_equal(expected, values)
        assert [1] * 4 == [each.version for each in pulled]
        assert len(dense) == len(pulled[3].dense)  # of one that saw a server that is gone


def test_what_compiled_code_has_no_room_for_is_answered_by_python(monkeypatch):
    """The chunks are one more than it knows, or too large, or rows leave them no room."""
    thousands = [("t", np.resize(KNOWN, 8_000))]
    monkeypatch.setattr(board, "_MOST_NBYTES", 1 << 20)
    more = (*MANY, DenseSpec("one more", (1,)))
    for dense, rows in (more, []), (LARGE, []), (MANY, thousands):
        store, plain = of_dense(dense, Counted), of_dense(dense, Slow)
        for each in store, plain:
            each.push(Span(0, 1, 0, 1), 0, Update({}, {"t": (KNOWN, np.ones((100, 16), "f"))}))
        whole = request(rows, 1)
        assert answer(plain, whole) == answer(store, whole)
        assert 1 == store.asked
    assert len(answer(store, request(thousands))) > 64 * 8_000
    assert 1 == store.asked


def test_encrypted_chunk_that_no_buffer_holds_is_answered_by_python():
    store = of_dense(LARGE, Counted)
    with served(store, "tls") as (connection, _):
        for known in None, 0:
            pulled = connection.start_pull(ShardPull(True, known), FAR_S)()
            step(store, known is not None, "w2")
        (name, _, values), asked = pulled.dense[0], store.asked
        assert ("w2", 2) == (name, asked)
        np.testing.assert_array_equal(first_values(LARGE)["w2", 0] - 1, values)


def test_waiting_goes_on_after_signals_without_python(monkeypatch):
    """SIGSTOP and SIGCONT, say, end each wait that has a timeout."""
    stores, got, asked = (of_dense(LARGE), of_dense(LARGE, Slow)), b"", []
    expected = answer(stores[1], request([], 1))
    receive_some = Stream.receive_some
    monkeypatch.setattr(
        Stream, "receive_some", lambda *given: asked.append("Python") or receive_some(*given)
    )
    plane = Plane(lambda: stores[0], Metrics(0).calls, index=0, identity=IDENTITY)
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with ours, theirs:
        stream = Stream(theirs)
        stream.arm(None)
        thread = threading.Thread(target=Session(plane.serving, stream).run)
        thread.start()
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        for _ in range(3):
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
        ours.sendall(request([], 1))
        while len(got) < len(expected):
            got += ours.recv(1 << 18)
        ours.shutdown(socket.SHUT_WR)
        thread.join(FAR_S)
    plane.close()
    signal.signal(signal.SIGUSR1, before)

    assert expected == got
    assert [] == asked


def test_sending_goes_on_after_signals():
    stores, got = (of_dense(LARGE), of_dense(LARGE, Slow)), b""
    expected = answer(stores[1], request([], 1))
    plane = Plane(lambda: stores[0], Metrics(0).calls, index=0, identity=IDENTITY)
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with ours, theirs:
        stream = Stream(theirs)
        stream.arm(None)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        thread = threading.Thread(target=Session(plane.serving, stream).run)
        thread.start()
        stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        ours.sendall(request([], 1))
        while len(got) < len(expected):
            for _ in range(4):  # the first one finds some sent, another one nothing
                until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
            got += ours.recv(1 << 18)
        ours.shutdown(socket.SHUT_WR)
        thread.join(FAR_S)
    plane.close()
    signal.signal(signal.SIGUSR1, before)
    assert expected == got


@pytest.mark.parametrize("use_async", [True, False])
def test_chunks_are_those_of_now_behind_a_pin_and_a_restore(use_async):
    store = of_dense(SPEC.dense, policy=Policy(use_async=use_async, grads_to_wait=1))

    def pulled(known):
        found = connection.start_pull(ShardPull(True, known), FAR_S)()
        return found.version, {name: values.tolist() for name, _, values in found.dense}

    with served(store) as (connection, _):
        assert [0.0, 1.0, 2.0] == pulled(None)[1]["bias"]
        step(store, 0, "bias", "count")
        assert (1, {"bias": [-1.0, 0.0, 1.0], "count": [1.0]}) == pulled(0)
        moment = store.pins.pin_moment("cut")
        step(store, 1, "bias")
        assert (2, {"bias": [-2.0, -1.0, 0.0]}) == pulled(1)
        store.pins.unpin_moment(moment)
        step(store, 2, "count")
        assert (3, {"count": [2.0]}) == pulled(2)
        chunk = Chunk(np.full(3, 7.0, np.float32), [], np.zeros(1, np.int64), 3)
        store.restorer.insert_chunk(("bias", 0), chunk)
        assert (3, {"bias": [7.0, 7.0, 7.0], "count": [2.0]}) == pulled(2)


def test_no_chunk_is_missed_beside_pushes_and_pins():
    """Whoever asks for what is newer than he knows has all steps up to the version told."""
    dense = (DenseSpec("w", (2_000,)), DenseSpec("bias", (3,)))
    store = of_dense(dense)
    steps, ended, wrong, last = 2_000, threading.Event(), [], []

    def read(connection):
        known, mine, over = None, {}, False
        while not over:
            over = ended.is_set()
            pulled = connection.start_pull(ShardPull(True, known), FAR_S)()
            mine |= {
                name: values - first_values(dense)[name, 0] for name, _, values in pulled.dense
            }
            known = pulled.version
            # odd steps are of "w" alone, all others of both
            least = {"w": known, "bias": known // 2}
            wrong.extend((known, name) for name in mine if -mine[name].max() < least[name])
        last.append((known, {name: -taken.max() for name, taken in mine.items()}))

    with served(store) as (one, _), served(store, "tcp") as (other, _):
        readers = [threading.Thread(target=read, args=(each,)) for each in (one, other)]
        for reader in readers:
            reader.start()
        for position in range(steps):
            moment = store.pins.pin_moment("cut") if position % 50 == 0 else None
            step(store, position, *(("w", "bias") if position % 2 else ("w",)))
            if moment is not None:
                store.pins.unpin_moment(moment)
        ended.set()
        for reader in readers:
            reader.join(FAR_S)
    assert not wrong
    assert [(steps, {"w": steps, "bias": steps / 2})] * 2 == last


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
@pytest.mark.parametrize("behind_a_push", [False, True])
def test_thousands_of_rows_are_answered_without_python(monkeypatch, transport, behind_a_push):
    """The rows' ids come in several encrypted records."""
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
    asking = [
        threading.Thread(target=lambda: boards.append(store.watch(board.Board))) for _ in range(4)
    ]
    with store._state.lock:  # so that all of them find none
        for thread in asking:
            thread.start()
        asking[-1].join(0.05)
    for thread in asking:
        thread.join(FAR_S)
    assert {id(store.watch(board.Board))} == {id(board) for board in boards}


def test_restored_store_is_asked_again():
    store = filled()
    with served(store) as (connection, _):
        before = pull(connection, t=KNOWN[:2])
        store.restorer.begin(SPEC, ShardBooks(9, 0, (), 0, Update({}, {})), new_job=False)
        for key, value in first_values(SPEC.dense).items():
            store.restorer.insert_chunk(key, Chunk(value, [], np.zeros(1, np.int64), 0))
        after = pull(connection, t=KNOWN[:2])
        assert (1, 9) == (before.version, after.version)
        first = filled(Slow)
        np.testing.assert_array_equal(after.tables["t"] - 1, rows_of(first, "t", KNOWN[:2]))


def test_torn_store_answers_no_more(monkeypatch):
    store = filled()
    with served(store) as (connection, _):
        pull(connection, t=KNOWN[:2])
        monkeypatch.setattr(store._state.parameters, "apply", None)
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
