"""Pushes of several threads at the same time: exactly once, and no cut with half a step.

The model counts: at the rate -1 a gradient of 1 adds 1. Each position of a task has a row of its
own, and all positions share some rows and all dense chunks. So values can be compared with a ledger
record by record.

`Stage` drives a store's threads one decision at a time: it knows when all of them stand still, and
holds each step where its dense half is applied and its rows are not.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edl.common.errors import EdlError, NotPinned
from edl.nn import optimizers
from edl.nn.model_spec import CHUNK_ELEMENTS, DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.dense import Chunk
from edl.ps.books.ledger import Entry, Span
from edl.ps.books.parameters import Invalid
from edl.ps.books.slots import SlotMap
from edl.ps.books.state import ShardBooks
from edl.ps.books.store import Store

ASYNC = Policy(use_async=True)
TASKS, POSITIONS, SHARED = 4, 64, 5
LONG_S = 1e6


def model(elements=4, lr=-1.0):
    return ModelSpec(
        (DenseSpec("w", (elements,)),), (TableSpec("t", 2, "zeros"),), optimizers.SGD(lr)
    )


def one_store(policy=ASYNC, spec=None):
    spec = spec or model()
    store = Store(index=0, slot_map=SlotMap(1), policy=policy)
    elements = spec.dense[0].elements
    first = range(0, elements, CHUNK_ELEMENTS)
    sizes = [min(CHUNK_ELEMENTS, elements - start) for start in first]
    store.init(spec, {("w", i): np.zeros(n, np.float32) for i, n in enumerate(sizes)}, True)
    return store


def shared_ids():
    return -1 - np.arange(SHARED, dtype=np.int64)


def gradients(store, span):
    """Return 1 for every chunk, the shared rows, and the row of each position of the span."""
    own = span.task * POSITIONS + np.arange(span.start, span.end, dtype=np.int64)
    ids = np.concatenate([shared_ids(), own])
    count = span.end - span.start
    grads = np.ones((len(ids), 2), np.float32)
    grads[:SHARED] = count
    chunks = store.pins.chunks("")
    return Update(
        {key: np.full(len(chunk.value), count, np.float32) for key, chunk in chunks},
        {"t": (ids, grads)},
    )


def push(store, span, version=0, **options):
    return store.push(span, version, gradients(store, span), **options)


def assert_holds(store, ledger, cut=""):
    """Check that the values are what the ledger says has been applied, record by record."""
    ids = np.concatenate([shared_ids(), np.arange(TASKS * POSITIONS, dtype=np.int64)])
    _, chunks, (rows,) = store.pull(dense=True, known_version=None, tables=[("t", ids)], cut=cut)
    applied = {entry.task: entry.applied for entry in ledger}
    total = sum(applied.values())
    for key, data in chunks:
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), total, err_msg=str(key))
    np.testing.assert_array_equal(rows[:SHARED], total)
    counted = rows[SHARED:, 0].reshape(TASKS, POSITIONS)
    for task in range(TASKS):
        expected = np.arange(POSITIONS) < applied.get(task, 0)
        np.testing.assert_array_equal(counted[task], expected, err_msg=f"task {task}")


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


class Call:
    """A call on a thread of its own."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.at_gate = False
        self.done = False
        self.waits, self.told_waits = 0, 0  # in the store, and those that it told before
        self.result = None
        self.error: BaseException | None = None


class Stage:
    """Threads in a store, each of them running, waiting in the store, or held amid its step."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[Call] = []
        self.pushes: list[Call] = []
        self._of_thread: dict[int, Call] = {}
        self._running: set[Call] = set()
        self._still = threading.Condition()
        stage = self

        class Watched(threading.Condition):
            def __init__(self):
                super().__init__(store._state.lock)
                self.calls: list[Call] = []  # that wait, in the order in which they are woken

            def wait(self, timeout=None):
                if call := stage._of_thread.get(threading.get_ident()):
                    call.waits += 1
                stage._pause(self.calls)
                return super().wait(timeout)

            def notify(self, n=1):  # notify_all calls it, too
                stage._resume(self.calls, n)
                super().notify(n)

        store._state.changed, store._state.stepped, store._state.thawed = (
            Watched(),
            Watched(),
            Watched(),
        )
        dense = store._state.parameters.dense
        apply = dense.apply

        def half(grads, lr):
            apply(grads, lr)
            if not grads:
                return
            call = self._of_thread[threading.get_ident()]
            call.at_gate = True
            self._pause([])
            assert call.opened.wait(300)

        dense.apply = half

    def call(self, function: Callable, *args) -> Call:
        """Begin a call, and let it go as far as it can."""
        call = Call()
        self.calls.append(call)
        self._running.add(call)

        def run():
            self._of_thread[threading.get_ident()] = call
            try:
                call.result = function(*args)
            except (EdlError, MemoryError, ValueError, KeyError) as error:
                call.error = error
            call.done = True
            self._pause([])

        threading.Thread(target=run, daemon=True).start()
        self.settle()
        return call

    def push(self, *span, version=0) -> Call:
        def tell_wait():
            self._of_thread[threading.get_ident()].told_waits += 1

        told = partial(push, self.store, Span(*span), version, before_wait=tell_wait)
        call = self.call(told)
        self.pushes.append(call)
        return call

    def open(self, call: Call) -> None:
        """End the step that is held."""
        with self._still:
            call.at_gate = False
            self._running.add(call)
        call.opened.set()
        self.settle()

    def settle(self) -> None:
        """Wait until no thread runs."""
        with self._still:
            assert self._still.wait_for(lambda: not self._running, 30)

    def held(self) -> list[Call]:
        return [call for call in self.calls if call.at_gate]

    def _pause(self, where: list[Call]) -> None:
        call = self._of_thread.get(threading.get_ident())
        with self._still:
            if call is not None:
                self._running.discard(call)
                where.append(call)
            self._still.notify_all()

    def _resume(self, waiting: list[Call], count: int) -> None:
        with self._still:
            self._running.update(waiting[:count])
            del waiting[:count]

    def end(self) -> None:
        """Let go of everybody: all calls end."""
        while (freeze := self.store.pins.frozen) is not None or self.held():
            for call in self.held():
                self.open(call)
            if freeze is not None:
                self.store.pins.unpin(freeze.cut)
                self.settle()
        assert all(call.done for call in self.calls), "a call waits for ever"
        for call in self.pushes:
            assert call.told_waits == call.waits


@pytest.fixture
def stage_of():
    """Yield stage_of(store) -> Stage, ended when the test ends."""
    stages = []

    def begin(store: Store) -> Stage:
        stages.append(Stage(store))
        return stages[-1]

    yield begin
    for stage in stages:
        stage.end()


def outcome(call):
    if call.error is not None:
        raise call.error
    return call.result.outcome if call.done else None


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
    spec = model(lr=optimizers.StepDecay(-1.0, 1, 0.5))
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


class Decisions(RuleBasedStateMachine):
    """Any order of beginnings and ends of pushes, fences, cuts and retirements.

    Of threads that are woken together either may be first, so no draw may depend on what has become
    of them: a rule that has nothing to do does nothing.
    """

    tasks = st.integers(0, TASKS - 1)

    @initialize()
    def begin(self):
        self.stage = Stage(one_store())
        self.store = self.stage.store
        self.pushes: list[tuple[Span, Call]] = []
        self.fences: list[tuple[dict[int, int], Call]] = []
        self.freeze: tuple[str, Call] | None = None
        self.pins: list[tuple[str, dict[int, int], Call]] = []
        self.names = itertools.count()

    @rule(task=tasks, attempt=st.integers(1, 3), ahead=st.integers(-1, 1), size=st.integers(1, 2))
    def push(self, task, attempt, ahead, size):
        applied = {entry.task: entry.applied for entry in self.store.ledger()}
        start = max(0, applied.get(task, 0) + ahead)
        if start + size <= POSITIONS:
            span = Span(task, attempt, start, start + size)
            self.pushes.append((span, self.stage.call(push, self.store, span)))

    @rule(number=st.integers(0, 7))
    def end_a_step(self, number):
        held = self.stage.held()
        if held:
            self.stage.open(held[number % len(held)])

    @rule(attempts=st.dictionaries(tasks, st.integers(1, 4), min_size=1))
    def fence(self, attempts):
        self.fences.append((attempts, self.stage.call(self.store.masters.fence, attempts, 0)))

    @rule()
    def begin_a_cut(self):
        if self.freeze is None:
            name = f"c{next(self.names)}"
            self.freeze = (name, self.stage.call(self.store.pins.freeze, name, LONG_S))

    @rule(beyond=st.dictionaries(tasks, st.integers(1, 2)))
    def end_a_cut(self, beyond):
        if self.freeze is None or not self.freeze[1].done:
            return
        name, freeze = self.freeze
        targets = {entry.task: entry.applied for entry in freeze.result[0]}
        for task, more in beyond.items():
            targets[task] = targets.get(task, 0) + more
        self.pins.append(
            (name, targets, self.stage.call(self.store.pins.pin, name, targets, LONG_S))
        )
        self.freeze = None

    @rule()
    def the_freeze_expires(self):
        with self.store._state.lock:
            if self.store.pins.frozen is not None:
                self.store.pins.frozen.deadline = 0.0
                self.store._state.wake_all()
        self.stage.settle()

    @rule(low_water=st.integers(0, 1))
    def retire(self, low_water):
        self.store.masters.retire(low_water)

    @invariant()
    def every_position_was_applied_once_and_in_order(self):
        ended = [(span, c) for span, c in self.pushes if c.done and c.error is None]
        spans = sorted(
            (span.task, span.start, span.end)
            for span, call in ended
            if call.result.outcome is Outcome.APPLIED
        )
        assert len(spans) == self.store.version
        ledger = {entry.task: entry.applied for entry in self.store.ledger()}
        for task, runs in itertools.groupby(spans, key=lambda span: span[0]):
            runs = list(runs)
            assert [0, *(end for _, _, end in runs)] == [*(s for _, s, _ in runs), runs[-1][2]]
            assert ledger.get(task, runs[-1][2]) == runs[-1][2]

    @invariant()
    def after_a_fence_nothing_more_comes_of_lower_attempts(self):
        for attempts, fence in self.fences:
            for span, call in self.pushes if fence.done else ():
                if outcome(call) is Outcome.APPLIED and span.attempt < attempts.get(span.task, 0):
                    assert span.end <= fence.result.get(span.task, span.end)

    @invariant()
    def while_frozen_nothing_is_applied(self):
        if self.freeze is not None and self.freeze[1].done:
            name, freeze = self.freeze
            if self.store.pins.is_frozen_by(name):
                assert [] == self.stage.held()
                assert self.store.version == freeze.result[1]

    @invariant()
    def a_cut_holds_what_its_ledger_says(self):
        for name, targets, pin in self.pins:
            if name in self.store.pins.pinned:
                assert pin.done
                _, books = self.store.pins.books(name)
                applied = {entry.task: entry.applied for entry in books.ledger}
                for task, position in targets.items():
                    assert task < books.low_water or applied.get(task, 0) == position
                if books.low_water == 0:
                    assert_holds(self.store, books.ledger, name)

    def teardown(self):
        if not hasattr(self, "stage"):
            return
        self.stage.end()
        self.every_position_was_applied_once_and_in_order()
        errors = [call.error for call in self.stage.calls if call.error is not None]
        assert [] == errors


Decisions.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDecisions = Decisions.TestCase


# -- Reads and checks


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
        thread = threading.Thread(target=dense.apply, args=(grads, -1.0))
        thread.start()
        assert last_is_next.wait(300)
    thread.join(300)

    assert [keys[1], keys[2], keys[0]] == order
