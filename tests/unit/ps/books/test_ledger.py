"""Rules 1, 2, 3 and 8 of the books, on any sequence of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edl.ps.books.ledger import Entry, Ledger, Span, Verdict

pytestmark = pytest.mark.fast


def test_a_fresh_task_begins_at_position_0():
    ledger = Ledger()

    verdicts = [ledger.offer(Span(1, 1, 8, 16)), ledger.offer(Span(1, 1, 0, 8))]

    assert [Verdict.GAP, Verdict.APPLY] == verdicts


def test_a_span_that_overlaps_what_is_applied_is_a_gap():
    ledger = Ledger([Entry(1, 1, 8)])

    assert Verdict.GAP == ledger.offer(Span(1, 1, 4, 12))


def test_a_higher_attempt_is_the_ledgers_from_its_first_push():
    ledger = Ledger([Entry(1, 1, 8)])

    verdicts = [ledger.offer(Span(1, 3, 0, 8)), ledger.offer(Span(1, 2, 8, 16))]

    assert [Verdict.DUPLICATE, Verdict.FENCED] == verdicts


def test_a_span_that_was_not_offered_cannot_be_advanced_over():
    ledger = Ledger([Entry(1, 1, 8)])

    with pytest.raises(ValueError, match="was not offered"):
        ledger.advance(Span(1, 1, 16, 24))


def test_a_task_that_is_fenced_while_its_span_is_applied_keeps_the_fences_attempt():
    ledger = Ledger()
    ledger.offer(Span(1, 1, 0, 8))
    ledger.fence(1, 3)

    ledger.advance(Span(1, 1, 0, 8))

    assert (Entry(1, 3, 8),) == ledger.entries()
    assert Verdict.FENCED == ledger.offer(Span(1, 2, 8, 16))


def test_a_task_that_is_retired_while_its_span_is_applied_stays_forgotten():
    ledger = Ledger()
    ledger.offer(Span(1, 1, 0, 8))
    ledger.retire(2)

    ledger.advance(Span(1, 1, 0, 8))

    assert () == ledger.entries()


@pytest.mark.parametrize("span", [(0, 1, 4, 4), (0, 1, -1, 4), (0, 0, 0, 4), (-1, 1, 0, 4)])
def test_an_impossible_span_is_refused(span):
    with pytest.raises(ValueError, match="positions must rise"):
        Span(*span)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), unique_by=lambda t: t[0]))
def test_entries_make_an_equal_ledger(lines):
    ledger = Ledger([Entry(task, attempt, 8) for task, attempt in lines], low_water=3)

    again = Ledger(ledger.entries(), ledger.low_water)

    assert ledger.entries() == again.entries()
    assert all(entry.task >= 3 for entry in ledger.entries())


class AnyMessages(RuleBasedStateMachine):
    """Pushes, fences and retirements in any order: every position is applied at most once, in
    order, and never under an attempt lower than one that was fenced or applied."""

    tasks = st.integers(0, 3)
    attempts = st.integers(1, 4)

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.applied: dict[int, list[int]] = {}
        self.highest: dict[int, int] = {}
        self.low_water = 0

    @rule(task=tasks, attempt=attempts, start=st.integers(0, 12), size=st.integers(1, 3))
    def push(self, task, attempt, start, size):
        span = Span(task, attempt, start, start + size)
        done = len(self.applied.get(task, []))
        verdict = self.ledger.offer(span)
        if task < self.low_water or attempt < self.highest.get(task, 0):
            expected = Verdict.FENCED
        elif span.end <= done:
            expected = Verdict.DUPLICATE
        else:
            expected = Verdict.APPLY if start == done else Verdict.GAP
        assert expected == verdict
        if verdict is not Verdict.FENCED:
            self.highest[task] = attempt
        if verdict is Verdict.APPLY:
            self.ledger.advance(span)
            self.applied.setdefault(task, []).extend(range(span.start, span.end))

    @rule(task=tasks, attempt=attempts)
    def fence(self, task, attempt):
        position = self.ledger.fence(task, attempt)
        if task < self.low_water:
            assert position is None
        else:
            assert len(self.applied.get(task, [])) == position
            self.highest[task] = max(attempt, self.highest.get(task, 0))

    @rule(low_water=st.integers(0, 3))
    def retire(self, low_water):
        self.ledger.retire(low_water)
        self.low_water = max(self.low_water, low_water)

    @invariant()
    def every_position_was_applied_once_and_in_order(self):
        for positions in self.applied.values():
            assert list(range(len(positions))) == positions

    @invariant()
    def retired_tasks_have_left(self):
        assert all(entry.task >= self.low_water for entry in self.ledger.entries())


TestAnyMessages = AnyMessages.TestCase
