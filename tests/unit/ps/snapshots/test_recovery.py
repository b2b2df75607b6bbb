"""A shard's own snapshots: the way back is exact, whatever fails as they are written or later."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tools.stores import clear_memory
from tools.turns import examples, in_turn

from edl.common import files
from edl.common.errors import CheckpointError, EdlError, UsageError
from edl.common.identity import job_id
from edl.common.pieces import decode
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.state import ShardBooks
from edl.ps.books.store import Store
from edl.ps.snapshots import cut as snapshot
from edl.ps.snapshots import recorder as recorder_module
from edl.ps.snapshots import recovery
from edl.ps.snapshots.chain import Folder, Parent, link_name
from edl.ps.snapshots.recorder import Coverage, Recorder, Snapshots
from edl.ps.snapshots.recovery import restore

IDS = np.arange(0, 900, 3, dtype=np.int64) * 1_000_003 - 5
ASYNC = Policy(use_async=True)
SYNC = Policy(grads_to_wait=4, staleness=0)
COUNTS = ModelSpec((DenseSpec("w", (2,)),), (TableSpec("t", 1, "zeros"),), optimizers.SGD(1.0))


def model(optimizer, **table):
    dense = [DenseSpec(f"layer{i}", (3, i + 1)) for i in range(4)]
    dense += [DenseSpec("running_mean", (4,), "buffer")]
    tables = (TableSpec("users", 3, **table), TableSpec("items", 2, "normal", 0.1))
    return ModelSpec(tuple(dense), tables, optimizer, 7)


ADAM = model(optimizers.Adam(lr=0.01, amsgrad=True))


def empty(policy=ASYNC):
    return Store(index=0, slot_map=SlotMap(1), policy=policy)


def begun(spec, policy=ASYNC):
    store = empty(policy)
    rng = np.random.default_rng(99)
    chunks = {(d.name, 0): rng.normal(size=d.elements).astype(np.float32) for d in spec.dense}
    store.init(spec, chunks, True)
    return store


def push(store, spec, number):
    """Push number `number` of a fixed run: some tensors, some rows."""
    rng = np.random.default_rng(1000 + number)
    dense = {
        (d.name, 0): rng.normal(size=d.elements).astype(np.float32)
        for k, d in enumerate(spec.dense)
        if (k + number) % 3
    }
    rows = {}
    for table in spec.tables:
        ids = np.sort(rng.permutation(IDS[: 20 + 10 * number])[:30])
        rows[table.name] = ids, rng.normal(size=(len(ids), table.dim)).astype(np.float32)
    span = Span(number // 10, 1, number % 10, number % 10 + 1)
    assert Outcome.APPLIED == store.push(span, store.version, Update(dense, rows)).outcome


def everything(store):
    """Return all that the next step depends on, by name."""
    store.pins.freeze("look", 9.0)
    assert store.pins.pin("look", {}, 9.0)[0]
    spec, books = store.pins.books("look")
    found = {"version": books.version, "ledger": books.ledger, "low_water": books.low_water}
    found["pushes"] = books.pushes
    for (tensor, k), chunk in store.pins.chunks("look"):
        parts = [chunk.value, *chunk.state, chunk.steps]
        found[tensor, k] = [part.tobytes() for part in parts], chunk.changed
    for table in spec.tables:
        for block in store.pins.rows("look", table.name, 1 << 20):
            order = np.argsort(block.ids)
            parts = [block.ids, block.weight, *block.state, block.steps]
            found[table.name] = [np.ascontiguousarray(part[order]).tobytes() for part in parts]
    for key, grad in books.sums.dense.items():
        found["sum", key] = grad.tobytes()
    for name, (ids, total) in books.sums.rows.items():
        order = np.argsort(ids)
        found["sum", name] = ids[order].tobytes(), total[order].tobytes()
    store.pins.unpin("look")
    return found


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path), "job", 0)


def again(folder, of="a", incarnation="b", policy=ASYNC, at_least=0):
    """Return a store restored from the snapshots of incarnation `of`, and what was found."""
    store = empty(policy)
    return store, restore(store, folder, incarnation, of=of, at_least=at_least)


# -- Exactness


@pytest.mark.parametrize("policy", [ASYNC, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize(
    "spec",
    [
        model(optimizers.SGD(0.1)),
        model(optimizers.SGD(0.1, momentum=0.9, dampening=0.5)),
        model(optimizers.Adagrad(0.1)),
        ADAM,
        model(optimizers.AdamW(0.1)),
        model(optimizers.FTRL(0.1)),
        model(optimizers.Adam(0.1), dtype="bfloat16", rounding="stochastic"),
        model(optimizers.Adagrad(0.1), dtype="float16"),
        model(optimizers.RowWiseAdagrad(0.1), dtype="float16"),
    ],
    ids=lambda spec: f"{type(spec.optimizer).__name__}-{spec.tables[0].dtype}",
)
def test_the_next_steps_equal_the_uninterrupted_run(folder, spec, policy):
    """The state may be amid a sync version, and have rows that came between two snapshots."""
    going_on = begun(spec, policy)
    recorder = Recorder(going_on, folder, "a")
    for number in range(18):
        push(going_on, spec, number)
        if number in (3, 8, 13, 17):
            recorder.take()

    restored, _ = again(folder, policy=policy, at_least=4)
    assert everything(going_on) == everything(restored)
    for number in range(18, 27):
        push(going_on, spec, number)
        push(restored, spec, number)

    assert everything(going_on) == everything(restored)


def test_large_tables_are_written_and_read_in_pieces(folder, monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE_NBYTES", 1000)
    store = begun(ADAM)
    recorder = Recorder(store, folder, "a")
    for number in range(9):
        push(store, ADAM, number)
        if number > 6:
            recorder.take()

    assert len(folder.names("a")) > 12
    assert everything(store) == everything(again(folder)[0])


def test_what_was_not_written_since_is_not_in_a_delta(folder):
    store = begun(ADAM)
    for number in range(12):
        push(store, ADAM, number)
    recorder = Recorder(store, folder, "a")
    recorder.take()
    ids = IDS[5:7]
    rows = {"users": (ids, np.ones((2, 3), np.float32))}
    store.push(
        Span(1, 1, 2, 3), store.version, Update({("layer1", 0): np.ones(6, np.float32)}, rows)
    )

    link = recorder.take()

    found = {}
    for record in link.files:
        found |= decode(folder.read_checked("a", record))[0]
    np.testing.assert_array_equal(ids, np.sort(found["ids"]))
    assert ["0.value"] == [name for name in found if name.endswith("value")]


def test_nothing_is_written_where_nothing_has_changed(folder):
    store = begun(ADAM)
    recorder = Recorder(store, folder, "a")
    push(store, ADAM, 0)

    links = [recorder.take() for _ in range(3)]
    store.masters.fence({7: 2}, 0)

    assert [1, None, None] == [link and link.number for link in links]
    assert 2 == recorder.take().number


def test_a_folder_of_its_own_that_was_there_before_is_not_an_ancestors(folder, monkeypatch):
    """Broken once by a store that keeps empty folders: its newest chains were pruned with it."""
    monkeypatch.setattr(recorder_module, "_MOST_DELTAS", 0)
    (folder.place / "a").write("left", b"")
    store = begun(COUNTS)
    recorder = Recorder(store, folder, "a")

    for position in range(3):
        store.push(Span(0, 1, position, position + 1), store.version, Update({}, {}))
        recorder.take()
        recorder.prune()

    assert recorder.coverage.number == 2
    assert [link.number for link in folder.links("a", None)[0]] == [2, 3]


def test_a_server_without_a_model_has_nothing_to_write(folder):
    recorder = Recorder(empty(), folder, "a")

    assert recorder.take() is None
    assert [] == folder.names("a")


def test_a_model_that_a_new_job_replaces_begins_a_new_chain(folder):
    old, _ = begun(ADAM), None
    for number in range(4):
        push(old, ADAM, number)
    Recorder(old, folder, "old").take()
    store = empty()
    parts = snapshot.Parts(0, store.slot_map, ADAM)
    links, _ = folder.links("old", None)
    store.restorer.begin(ADAM, ShardBooks(links[0].version), new_job=True)
    for record in links[0].files:
        parts.load(
            store, folder.read_checked("old", record), store.restorer.insert_rows, record.name
        )
    recorder = Recorder(store, folder, "a")
    recorder.take()
    other = dataclasses.replace(ADAM, optimizer=optimizers.SGD(0.1, momentum=0.9))
    store.init(other, {}, True)
    push(store, other, 0)

    link = recorder.take()

    assert (2, 0) == (link.number, link.previous)
    assert everything(store) == everything(again(folder)[0])


def test_a_torn_store_is_not_written(folder, monkeypatch):
    store = begun(ADAM)
    push(store, ADAM, 0)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(store._state.parameters, "apply", fail)
    with pytest.raises(MemoryError):
        push(store, ADAM, 1)

    assert store.torn
    with pytest.raises(EdlError, match="in the midst of a step"):
        Recorder(store, folder, "a").take()


# -- Any order of pushes, snapshots, failures and restarts


class FailingFolder(Folder):
    """A folder whose write number `fails_at` from now fails, once the bytes are there or before."""

    fails_at = None
    too_late = False
    error = errno.ENOSPC

    def write(self, incarnation, name, *parts):
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                self.fails_at = None
                if self.too_late:
                    super().write(incarnation, name, *parts)
                raise OSError(self.error, os.strerror(self.error), name)
        return super().write(incarnation, name, *parts)


class Lives(RuleBasedStateMachine):
    """A machine of counting rows; what a restore must say is kept in a plain dict."""

    @initialize(most_deltas=st.integers(0, 6))
    def begin(self, most_deltas):
        self.limits = recorder_module._MOST_DELTAS, recorder_module._MOST_DELTA_PART
        recorder_module._MOST_DELTAS, recorder_module._MOST_DELTA_PART = most_deltas, 1e9
        clear_memory()
        self.folder = FailingFolder("memory://snapshots", "job", 0)
        self.names = (f"i{n}" for n in itertools.count())
        self.name = next(self.names)
        self.store = begun(COUNTS)
        self.recorder = Recorder(self.store, self.folder, self.name)
        self.counts, self.applied = {}, 0
        self.saved = None
        self.restored = None

    @rule(ids=st.lists(st.integers(0, 60), unique=True, max_size=20), dense=st.booleans())
    def push(self, ids, dense):
        rows = {"t": (np.array(ids, np.int64), np.full((len(ids), 1), -1, np.float32))}
        grads = {("w", 0): np.full(2, -1, np.float32)} if dense else {}
        span = Span(0, 1, self.applied, self.applied + 1)
        self.store.push(span, self.store.version, Update(grads, rows if ids else {}))
        self.applied += 1
        for id in ids:
            self.counts[id] = self.counts.get(id, 0) + 1

    @rule()
    def snapshot(self):
        link = self.recorder.take()
        if link is not None:
            self.saved = dict(self.counts), self.applied
            if not link.previous:
                self.recorder.prune()

    @rule(at=st.integers(0, 3), too_late=st.booleans())
    def failing_snapshot(self, at, too_late):
        self.folder.fails_at, self.folder.too_late = at, too_late
        try:
            if self.recorder.take() is not None:
                self.saved = dict(self.counts), self.applied
        except OSError:
            names = self.folder.names(self.name)
            assert not [
                name for name in names if name.startswith(f"{self.recorder._next - 1:012d}")
            ]
        self.folder.fails_at = None

    @rule()
    def restart(self):
        if self.saved is None:
            return
        of, self.name = self.name, next(self.names)
        coverage = self.recorder.coverage
        least = coverage.number if coverage else 0
        self.store = empty()
        found = restore(self.store, self.folder, self.name, of=of, at_least=least)
        self.recorder = Recorder(self.store, self.folder, self.name, found)
        self.counts, self.applied = dict(self.saved[0]), self.saved[1]
        assert [] == found.notes

    def teardown(self):
        recorder_module._MOST_DELTAS, recorder_module._MOST_DELTA_PART = self.limits

    @invariant()
    def everything_is_there(self):
        _, _, (rows,) = self.store.pull(
            dense=True, known_version=None, tables=[("t", np.arange(61))]
        )
        assert [self.counts.get(id, 0) for id in range(61)] == rows[:, 0].tolist()
        applied = {entry.task: entry.applied for entry in self.store.ledger()}
        assert ({0: self.applied} if self.applied else {}) == applied


Lives.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestLives = Lives.TestCase


def test_snapshots_beside_pushes_hold_what_their_ledgers_say():
    """Four threads push, each its task, while this one takes snapshots, bases and deltas."""
    tasks, most_pushes, snapshots = 4, 20_000, 24
    clear_memory()
    folder, store = Folder("memory://snapshots", "job", 0), begun(COUNTS)
    enough = threading.Event()

    def ids_of(task, position):
        rng = np.random.default_rng(1000 * task + position)
        return np.unique(np.concatenate([rng.integers(0, 40 + position % 400, 20), [500 + task]]))

    def worker(task):
        for p in range(most_pushes):
            if enough.is_set():
                return
            ids = ids_of(task, p)
            rows = {"t": (ids, np.full((len(ids), 1), -1, np.float32))}
            grads = {("w", 0): np.full(2, -1, np.float32)}
            pushed = store.push(Span(task, 1, p, p + 1), store.version, Update(grads, rows))
            assert Outcome.APPLIED == pushed.outcome

    recorder, taken = Recorder(store, folder, "a"), []

    with ThreadPoolExecutor(tasks) as pool:
        pushed = [pool.submit(worker, task) for task in range(tasks)]
        try:
            while len(taken) < snapshots and not all(done.done() for done in pushed):
                link = recorder.take()
                if link is not None:
                    taken.append(link)
        finally:
            enough.set()
        for done in pushed:
            done.result()

    assert snapshots == len(taken)
    for most in {link.number for link in taken[:: len(taken) // 8]}:
        copy = empty()
        links, _ = folder.links("a", most)
        link = recovery._load_newest(copy, folder, "a", links, [])
        expected = np.zeros(1000)
        for entry in link.ledger:
            for p in range(entry.applied):
                expected[ids_of(entry.task, p)] += 1
        _, ((_, w),), (rows,) = copy.pull(
            dense=True, known_version=None, tables=[("t", np.arange(1000))]
        )
        np.testing.assert_array_equal(expected, rows[:, 0])
        first = np.random.default_rng(99).normal(size=2).astype(np.float32)
        applied = sum(entry.applied for entry in link.ledger)
        np.testing.assert_allclose(first + applied, np.frombuffer(w, np.float32), rtol=1e-5)
        assert applied == link.version == copy.version


# -- Damage


@pytest.fixture
def two_chains(folder, monkeypatch):
    """Write chains 1-3 and 4-6 of incarnation a; return the state at each snapshot."""
    monkeypatch.setattr(recorder_module, "_MOST_DELTAS", 2)
    monkeypatch.setattr(recorder_module, "_MOST_DELTA_PART", 1e9)
    store = begun(COUNTS)
    recorder, states = Recorder(store, folder, "a"), {}
    for number in range(1, 7):
        ids = np.arange(number, number + 3)
        rows = {"t": (ids, np.full((3, 1), -1, np.float32))}
        grads = {("w", 0): np.ones(2, np.float32)}
        store.push(Span(0, 1, number - 1, number), store.version, Update(grads, rows))
        assert number == recorder.take().number
        states[number] = everything(store)
    assert 3 == recorder.coverage.number
    return folder, states


def files_of(folder, number):
    return [n for n in folder.names("a") if n.startswith(f"{number:012d}")]


def path_of(folder, name):
    return os.path.join(folder.path, "a", name)


def damage(folder, name, change):
    with open(path_of(folder, name), "rb") as file:
        data = file.read()
    with open(path_of(folder, name), "wb") as file:
        file.write(change(data))
    return data


def mend(folder, name, data):
    with open(path_of(folder, name), "wb") as file:
        file.write(data)


def assert_found(folder, states, number, *named):
    store, found = again(folder, at_least=3)
    assert number == found.link.number, found.notes
    assert states[number] == everything(store)
    notes = " ".join(found.notes)
    assert all(name in notes for name in named), (named, notes)


@in_turn(1)
def test_a_link_that_is_torn_at_any_byte_is_passed_over(two_chains):
    folder, states = two_chains
    name = link_name(6)
    size = os.path.getsize(path_of(folder, name))
    links = folder.links("a", None)[0]

    for end in range(size):
        whole = damage(folder, name, lambda data: data[:end])  # noqa: B023
        found, wrong = folder.links("a", None)
        mend(folder, name, whole)
        assert (links[:-1], 1) == (found, len(wrong)), end
        assert name in wrong[0]

    damage(folder, name, lambda data: data[: size // 2])
    assert_found(folder, states, 5, name)


@in_turn(2)
def test_a_link_with_any_bit_turned_over_is_passed_over(two_chains):
    folder, _ = two_chains
    name = link_name(6)
    links = folder.links("a", None)[0]

    for at in range(os.path.getsize(path_of(folder, name))):
        whole = damage(folder, name, lambda data: flipped(data, at, at % 8))  # noqa: B023
        found, wrong = folder.links("a", None)
        mend(folder, name, whole)
        assert (links[:-1], 1) == (found, len(wrong)), at
        assert name in wrong[0]


def flipped(data, at, bit):
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize(("victim", "left"), [(6, 5), (5, 4), (4, 3), (3, 6), (1, 6)])
@pytest.mark.parametrize("how", ["flip", "tear", "lose"])
def test_what_is_before_a_damaged_file_is_used_and_the_file_is_named(two_chains, victim, left, how):
    """Any one file of the newest chain may be damaged, and the coverage is still reached."""
    folder, states = two_chains
    rng = np.random.default_rng(victim)
    for name in files_of(folder, victim):
        if how == "flip":
            for _ in range(4):
                at, bit = int(rng.integers(os.path.getsize(path_of(folder, name)))), rng.integers(8)
                whole = damage(folder, name, lambda data: flipped(data, at, bit))  # noqa: B023
                assert_found(folder, states, left, *([name] if left < 6 else []))
                mend(folder, name, whole)
            continue
        whole = damage(folder, name, lambda data: data[: len(data) // 3])
        if how == "lose":
            os.unlink(path_of(folder, name))
        is_named = left < 6 and not (how == "lose" and name == link_name(6))
        assert_found(folder, states, left, *([name] if is_named else []))
        mend(folder, name, whole)


def test_an_older_format_is_refused_by_name(two_chains):
    folder, states = two_chains
    damage(folder, link_name(6), lambda data: data.replace(b"edl-recovery 1 ", b"edl-recovery 0 "))

    assert_found(folder, states, 5, link_name(6), "has format '0'; this version reads 1")


def test_too_old_a_snapshot_is_an_error_that_says_what_to_do(two_chains):
    folder, _ = two_chains
    for number in (4, 5, 6):
        os.unlink(path_of(folder, link_name(number)))

    with pytest.raises(CheckpointError, match=r"server 0 cannot be recovered.*ends at 3.*up to 4"):
        again(folder, at_least=4)


def test_without_any_snapshot_a_replacement_is_told_to_begin_anew(folder):
    _, found = again(folder)

    assert (None, Parent("a", 0)) == (found.link, found.parent)
    with pytest.raises(CheckpointError, match="is gone"):
        again(folder, at_least=1)


# -- Lives after each other


def test_a_replacement_goes_on_with_higher_numbers_and_a_chain_of_its_own(two_chains):
    folder, _ = two_chains
    store, found = again(folder)
    recorder = Recorder(store, folder, "b", found)
    push(store, COUNTS, 10)

    before, link = recorder.coverage, recorder.take()

    assert (None, 7, 0) == (before, link.number, link.previous)
    assert Coverage(6, found.link.low_water, found.link.ledger) == recorder.coverage


def test_the_parents_chain_is_used_where_the_childs_is_damaged(two_chains):
    folder, states = two_chains
    store, found = again(folder)
    push(store, COUNTS, 10)
    Recorder(store, folder, "b", found).take()
    os.unlink(os.path.join(folder.path, "b", link_name(7)))

    third, found = again(folder, of="b", incarnation="c", at_least=6)

    assert 6 == found.link.number
    assert states[6] == everything(third)
    assert ("b", "a") == found.ancestors


@pytest.mark.parametrize("copies", [1, 2])
def test_a_damaged_parent_file_loses_nothing(two_chains, copies):
    """One copy is enough; with neither, the child's own links name the parent."""
    folder, states = two_chains
    store, found = again(folder)
    if copies == 2:
        push(store, COUNTS, 10)
        Recorder(store, folder, "b", found).take()
        os.unlink(os.path.join(folder.path, "b", "000000000007.dense-00000.safetensors"))
    for name in ("PARENT", "PARENT.copy")[:copies]:
        with open(os.path.join(folder.path, "b", name), "r+b") as file:
            file.truncate(20)

    third, found = again(folder, of="b", incarnation="c", at_least=6)

    assert states[6] == everything(third)
    assert "PARENT" in found.notes[0]


def test_what_a_zombie_writes_later_is_of_another_line(two_chains):
    """A server was declared lost and lives on: nobody reads its writes, and it removes nothing."""
    folder, states = two_chains
    zombie, _ = again(folder, incarnation="unused")
    late = Recorder(zombie, folder, "a", dataclasses.replace(again(folder)[1], parent=None))
    store, _ = again(folder)
    for number in range(10, 19):
        push(zombie, COUNTS, number)
        late.take()
        late.prune()

    third, found = again(folder, of="b", incarnation="c", at_least=6)

    assert 6 == found.link.number
    assert states[6] == everything(third)
    assert states[6] == everything(store)


def test_old_chains_go_when_two_newer_are_there_and_ancestors_with_them(two_chains, monkeypatch):
    folder, _ = two_chains
    store, found = again(folder)
    recorder = Recorder(store, folder, "b", found)
    left = []
    for number in range(10, 19):
        push(store, COUNTS, number)
        if not recorder.take().previous:
            recorder.prune()
        links = folder.links("b", None)[0]
        left.append((len(folder.names("a")) > 0, [link.number for link in links]))

    assert (True, [7, 8, 9]) == left[2]
    assert (False, [7, 8, 9, 10]) == left[3]
    assert (False, [10, 11, 12, 13]) == left[6]


def test_what_servers_before_a_change_have_left_goes_with_the_old_chains(two_chains):
    """Broken once: each change of the servers left a model's bytes behind."""
    folder, _ = two_chains
    store = begun(COUNTS)
    recorder = Recorder(store, folder, "other")  # began from a checkpoint
    for number in range(12):
        push(store, COUNTS, number)
        if not recorder.take().previous:
            recorder.prune()

    assert folder.names("a") == []
    assert folder.links("other", None)[0]


# -- What cannot be written


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_failure_is_told_once_and_the_next_snapshot_has_everything(tmp_path, error, monkeypatch):
    monkeypatch.setattr(recorder_module, "_MOST_DELTA_PART", 1e9)
    folder = FailingFolder(str(tmp_path), "job", 0)
    folder.error = error
    store, told = begun(COUNTS), []
    snapshots = Snapshots(Recorder(store, folder, "a"), 10.0, lambda *what: told.append(what))
    push(store, COUNTS, 0)
    snapshots.once()
    for number in (1, 2):
        push(store, COUNTS, number)
        folder.fails_at = 1
        snapshots.once()
    before = folder.names("a")
    store.push(Span(0, 1, 3, 4), store.version, Update({("w", 0): np.ones(2, np.float32)}, {}))
    snapshots.once()
    expected = everything(store)
    push(store, COUNTS, 4)
    folder.fails_at = 0
    snapshots.once()

    notes = [note for note, _ in told if note]
    assert 2 == len(notes)
    assert f"{os.strerror(error)}" in notes[0]
    assert "tried again every 10 s" in notes[0]
    assert 3 == len(before)  # those of the first snapshot
    copy, found = again(folder)
    assert (4, 1) == (found.link.number, found.link.base)
    assert expected == everything(copy)


def test_a_full_device_is_such_a_failure(tmp_path, monkeypatch):
    """The device is a real one: the file's bytes go to /dev/full."""
    folder, store = Folder(str(tmp_path), "job", 0), begun(COUNTS)
    told = []
    snapshots = Snapshots(Recorder(store, folder, "a"), 10.0, lambda *what: told.append(what))
    real = open
    with monkeypatch.context() as patched:
        patched.setattr(files, "open", lambda *a: real("/dev/full", "wb"), raising=False)
        snapshots.once()

    assert "No space left on device" in told[0][0]
    assert [] == folder.names("a")
    snapshots.once()
    assert [link_name(2)] == [name for name in folder.names("a") if name.endswith("link")]


def test_a_snapshot_is_as_young_as_the_last_look_that_found_nothing_new_and_no_failure_makes_it_so(
    tmp_path,
):
    folder, store, taken = FailingFolder(str(tmp_path), "job", 0), begun(COUNTS), []
    folder.error = errno.ENOSPC
    recorder = Recorder(store, folder, "a")
    snapshots = Snapshots(recorder, 10.0, lambda *_: None, lambda: taken.append(len(taken)))
    push(store, COUNTS, 0)
    snapshots.once()
    snapshots.once()  # nothing is new
    push(store, COUNTS, 1)
    folder.fails_at = 1
    snapshots.once()

    assert len(taken) == 2


def test_a_replacement_can_be_read_from_a_folder_that_cannot_be_written(two_chains, monkeypatch):
    folder, states = two_chains

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Folder, "write", refuse)

    store, found = again(folder, at_least=3)

    assert states[6] == everything(store)
    assert "Read-only file system" in found.notes[0]


def test_coverage_is_told_when_a_chain_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "_MOST_DELTAS", 1)
    monkeypatch.setattr(recorder_module, "_MOST_DELTA_PART", 1e9)
    store, told = begun(COUNTS), []
    folder = Folder(str(tmp_path), "job", 0)
    snapshots = Snapshots(Recorder(store, folder, "a"), 10.0, lambda *what: told.append(what))
    for number in range(6):
        push(store, COUNTS, number)
        snapshots.once()

    assert [("", 2, 2), ("", 4, 4)] == [
        (note, covered.number, covered.ledger[0].applied) for note, covered in told
    ]


def test_a_folder_of_an_unknown_kind_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match=r"--snapshot_dir nosuch://x cannot be opened.*Install"):
        Folder("nosuch://x", "job", 0)


def test_a_job_is_found_by_its_token_and_does_not_show_it():
    assert "2bb80d537b1d" == job_id("secret")
