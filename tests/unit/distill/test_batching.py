"""Batches out of what is queued: each row once, in order, nothing beyond the size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.distill.batching import Queue, Rate, Request, best_size


def request(rows, kind="a", came=0.0):
    return Request(rows, kind, came, asked=())


@given(
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from(["a", "b", None])), max_size=30),
    st.integers(1, 16),
)
def test_every_row_is_in_one_batch_and_no_batch_is_too_large(asked, most):
    queue = Queue(most, 0.0, 10**6)
    requests = [request(rows, kind) for rows, kind in asked]
    for each in requests:
        assert queue.add(each)
    seen = {id(each): [] for each in requests}
    while batch := queue.take():
        kinds = {each.kind for each, _, _ in batch}
        assert len(kinds) == 1
        rows = sum(stop - start for _, start, stop in batch)
        assert rows <= most or kinds == {None}
        assert kinds != {None} or len(batch) == 1
        for each, start, stop in batch:
            assert (
                stop - start < each.rows <= most
                or stop - start == min(most, each.rows)
                or each.rows > most
                or kinds == {None}
            )
            seen[id(each)] += range(start, stop)
    assert all(seen[id(each)] == list(range(each.rows)) for each in requests)
    assert queue.queued == 0


def test_a_request_that_fits_is_not_split():
    queue = Queue(10, 0.0, 100)
    for rows in (6, 6, 4):
        queue.add(request(rows))

    batches = []
    while batch := queue.take():
        batches.append([stop - start for _, start, stop in batch])

    assert batches == [[6], [6, 4]]


def test_a_batch_that_is_not_full_waits_for_the_delay():
    queue = Queue(8, 0.5, 100)
    assert queue.ready_at() is None
    queue.add(request(3, came=10.0))
    assert queue.ready_at() == 10.5
    queue.add(request(5, came=10.2))
    assert queue.ready_at() == 10.0


def test_no_more_than_the_bound_is_queued_but_one_request_of_any_size():
    queue = Queue(8, 0.0, 10)
    assert queue.add(request(50))
    assert not queue.add(request(1))
    queue.take()
    assert queue.queued == 42


def test_what_is_given_up_is_not_computed():
    queue = Queue(8, 0.0, 100)
    first, second = request(4), request(4)
    queue.add(first)
    queue.add(second)

    queue.drop(first, "late")

    assert [each for each, _, _ in queue.take()] == [second]
    assert first.is_over
    assert queue.queued == 0


@pytest.mark.parametrize("fixed", [0.0, 7.0, 100.0])
def test_the_size_with_the_most_rows_a_second_is_found(fixed):
    """A batch of n takes `fixed` + n: once two sizes gain less than 5 %, no more is tried."""
    tried = []

    def seconds(rows):
        tried.append(rows)
        return fixed + rows

    found, last = best_size(seconds), tried[-1]

    rate = {size: size / seconds(size) for size in (1 << n for n in range(13))}
    assert rate[found] >= 0.9 * max(rate.values())
    assert last <= 4 * found


def test_no_more_is_tried_than_there_is_memory_for():
    def seconds(rows):
        if rows > 16:
            raise MemoryError
        return 1.0

    assert best_size(seconds) == 16


def test_a_model_that_becomes_slower_says_so_within_a_few_batches():
    """Broken once: the rates of batches are smoothed."""
    rate = Rate()
    assert rate.value == 0.0
    for _ in range(20):
        rate.note(64, 0.025)
    assert rate.value == pytest.approx(2560.0)

    for _ in range(3):  # ten times slower, three quarters of a second
        rate.note(64, 0.25)
    assert 256.0 < rate.value < 2 * 256.0
    for _ in range(20):  # and half a second as before
        rate.note(64, 0.025)
    assert 0.9 * 2560.0 < rate.value < 2560.0


def test_a_small_batch_hardly_counts_in_the_rate():
    rate = Rate()
    for _ in range(20):
        rate.note(64, 0.002)
    rate.note(1, 0.001)
    assert rate.value > 0.85 * 32_000
