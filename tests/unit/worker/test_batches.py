"""The order of a task's records, and how they are split into minibatches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import RecordError
from edl.common.order import minibatches, order
from edl.common.ragged import Ragged
from edl.data.reader import Columns
from edl.worker.batches import SpanError, spans, split, user_code

pytestmark = pytest.mark.fast


class Numbers:
    """A source of the numbers 0..n-1, some of them broken."""

    def __init__(self, broken=()):
        self.broken = set(broken)

    def sources(self):
        return []

    def read(self, source, start, end, skip=()):
        for record in range(start, end):
            if record in self.broken and record not in skip:
                raise RecordError(source, record, "torn")
        return [r for r in range(start, end) if r not in skip]


def test_order_is_a_permutation_that_depends_on_seed_epoch_and_task_only():
    assert sorted(order(1, 2, 3, 100, True)) == list(range(100))
    assert list(order(1, 2, 3, 100, True)) == list(order(1, 2, 3, 100, True))
    variants = {
        tuple(order(*key, 100, True)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    }
    assert len(variants) == 4


def test_order_without_shuffling_is_the_file_order():
    assert list(order(1, 2, 3, 5, False)) == [0, 1, 2, 3, 4]


@given(
    st.integers(0, 50),
    st.integers(0, 60),
    st.integers(1, 9),
    st.lists(st.integers(0, 120), max_size=6),
)
def test_pieces_cover_the_range_once_and_stop_at_every_boundary(
    start, length, minibatch, boundaries
):
    end = start + length
    pieces = list(split(start, end, minibatch, boundaries))
    assert [p for a, b in pieces for p in range(a, b)] == list(range(start, end))
    assert all(0 < b - a <= minibatch + (minibatch > 1) for a, b in pieces)
    ends = {b for _, b in pieces}
    assert {b for b in boundaries if start < b < end} <= ends


@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_spans_from_any_position_are_those_of_the_whole_task(size, minibatch, data):
    position = minibatch * data.draw(st.integers(0, minibatches(size, minibatch) - 1))
    offsets = order(0, 0, 1, size, True)
    whole, rest = (
        list(spans(Numbers(), "s", 10, 10 + size, offsets=offsets, pieces=pieces))
        for pieces in (list(split(at, size, minibatch)) for at in (0, position))
    )
    assert rest == [span for span in whole if span.start >= position]
    assert sorted(r for span in whole for r in span.records) == list(range(10, 10 + size))
    assert all(span.records == span.numbers.tolist() for span in (*whole, *rest))


def test_skipped_positions_are_not_read_and_the_spans_stay_the_same():
    offsets = order(0, 0, 1, 10, True)
    broken = 100 + int(offsets[4])
    pieces = list(split(0, 10, 3))
    found = list(spans(Numbers([broken]), "s", 100, 110, offsets=offsets, pieces=pieces, skips=[4]))
    assert [(s.start, s.end) for s in found] == [(0, 3), (3, 6), (6, 10)]
    assert [s.used for s in found] == [3, 2, 4]
    assert broken not in [r for s in found for r in s.records]
    assert all(s.records == s.numbers.tolist() for s in found)


def test_records_with_lists_are_taken_in_the_tasks_order_without_the_skipped():
    class Lists:
        def read(self, source, start, end, skip):
            numbers = np.array([n for n in range(start, end) if n not in skip])
            lists = Ragged.rows_of([np.full(n % 3, n) for n in numbers], np.int64)
            return Columns({"number": numbers, "list": lists})

    offsets = order(1, 0, 1, 10, shuffle=True)
    found = list(spans(Lists(), "s", 20, 30, offsets=offsets, pieces=[*split(0, 10, 4)], skips=[2]))

    used = np.concatenate([each.numbers for each in found]).tolist()
    assert used == [20 + n for place, n in enumerate(offsets.tolist()) if place != 2]
    assert [row for each in found for row in each.records["list"].tolist()] == [
        [n] * (n % 3) for n in used
    ]


def test_a_broken_record_is_named_with_its_minibatch():
    offsets = np.arange(10)
    with pytest.raises(SpanError) as raised:
        list(spans(Numbers([107]), "s", 100, 110, offsets=offsets, pieces=list(split(0, 10, 3))))
    assert (raised.value.start, raised.value.end, raised.value.record) == (6, 10, 107)


@pytest.mark.parametrize(
    "found",
    [OSError("gone"), RecordError("s", 99, "torn"), [1, 2]],
    ids=["raises", "wild", "short"],
)
def test_what_else_a_reader_does_is_about_all_that_is_left_of_the_task(found):
    class Reader(Numbers):
        def read(self, source, start, end, skip=()):
            if isinstance(found, Exception):
                raise found
            return found

    with pytest.raises(SpanError) as raised:
        list(spans(Reader(), "s", 0, 10, offsets=np.arange(10), pieces=[(6, 10)]))
    assert (6, 10, None) == (raised.value.start, raised.value.end, raised.value.record)


def test_a_task_of_which_all_is_skipped_is_not_read():
    found = list(spans(None, "s", 0, 4, offsets=np.arange(4), pieces=[(0, 4)], skips=range(4)))
    assert [(0, 4, 0)] == [(s.start, s.end, s.used) for s in found]


@given(st.integers(1, 200), st.integers(1, 9), st.data())
def test_no_span_has_one_record_where_it_can_have_more(size, minibatch, data):
    """A split may begin at any span's end, with those ends as boundaries, as after a fence."""
    whole = list(split(0, size, minibatch, ()))
    ends = [start for start, _ in whole]
    position = data.draw(st.sampled_from(ends))
    boundaries = data.draw(st.lists(st.sampled_from([*ends, size]), max_size=3))

    assert whole[ends.index(position) :] == list(split(position, size, minibatch, boundaries))
    assert minibatches(size, minibatch) == len(whole)
    assert size == 1 or minibatch == 1 or all(end - start > 1 for start, end in whole)


def test_no_record_is_to_blame_for_threads_that_the_system_does_not_give():
    with pytest.raises(RuntimeError, match="new thread"), user_code(0, 4, "a"):
        raise RuntimeError("can't start new thread")
    with pytest.raises(SpanError), user_code(0, 4, "a"):
        raise RuntimeError("another error of the user's")
