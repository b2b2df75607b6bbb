"""A store reads by plans, judges what it is given, and makes rows where there is room."""

from __future__ import annotations

import numpy as np
import pytest

from edl.common.errors import NotPinned
from edl.nn import optimizers
from edl.nn.model_spec import ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.parameters import Invalid
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store

from .counting import ASYNC, SHARED, assert_holds, gradients, model, one_store, push, shared_ids
from .stage import outcome


def test_a_plan_reads_rows_in_parts():
    store = one_store()
    push(store, Span(0, 1, 0, 4))
    ids = np.arange(-2, 6, dtype=np.int64)

    plan = store.plan_pull(dense=False, known_version=None, tables=[("t", ids)])

    out = np.full((8, plan.tables[0].dim), np.nan, plan.tables[0].dtype)
    for start, stop in ((5, 8), (0, 5)):
        plan.tables[0].gather(start, stop, out[start:stop])
    assert (1, []) == (plan.version, plan.chunks)
    assert [4, 4, 1, 1, 1, 1, 0, 0] == out[:, 0].tolist()


def test_a_plan_of_the_present_has_the_live_arrays_and_a_cuts_plan_never_changes():
    store = one_store()
    store.pins.freeze("c", 5.0)
    store.pins.pin("c", {}, 5.0)
    pinned = store.plan_pull(dense=True, known_version=None, tables=[], cut="c")
    push(store, Span(0, 1, 0, 1))
    live = store.plan_pull(dense=True, known_version=None, tables=[])

    store.pins.unpin("c")
    push(store, Span(0, 1, 1, 2))

    assert (0.0, 2.0) == (pinned.chunks[0][1][0], live.chunks[0][1][0])


def test_rows_of_a_cut_that_was_let_go_are_refused():
    store = one_store()
    store.pins.freeze("c", 5.0)
    store.pins.pin("c", {}, 5.0)
    plan = store.plan_pull(dense=False, known_version=None, tables=[("t", shared_ids())], cut="c")

    store.pins.unpin("c")

    with pytest.raises(NotPinned, match="cut 'c' was let go"):
        plan.tables[0].gather(0, SHARED, np.empty((SHARED, 2), np.float32))
    with pytest.raises(NotPinned, match="cut 'c' is not pinned"):
        store.plan_pull(dense=False, known_version=None, tables=[], cut="c")


def test_a_push_tells_which_version_it_is_part_of():
    store = one_store(Policy(grads_to_wait=2))
    pushes = [(0, 0), (0, 0), (1, 0), (0, 0), (0, 1), (1, 1), (0, 1)]

    seen = [push(store, Span(task, 1, p, p + 1), store.version).part_of for task, p in pushes]

    assert [1, 1, 1, 1, 2, 2, 2] == seen


def test_nothing_of_a_push_is_kept():
    store = one_store(Policy(grads_to_wait=2))
    span = Span(0, 1, 0, 1)
    update = gradients(store, span)

    store.push(span, 0, update)
    for grads in (update.dense["w", 0], *update.rows["t"]):
        grads[:] = 77
    push(store, Span(1, 1, 0, 1))

    _, chunks, (rows,) = store.pull(
        dense=True, known_version=None, tables=[("t", np.append(shared_ids(), [0, 77]))]
    )
    assert [1.0] * 4 == np.frombuffer(chunks[0][1], np.float32).tolist()
    assert [1.0] * SHARED + [0.5, 0.0] == rows[:, 0].tolist()


def test_a_flush_leaves_the_sums_of_a_cut_alone():
    store = one_store(Policy(grads_to_wait=4))
    push(store, Span(0, 1, 0, 1))
    store.pins.freeze("c", 5.0)
    store.pins.pin("c", {}, 5.0)

    store.flush()

    sums = store.pins.books("c")[1].sums
    assert (1.0, 1.0) == (sums.dense["w", 0].max(), sums.rows["t"][1].max())


@pytest.mark.parametrize(
    ("table", "ids", "dim", "message"),
    [
        ("nope", [1], 2, "unknown table 'nope'"),
        ("t", [1], 3, "have 3 elements a row, not 2"),
        ("t", [1, 1], 2, "not unique"),
        ("t", [0, 1, 2, 3, 4, 5, 6, 7], 2, "live on another server"),
    ],
)
def test_rows_are_judged_before_their_gradients_have_come(table, ids, dim, message):
    slot_map = SlotMap(2)
    store = Store(
        index=slot_map.shards_of_ids("t", np.array([1]))[0], slot_map=slot_map, policy=ASYNC
    )
    store.init(model(), {}, False)

    with pytest.raises(Invalid, match=message):
        store.check_rows(table, np.array(ids), dim)


def test_what_was_checked_is_not_checked_again_but_for_its_shape(monkeypatch):
    store = one_store()
    ids = np.array([1, 1])
    with pytest.raises(Invalid, match="not unique"):
        store.push(Span(0, 1, 0, 1), 0, Update({}, {"t": (ids, np.ones((2, 2), np.float32))}))

    with pytest.raises(Invalid, match=r"shape \(2, 3\)"):
        store.push(
            Span(0, 1, 0, 1), 0, Update({}, {"t": (ids, np.ones((2, 3), np.float32))}), checked=True
        )

    monkeypatch.setattr(SlotMap, "fault_of_ids", None)
    unique = Update({}, {"t": (np.array([1, 2]), np.ones((2, 2), np.float32))})
    assert Outcome.APPLIED == store.push(Span(0, 1, 0, 1), 0, unique, checked=True).outcome


@pytest.mark.parametrize("wrong", [{"dtype": "int4"}, {"rounding": "up"}, {"initializer": "ones"}])
def test_a_table_that_cannot_be_made_is_refused(wrong):
    store = Store(index=0, slot_map=SlotMap(1), policy=ASYNC)
    spec = ModelSpec((), (TableSpec("t", 2, **wrong),), optimizers.SGD(1.0))

    with pytest.raises(Invalid, match=f"table 't' has .*{next(iter(wrong.values()))}"):
        store.init(spec, {}, True)

    assert store.spec is None


def test_gradients_that_a_kernel_cannot_take_are_refused_before_the_step():
    store = one_store()
    crooked = np.zeros(17, np.uint8)[1:].view(np.float32)
    updates = [
        Update({("w", 0): crooked}),
        Update({("w", 0): np.ones(4)}),
        Update({}, {"t": (np.array([1, 2]), np.ones((2, 4), np.float32)[:, ::2])}),
    ]

    for update in updates:
        with pytest.raises(Invalid, match="float32, in order and aligned"):
            store.push(Span(0, 1, 0, 1), 0, update)

    assert Outcome.APPLIED == push(store, Span(0, 1, 0, 1)).outcome


def no_more_than(store, rows):
    """Leave the table room for so many rows."""
    store._state.parameters.tables["t"]._rows.most = rows


@pytest.mark.parametrize("policy", [ASYNC, Policy(), Policy(grads_to_wait=2)])
def test_a_push_whose_rows_have_no_room_changes_nothing(policy):
    store = one_store(policy)
    if policy.grads_to_wait == 2:  # the other push of the step brings six rows
        push(store, Span(1, 1, 0, 1))
    before = store.ledger()
    no_more_than(store, SHARED + 1 if policy.grads_to_wait == 2 else SHARED)

    with pytest.raises(MemoryError, match="the machine has no memory"):
        push(store, Span(0, 1, 0, 1))

    assert_holds(store, ())
    assert before == tuple(entry for entry in store.ledger() if entry.applied)
    no_more_than(store, 4 * SHARED)
    assert Outcome.APPLIED == push(store, Span(0, 1, 0, 1)).outcome
    assert 1 == store.version


def test_rows_that_a_push_under_way_will_make_need_room_too(stage_of):
    stage = stage_of(one_store())
    no_more_than(stage.store, 2 * SHARED)
    first = stage.push(0, 1, 0, 1)

    second = stage.push(1, 1, 0, 1)

    assert isinstance(second.error, MemoryError)
    stage.open(first)
    assert Outcome.APPLIED == outcome(first)


def test_a_flush_whose_rows_have_no_room_changes_nothing():
    store = one_store(Policy(grads_to_wait=4))
    push(store, Span(0, 1, 0, 1))
    no_more_than(store, SHARED)

    with pytest.raises(MemoryError, match="the machine has no memory"):
        store.flush()

    no_more_than(store, 4 * SHARED)
    assert (1, 1) == store.flush()
