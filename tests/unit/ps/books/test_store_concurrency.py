"""Pushes of several threads at the same time: exactly once, and no cut with half a step."""

from __future__ import annotations

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.common.errors import EdlError
from edl.nn import StepDecay
from edl.nn.model_spec import CHUNK_ELEMENTS
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.dense import Chunk
from edl.ps.books.ledger import Entry, Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.state import ShardBooks
from edl.ps.books.store import Store

from .counting import ASYNC, LONG_S, POSITIONS, TASKS, assert_holds, model, one_store, push
from .stage import outcome

# -- A storm


@pytest.fixture
def often():
    """Let threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def test_a_storm_of_pushes_retries_fences_and_cuts_counts_exactly(often):
    """Each span is pushed by two threads at once, tasks are fenced while they are applied, and cuts
    are taken: each cut's values are its ledger's, and at the end each record was applied once."""
    store = one_store(spec=model(2 * CHUNK_ELEMENTS + 5))
    attempts = dict.fromkeys(range(TASKS), 1)
    applied = [0] * TASKS
    stop = threading.Event()

    def worker(task, pool):
        p = 0
        while p < POSITIONS:
            span = Span(task, attempts[task], p, p + 1)
            twice = [pool.submit(push, store, span) for _ in range(2)]
            outcomes = [pushed.result().outcome for pushed in twice]
            applied[task] += outcomes.count(Outcome.APPLIED)
            assert Outcome.GAP not in outcomes
            if Outcome.FENCED in outcomes:  # begin again where the next fence says
                attempts[task] = attempt = attempts[task] + 1
                p = store.masters.fence({task: attempt}, 0)[task]
            else:
                p += 1

    def fencer():
        for task in itertools.cycle(range(TASKS)):
            if stop.is_set():
                return
            attempt = attempts[task] + 1
            position = store.masters.fence({task: attempt}, 0)[task]
            ledger = {entry.task: entry for entry in store.ledger()}
            assert ledger[task].attempt >= attempt
            assert ledger[task].applied >= position
            pause.wait(0.01)

    def cutter():
        for number in itertools.count():
            if stop.is_set():
                return
            name = f"c{number}"
            ledger, _ = store.pins.freeze(name, 5.0)
            reached, _ = store.pins.pin(name, {entry.task: entry.applied for entry in ledger}, 5.0)
            assert reached
            _, books = store.pins.books(name)
            assert [(e.task, e.applied) for e in ledger] == [
                (e.task, e.applied) for e in books.ledger
            ]
            assert sum(entry.applied for entry in ledger) == books.version
            assert_holds(store, books.ledger, name)
            assert_holds(store, books.ledger, name)
            store.pins.unpin(name)
            cuts.append(books.version)
            store.wait_version(books.version, 0.01)

    pause, cuts = threading.Event(), []
    with ThreadPoolExecutor(2 * TASKS) as pool, ThreadPoolExecutor(TASKS + 2) as actors:
        others = [actors.submit(fencer), actors.submit(cutter)]
        try:
            for done in [actors.submit(worker, task, pool) for task in range(TASKS)]:
                done.result()
        finally:
            stop.set()
        for done in others:
            done.result()

    assert [POSITIONS] * TASKS == applied
    assert TASKS * POSITIONS == store.version
    assert_holds(store, store.ledger())
    assert len(set(cuts)) > 1, "no push came between the cuts"


# -- One decision at a time


def test_pushes_of_different_tasks_are_applied_at_the_same_time(stage_of):
    stage = stage_of(one_store())

    pushes = [stage.push(task, 1, 0, 1) for task in range(3)]

    assert pushes == stage.held()
    for call in reversed(pushes):
        stage.open(call)
    assert [Outcome.APPLIED] * 3 == [outcome(call) for call in pushes]
    assert [3, 2, 1] == [call.result.version for call in pushes]
    assert_holds(stage.store, stage.store.ledger())


def test_a_repetition_waits_for_the_push_that_is_under_way(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)

    again = stage.push(0, 1, 0, 1)

    assert (False, [first]) == (again.done, stage.held())
    stage.open(first)
    assert (Outcome.APPLIED, Outcome.DUPLICATE) == (outcome(first), outcome(again))


def test_a_fence_waits_for_its_tasks_push_and_tells_its_position(stage_of):
    stage = stage_of(one_store())
    first, other = stage.push(0, 1, 0, 3), stage.push(1, 1, 0, 1)

    fence = stage.call(stage.store.masters.fence, {0: 2, 7: 2}, 0)

    assert not fence.done
    zombie = stage.push(0, 1, 3, 4)
    stage.open(first)
    assert (Outcome.APPLIED, {0: 3, 7: 0}) == (outcome(first), fence.result)
    assert (Outcome.FENCED, False) == (outcome(zombie), other.done)
    assert Entry(0, 2, 3) == stage.store.ledger()[0]


def test_a_freeze_answers_when_nothing_is_under_way_any_more(stage_of):
    """A position that a shard has beyond what its freeze told would be in its cut alone."""
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)

    freeze = stage.call(stage.store.pins.freeze, "c", LONG_S)

    late = stage.push(1, 1, 0, 1)
    assert (False, False, [first]) == (freeze.done, late.done, stage.held())
    stage.open(first)
    assert ((Entry(0, 1, 1), Entry(1, 1, 0)), 1) == freeze.result
    assert not late.at_gate


def test_a_pin_keeps_whole_steps_only(stage_of):
    stage = stage_of(one_store())
    stage.store.pins.freeze("c", LONG_S)
    late = stage.push(0, 1, 0, 1)
    other = stage.push(1, 1, 0, 1)

    pin = stage.call(stage.store.pins.pin, "c", {0: 1}, LONG_S)

    assert (False, [late]) == (pin.done, stage.held())
    stage.open(late)
    assert (True, 1) == pin.result
    assert [other] == stage.held()
    assert_holds(stage.store, [Entry(0, 1, 1)], "c")


def test_an_attempt_to_pin_that_needs_nothing_more_waits_for_what_is_under_way(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)
    freeze = stage.call(stage.store.pins.freeze, "c", LONG_S)

    pin = stage.call(stage.store.pins.pin, "c", {}, LONG_S)

    assert not pin.done
    stage.open(first)
    assert (True, (True, 1)) == (freeze.done, pin.result)
    assert_holds(stage.store, [Entry(0, 1, 1)], "c")


def test_a_flush_waits_for_what_is_under_way(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)

    flush = stage.call(stage.store.flush)

    assert not flush.done
    stage.open(first)
    assert (1, 0) == flush.result


def test_a_push_waits_for_a_moment_that_waits_for_what_is_under_way(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)
    moment = stage.call(stage.store.pins.pin_moment, "m")

    late = stage.push(1, 1, 0, 1)

    assert (False, False, [first]) == (moment.done, late.done, stage.held())
    stage.open(first)
    assert (1, [late]) == (moment.result.books.version, stage.held())


def test_a_task_may_be_retired_while_its_push_is_applied(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)

    stage.store.masters.retire(1)

    stage.open(first)
    assert (Outcome.APPLIED, ()) == (outcome(first), stage.store.ledger())


def test_an_empty_push_is_applied_beside_others(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)

    empty = stage.call(stage.store.push, Span(1, 1, 0, 1), 0, Update())

    assert (Outcome.APPLIED, 1, False) == (outcome(empty), empty.result.version, first.done)


def test_each_step_has_the_rate_of_its_own_number(stage_of):
    spec = model(lr=StepDecay(-1.0, 1, 0.5))
    stage = stage_of(one_store(spec=spec))

    pushes = [stage.push(task, 1, 0, 1) for task in range(3)]

    for call in reversed(pushes):
        stage.open(call)
    last = stage.push(0, 1, 1, 2)
    stage.open(last)
    _, chunks, _ = stage.store.pull(dense=True, known_version=None, tables=[])
    np.testing.assert_array_equal(np.frombuffer(chunks[0][1], np.float32), 1.875)


def test_staleness_counts_the_steps_under_way(stage_of):
    stage = stage_of(one_store(Policy(use_async=True, staleness=1)))
    first = [stage.push(0, 1, 0, 1), stage.push(1, 1, 0, 1)]

    late = stage.push(2, 1, 0, 1)

    assert (Outcome.STALE, first) == (outcome(late), stage.held())
    stage.open(first[0])
    assert 0 == first[0].result.staleness


def test_a_pull_amid_a_step_names_the_version_before_and_the_next_one_brings_it_again(stage_of):
    stage = stage_of(one_store())
    first = stage.push(0, 1, 0, 1)

    version, amid, _ = stage.store.pull(dense=True, known_version=None, tables=[])

    stage.open(first)
    now, after, _ = stage.store.pull(dense=True, known_version=version, tables=[])
    assert (0, 1, 1) == (version, len(amid), now)
    assert [("w", 0)] == [key for key, _ in after]


def test_a_step_that_fails_tears_the_shard_and_wakes_who_waits_for_it(stage_of, monkeypatch):
    stage = stage_of(one_store())
    failing, other = stage.push(0, 1, 0, 1), stage.push(1, 1, 0, 1)
    waiting = [
        stage.push(0, 1, 0, 1),
        stage.call(stage.store.flush),
        stage.call(stage.store.wait_version, 5, LONG_S),
    ]
    table = stage.store._state.parameters.tables["t"]
    monkeypatch.setattr(type(table), "apply", lambda *_: (_ for _ in ()).throw(MemoryError))
    stage.open(failing)
    monkeypatch.undo()

    stage.open(other)

    assert isinstance(failing.error, MemoryError)
    assert Outcome.APPLIED == outcome(other)  # it was whole
    assert [True] * 3 == [call.done for call in waiting]
    for call in (*waiting, stage.push(2, 1, 0, 1)):
        with pytest.raises(EdlError, match="in the midst of a step"):
            raise call.error
    assert [Entry(0, 1, 0), Entry(1, 1, 1)] == list(stage.store.ledger())


def test_a_new_jobs_model_waits_for_the_step_under_way(stage_of):
    store = Store(index=0, slot_map=SlotMap(1), policy=ASYNC)
    store.restorer.begin(model(), ShardBooks(version=7), new_job=True)
    store.restorer.insert_chunk(
        ("w", 0), Chunk(np.zeros(4, np.float32), [], np.zeros(1, np.int64), 7)
    )
    stage = stage_of(store)
    first = stage.push(0, 1, 0, 1, version=7)

    init = stage.call(store.init, model(lr=-2.0), {}, True)

    assert not init.done
    stage.open(first)
    assert 8 == init.result
    push(store, Span(0, 1, 1, 2))
    _, chunks, _ = store.pull(dense=True, known_version=None, tables=[])
    np.testing.assert_array_equal(np.frombuffer(chunks[0][1], np.float32), 3)


def test_waiting_for_a_version_ends_with_it(stage_of):
    stage = stage_of(one_store())
    waiting = stage.call(stage.store.wait_version, 1, LONG_S)
    for position in range(2):
        assert not waiting.done
        stage.open(stage.push(0, 1, position, position + 1))

    assert (2, 2) == (waiting.result, stage.store.wait_version(9, 0.0))


def test_who_waits_for_a_version_is_woken_by_versions_alone(stage_of):
    stage = stage_of(one_store(Policy(grads_to_wait=3)))
    waiting = [
        stage.call(stage.store.wait_version, newer_than, LONG_S) for newer_than in (1, 0, 1, 0, 0)
    ]
    waits = []
    for task in range(6):
        last = stage.push(task, 1, 0, 1)
        if last.at_gate:
            stage.open(last)
        waits.append([call.waits for call in waiting])

    # The first is woken, wakes the next, and so on; the last wakes it again, in vain.
    assert [[1] * 5] * 2 + [[3, 1, 2, 1, 1]] * 4 == waits
    assert [2, 1, 2, 1, 1] == [call.result for call in waiting]


def test_pushes_that_are_held_back_are_not_woken_by_those_that_go_on(stage_of):
    stage = stage_of(one_store())
    for task in range(3):
        stage.open(stage.push(task, 1, 0, 1))
    stage.store.pins.freeze("c", LONG_S)
    held = [stage.push(0, 1, 1, 2), stage.push(1, 1, 1, 2)]
    pin = stage.call(stage.store.pins.pin, "c", {0: 1, 1: 1, 2: 3}, LONG_S)
    before = [call.waits for call in held]
    stage.open(stage.push(2, 1, 1, 2))
    stage.open(stage.push(2, 1, 2, 3))

    assert pin.done
    assert before == [2, 2]  # the pin's targets were news to them
    assert [(True, 2)] * 2 == [(call.at_gate, call.waits) for call in held]


def test_a_step_takes_the_chunks_that_are_free_first():
    store = one_store(spec=model(3 * CHUNK_ELEMENTS))
    dense = store._state.parameters.dense
    keys = [("w", number) for number in range(3)]
    grads = {key: np.ones(CHUNK_ELEMENTS, np.float32) for key in keys}
    order, last_is_next, step = [], threading.Event(), dense._step

    def record(key, *args):
        order.append(key)
        step(key, *args)
        if len(order) == 2:
            last_is_next.set()

    dense._step = record
    with dense._locks[keys[0]]:  # another step is at it
        thread = threading.Thread(target=dense.apply, args=(grads, lambda _tensor: -1.0))
        thread.start()
        assert last_is_next.wait(300)
    thread.join(300)

    assert [keys[1], keys[2], keys[0]] == order
