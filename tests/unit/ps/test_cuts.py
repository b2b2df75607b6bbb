"""A cut is one state of all shards, and stays it while pushes go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Entry, Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.table import Table
from edl.ps.worker_client import PushOutcome

SPEC = ModelSpec(
    (DenseSpec("w", (4,)), DenseSpec("v", (4,))),
    (TableSpec("t", 2, "zeros"),),
    optimizers.SGD(lr=-1.0),
)
WAIT = {"timeout_s": 120.0}  # a fresh checkout compiles its kernels meanwhile
IDS = np.arange(64, dtype=np.int64)


def one_store():
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(SPEC, {("w", 0): np.zeros(4, np.float32), ("v", 0): np.zeros(4, np.float32)}, True)
    return store


def update(amount=1.0):
    return Update(
        {("w", 0): np.full(4, amount, np.float32)},
        {"t": (IDS, np.full((64, 2), amount, np.float32))},
    )


def ready(start_shards, count=2):
    shards = start_shards(count, SPEC)
    shards.client.init(SPEC, {n: np.zeros(4, np.float32) for n in "wv"}, **WAIT)
    return shards


def push(shards, task, p, attempt=1):
    return shards.client.push(
        Span(task, attempt, p, p + 1),
        (0,) * shards.client.num_shards,
        dense={n: np.ones(4, np.float32) for n in "wv"},
        tables={"t": (IDS, np.ones((64, 2), np.float32))},
        **WAIT,
    )


def read(shards, cut=""):
    dense = {n: np.empty(4, np.float32) for n in "wv"}
    pulled = shards.client.pull({"t": IDS}, dense=dense, cut=cut, full=True, **WAIT)
    return pulled.versions, dense, pulled.rows["t"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_cut_under_a_storm_of_pushes_is_one_state_of_all_shards(start_shards, count):
    """Every push adds one to every parameter: in a cut each value is the number of positions that
    the ledger says were applied, on every shard, and stays so while pushes go on."""
    shards = ready(start_shards, count)
    stop = threading.Event()

    def worker(task):
        p = 0
        while not stop.is_set():
            assert PushOutcome.APPLIED == push(shards, task, p).outcome
            p += 1

    cuts = []
    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(worker, task) for task in range(3)]
        for number in range(6):
            cut = shards.control.cuts.take(f"c{number}", hold_s=10.0, **WAIT)
            cuts.append(cut)
            shards.stores[0].wait_version(cut.version, 20.0)
        first = [read(shards, cut.name) for cut in cuts]
        stop.set()
        for done in workers:
            done.result()

    for cut, then in zip(cuts, first, strict=True):
        total = sum(cut.applied.values())
        assert total == cut.version
        for versions, dense, rows in (then, read(shards, cut.name)):
            assert (total,) * count == versions
            for values in (*dense.values(), rows):
                np.testing.assert_array_equal(values, total)
    assert len(cuts) == len({cut.version for cut in cuts}), "no push came between two cuts"


def test_all_pushes_of_a_storm_are_applied_once_despite_cuts(start_shards):
    shards = ready(start_shards)

    def worker(task):
        for p in range(30):
            assert PushOutcome.APPLIED == push(shards, task, p).outcome

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(worker, task) for task in range(3)]
        for number in range(4):
            assert shards.control.cuts.take(f"c{number}", hold_s=10.0, **WAIT)
            shards.control.cuts.unpin(f"c{number}", **WAIT)
        for done in workers:
            done.result()

    versions, dense, rows = read(shards)
    assert (90, 90) == versions
    for values in (*dense.values(), rows):
        np.testing.assert_array_equal(values, 90)


def test_a_pin_waits_for_what_another_shard_has_and_holds_back_the_rest(start_shards):
    shards = ready(start_shards)
    ahead, behind = shards.stores
    ahead.push(Span(0, 1, 0, 1), 0, Update())
    frozen = shards.control.cuts.freeze("c", hold_s=10.0, **WAIT)
    late = threading.Thread(target=lambda: behind.push(Span(0, 1, 0, 1), 0, Update()))
    other = threading.Thread(target=lambda: behind.push(Span(7, 1, 0, 1), 0, Update()))
    other.start()
    late.start()

    reached = shards.control.cuts.pin("c", {0: 1}, hold_s=10.0, **WAIT)

    late.join(300)
    other.join(300)
    assert {0: ((Entry(0, 1, 1),), 1), 1: ((), 0)} == frozen
    assert {0: (True, 1), 1: (True, 1)} == reached
    assert (Entry(0, 1, 1), Entry(7, 1, 1)) == behind.ledger()
    assert 1 == behind.pins.books("c")[1].version


def test_a_cut_that_lacks_a_lost_workers_push_is_given_up_and_pushes_go_on(start_shards):
    shards = ready(start_shards)
    shards.stores[0].push(Span(0, 1, 0, 1), 0, Update())  # the worker died before shard 1

    cut = shards.control.cuts.take("c", hold_s=0.2, **WAIT)

    assert cut is None
    assert PushOutcome.APPLIED == push(shards, 1, 0).outcome
    assert {} == shards.stores[0].pins.pinned


def test_a_fenced_push_is_not_let_through_by_a_pin():
    store = one_store()
    store.pins.freeze("c", 10.0)
    store.masters.fence({0: 2}, 0)

    zombie = store.push(Span(0, 1, 0, 1), 0, Update())
    reached, _ = store.pins.pin("c", {0: 1}, 0.05)

    assert (Outcome.FENCED, False) == (zombie.outcome, reached)


def test_a_freeze_whose_master_died_thaws_by_itself():
    store = one_store()
    store.pins.freeze("c", 0.2)
    began = time.monotonic()

    pushed = store.push(Span(0, 1, 0, 1), 0, Update())

    assert Outcome.APPLIED == pushed.outcome
    assert 0.1 < time.monotonic() - began < 5
    assert (False, 1) == store.pins.pin("c", {}, 1.0)  # too late: the state has moved on


def test_a_duplicate_is_answered_while_frozen():
    store = one_store()
    store.push(Span(0, 1, 0, 1), 0, Update())
    store.pins.freeze("c", 10.0)

    assert Outcome.DUPLICATE == store.push(Span(0, 1, 0, 1), 0, Update()).outcome


def test_freeze_and_pin_may_be_repeated_after_a_lost_reply():
    store = one_store()
    store.push(Span(0, 1, 0, 1), 0, update())
    store.pins.freeze("c", 10.0)
    store.pins.freeze("c", 10.0)
    first = store.pins.pin("c", {0: 1}, 1.0)
    store.push(Span(0, 1, 1, 2), 0, update())

    again = store.pins.pin("c", {0: 1}, 1.0)

    assert [(True, 1), (True, 1)] == [first, again]


def test_a_second_freeze_waits_for_the_first():
    store = one_store()
    store.pins.freeze("a", 0.1)

    store.pins.freeze("b", 5.0)

    assert (False, 0) == store.pins.pin("a", {}, 1.0)
    assert (True, 0) == store.pins.pin("b", {}, 1.0)


def test_a_shard_without_a_model_pins_nothing():
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy())
    store.pins.freeze("c", 5.0)

    assert (False, 0) == store.pins.pin("c", {}, 1.0)


def test_several_cuts_each_keep_their_own_state():
    store = one_store()
    for number in range(4):
        store.pins.freeze(f"c{number}", 5.0)
        store.pins.pin(f"c{number}", {}, 5.0)
        store.push(Span(0, 1, number, number + 1), 0, update())
    store.pins.unpin("c2")

    seen = {
        cut: store.pull(dense=True, known_version=None, tables=[("t", IDS)], cut=cut)
        for cut in ("c0", "c1", "c3", "")
    }

    for (version, chunks, rows), expected in zip(seen.values(), (0, 1, 3, 4), strict=True):
        values = {key: np.frombuffer(data, np.float32) for key, data in chunks}
        assert expected == version
        np.testing.assert_array_equal(values["w", 0], expected)
        np.testing.assert_array_equal(values["v", 0], 0)
        np.testing.assert_array_equal(rows[0], expected)


def test_a_table_block_of_a_pin_is_the_state_at_the_pin_in_all_columns():
    table = Table(TableSpec("t", 3), 0, make_rule(optimizers.Adam()))
    rng = np.random.default_rng(0)
    ids = rng.permutation(5000).astype(np.int64)
    table.apply(ids[:3000], np.ones((3000, 3), np.float32), 0.1)
    table.pin("c")
    before = table.block("c", 0, 5000)
    expected = table.pull(ids)

    for _ in range(5):  # rewrites old rows, makes new ones, grows index and columns
        some = rng.permutation(ids)[:2500]
        table.apply(some, rng.normal(size=(2500, 3)).astype(np.float32), 0.1)

    after = table.block("c", 0, 5000)
    assert 3000 == table.pinned_rows("c")
    for then, now in zip(
        (before.ids, before.weight, *before.state, before.steps),
        (after.ids, after.weight, *after.state, after.steps),
        strict=True,
    ):
        np.testing.assert_array_equal(then, now)
    np.testing.assert_array_equal(expected, table.pull(ids, "c"))
    assert not np.array_equal(expected, table.pull(ids))
