"""Deltas of a shard: what a reader of them has is each cut, whatever else reads the marks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tools.stores import clear_memory

from edl.common import pieces
from edl.common.errors import NotPinned
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.snapshots import delta
from edl.ps.snapshots import recorder as recorder_module
from edl.ps.snapshots.chain import Folder
from edl.ps.snapshots.changes import Changes
from edl.ps.snapshots.recorder import Recorder

SPEC = ModelSpec(
    (DenseSpec("w", (2,)), DenseSpec("still", (2,))),
    (TableSpec("t", 1, "zeros"), TableSpec("other", 1, "zeros")),
    optimizers.SGD(1.0, momentum=0.5),
)
FIRST = {("w", 0): np.zeros(2, np.float32), ("still", 0): np.ones(2, np.float32)}


def begun():
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(SPEC, FIRST, True)
    return store


def push(store, position, ids, dense=True, table="t"):
    rows = {table: (np.array(ids, np.int64), np.full((len(ids), 1), -1, np.float32))}
    grads = {("w", 0): np.full(2, -1, np.float32)} if dense else {}
    span = Span(0, 1, position, position + 1)
    store.push(span, store.version, Update(grads, rows if ids else {}))


def pin(store, cut):
    store.pins.freeze(cut, 9.0)
    assert store.pins.pin(cut, {}, 9.0)[0]


def applied(state, written, folder):
    """Return what a reader has after the files: values by what they are of."""
    state = dict(state)
    for record in written.files:
        if record.name.endswith(".safetensors"):
            file = pieces.mapped(folder / record.name)
            assert not [name for name in file.tensors if pieces.STATE in name]
            for chunk in file.chunks():
                state[chunk.tensor] = chunk.value.tolist()
            if (rows := file.rows()) is not None:
                ids, weights = rows.ids.tolist(), rows.weight[:, 0].tolist()
                state |= {(rows.table, id): w for id, w in zip(ids, weights, strict=True)}
    return state


def whole(store, cut):
    """Return what a reader must have."""
    state = {tensor: chunk.value.tolist() for (tensor, _), chunk in store.pins.chunks(cut)}
    for table in ("t", "other"):
        for block in store.pins.rows(cut, table, 1000):
            ids, weights = block.ids.tolist(), block.weight[:, 0].tolist()
            state |= {(table, id): w for id, w in zip(ids, weights, strict=True)}
    return state


def test_a_delta_has_what_changed_between_its_cuts_and_nothing_else(tmp_path):
    store = begun()
    changes = Changes(store)
    push(store, 0, [1, 2, 3])
    push(store, 1, [7], table="other")
    pin(store, "a")
    push(store, 2, [2], dense=False)  # while the cut is written
    base = delta.write(store, changes, "a", "", tmp_path / "a")
    store.pins.unpin("a")
    push(store, 3, [3, 4], dense=False)

    pin(store, "b")
    found = delta.write(store, changes, "b", "a", tmp_path / "b")
    store.pins.unpin("b")
    pin(store, "c")
    nothing = delta.write(store, changes, "c", "b", tmp_path / "c")

    assert {"t": 3, "other": 1} == base.rows
    assert {"t": 3, "other": 0} == found.rows
    new = applied({}, found, tmp_path / "b")
    assert {("t", 2), ("t", 3), ("t", 4)} == set(new)
    assert {"t": 0, "other": 0} == nothing.rows
    assert ["shard-00000-of-00001.json"] == [record.name for record in nothing.files]


def test_since_a_cut_that_it_does_not_know_a_shard_writes_nothing(tmp_path):
    store = begun()
    push(store, 0, [1])
    pin(store, "a")

    assert delta.write(store, Changes(store), "a", "of before", tmp_path / "a") is None
    assert not (tmp_path / "a").exists()


def test_since_a_cut_of_other_parameters_a_shard_writes_nothing(tmp_path):
    store = begun()
    changes = Changes(store)
    pin(store, "a")
    delta.write(store, changes, "a", "", tmp_path)
    store.restorer.begin(SPEC, store.pins.books("a")[1], new_job=False)
    store.init(SPEC, FIRST, True)
    pin(store, "b")

    assert delta.write(store, changes, "b", "a", tmp_path) is None


def test_a_cut_that_is_not_pinned_cannot_be_written(tmp_path):
    store = begun()

    with pytest.raises(NotPinned):
        delta.write(store, Changes(store), "a", "", tmp_path)


def test_marks_that_were_read_and_not_noted_end_in_a_base(tmp_path, monkeypatch):
    """Of the recovery snapshot and of the delta: neither knows what has changed."""
    store = begun()
    changes = Changes(store)
    recorder = Recorder(store, Folder(str(tmp_path / "s"), "job", 0), "i", changes=changes)
    push(store, 0, [1, 2])
    assert 0 == recorder.take().previous
    pin(store, "a")
    delta.write(store, changes, "a", "", tmp_path / "a")
    store.pins.unpin("a")
    push(store, 1, [2])
    pin(store, "b")

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("edl.ps.rows.table.Table.touched", fails)
        with pytest.raises(MemoryError):
            recorder.take()

    assert delta.write(store, changes, "b", "a", tmp_path / "b") is None
    assert 0 == recorder.take().previous


class Readers(RuleBasedStateMachine):
    """Pushes, recovery snapshots and cuts in any order, and writes that fail."""

    @initialize(most=st.integers(0, 4))
    def begin(self, most):
        clear_memory()
        self.limit = recorder_module._MOST_DELTAS
        recorder_module._MOST_DELTAS = most
        self.store = begun()
        self.changes = Changes(self.store)
        folder = Folder("memory://deltas", "job", 0)
        self.recorder = Recorder(self.store, folder, "i", changes=self.changes)
        self.position, self.cuts = 0, itertools.count()
        self.known = {"": {}}  # cut: what whoever has read it has
        self.last = ""

    @rule(
        ids=st.lists(st.integers(0, 20), unique=True, max_size=6),
        dense=st.booleans(),
        table=st.sampled_from(["t", "other"]),
    )
    def push(self, ids, dense, table):
        push(self.store, self.position, ids, dense, table)
        self.position += 1

    @rule()
    def snapshot(self):
        self.recorder.take()

    @rule(
        between=st.lists(st.integers(0, 20), unique=True, max_size=4),
        snapshot=st.booleans(),
        kept=st.booleans(),
        base=st.booleans(),
        let_go=st.booleans(),
    )
    def cut(self, between, snapshot, kept, base, let_go):
        """Write a cut, while something is pushed; not `kept`: its manifest is never written."""
        cut, since = f"c{next(self.cuts)}", "" if base else self.last
        pin(self.store, cut)
        expected = whole(self.store, cut)
        push(self.store, self.position, between)
        self.position += 1
        if snapshot:
            self.recorder.take()
        place = self.folder / cut
        written = delta.write(self.store, self.changes, cut, since, place, let_go=let_go)
        assert (cut in self.store.pins.pinned) == (not let_go or not since)
        self.store.pins.unpin(cut)
        assert written is not None
        assert expected == applied(self.known[since], written, self.folder / cut)
        if kept:
            self.last, self.known = cut, {"": {}, cut: expected}
        elif base:
            self.last = ""  # what was before is forgotten

    @rule()
    def torn(self):
        """A write fails half way."""
        cut = f"c{next(self.cuts)}"
        pin(self.store, cut)
        (self.folder / "file").touch()
        with pytest.raises(FileExistsError):
            delta.write(self.store, self.changes, cut, self.last, self.folder / "file")
        self.store.pins.unpin(cut)

    def teardown(self):
        recorder_module._MOST_DELTAS = self.limit


def test_whoever_has_applied_all_deltas_has_each_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    Readers.folder = tmp_path
    Readers.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
    Readers.TestCase("runTest").runTest()
