"""Pushes, fences, cuts and retirements begin and end in any order: a model of the store holds."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tools.turns import examples

from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span

from .counting import LONG_S, POSITIONS, TASKS, assert_holds, one_store, push
from .stage import Call, Stage, outcome


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


Decisions.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None
)
TestDecisions = Decisions.TestCase
