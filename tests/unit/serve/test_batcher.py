"""Requests become batches: merged under load, never split, each answered exactly once."""

import queue
import threading

import numpy as np
import pytest
from tools.served import FAR_S, Adding, asked

from edl.common.errors import UsageError
from edl.serve.batcher import Batcher, Quick, Rules
from edl.serve.kserve.refused import Refused, Why
from edl.serve.versions import Held


class Asker:
    """A batcher of one model, and what is over."""

    def __init__(self, **rules):
        self.served = Adding()
        self.held = Held("1", self.served)
        self.batcher = Batcher("m", Rules(**rules))
        self.over = queue.Queue()

    def ask(self, rows=1, day=0, held=None):
        return self.batcher.ask(held or self.held, asked(rows, day), rows, self.over.put)

    def busy(self):
        """Let the model compute a request until it may answer."""
        self.served.may_answer.clear()
        self.served.computing.clear()
        first = self.ask()
        assert self.served.computing.wait(FAR_S)
        return first

    def ended(self, count):
        return [self.over.get(timeout=FAR_S) for _ in range(count)]


@pytest.fixture
def make():
    made = []

    def asker(**rules):
        made.append(Asker(**rules))
        return made[-1]

    yield asker
    for each in made:
        each.served.may_answer.set()
        each.batcher.close()


def test_what_waits_while_a_batch_is_computed_is_the_next_batch(make):
    asker = make()
    asker.busy()
    rows = [1, 3, 2]
    requests = [asker.ask(n) for n in rows]

    asker.served.may_answer.set()
    asker.ended(4)

    assert [1, 6] == asker.served.batches
    for count, request in zip(rows, requests, strict=True):
        expected = asked(count)["x"].sum(axis=1) + 1
        np.testing.assert_array_equal(expected, request.answer["sum"])


def test_a_request_larger_than_a_batch_is_computed_whole_by_one_call(make):
    asker = make(max_batch_size=4)
    asker.busy()
    asker.ask(3)
    large = asker.ask(10)
    asker.ask(3)

    asker.served.may_answer.set()
    asker.ended(4)

    assert [1, 3, 10, 3] == asker.served.batches
    assert 10 == len(large.answer["sum"])


def test_versions_are_never_in_one_batch(make):
    asker = make()
    newer = Held("2", Adding(2))
    asker.busy()
    requests = [asker.ask(2), asker.ask(2, held=newer), asker.ask(2)]

    asker.served.may_answer.set()
    asker.ended(4)

    assert [[1, 1], [2, 2], [1, 1]] == [each.answer["number"].tolist() for each in requests]
    assert ([1, 4], [2]) == (asker.served.batches, newer.served.batches)


def test_who_comes_when_the_queue_is_full_is_told_so_at_once(make):
    asker = make(max_queued=4)
    asker.busy()
    asker.ask(3)

    with pytest.raises(Refused, match=r"3 rows wait already.*more than 4") as refused:
        asker.ask(2)

    assert Why.FULL == refused.value.why


@pytest.mark.parametrize(
    ("day", "kind", "told"),
    [(-1, UsageError, "days begin with 0"), (5000, Refused, "the model failed: ZeroDivisionError")],
)
def test_a_request_that_the_model_refuses_is_no_fault_of_its_neighbours(make, day, kind, told):
    asker = make()
    asker.busy()
    good, bad, other = asker.ask(2), asker.ask(1, day), asker.ask(1)

    asker.served.may_answer.set()
    asker.ended(4)

    assert (2, 1) == (len(good.answer["sum"]), len(other.answer["sum"]))
    with pytest.raises(kind, match=told):
        bad.answer  # noqa: B018 - it raises


def test_a_request_that_is_given_up_in_the_queue_is_over_once_and_not_computed(make):
    asker = make()
    asker.busy()
    late = asker.ask(5)

    asker.batcher.give_up(late)
    asker.batcher.give_up(late)
    given_up = asker.ended(1)
    asker.served.may_answer.set()
    asker.ended(1)

    assert ([late], [1]) == (given_up, asker.served.batches)
    assert asker.over.empty()


def test_a_request_that_is_given_up_while_it_is_computed_is_over_when_that_ends(make):
    """Its version must stay open until then."""
    asker = make()
    first = asker.busy()

    asker.batcher.give_up(first)
    before = asker.over.empty()
    asker.served.may_answer.set()

    assert before
    assert [first] == asker.ended(1)


def test_an_end_answers_what_is_computed_and_tells_what_waits(make):
    asker = make()
    first = asker.busy()
    waiting = asker.ask(2)
    asker.served.may_answer.set()

    asker.batcher.close()
    asker.ended(2)

    assert 1 == len(first.answer["sum"])
    if waiting.failure is not None:  # it may have been the next batch already
        assert Why.AWAY == waiting.failure.why
    with pytest.raises(Refused, match="the server is ending"):
        asker.ask()


def test_a_batch_that_is_not_full_waits_for_more():
    asker = Asker(max_batch_size=4, max_queue_delay_s=FAR_S)
    requests = [asker.ask(1) for _ in range(4)]

    asker.ended(4)
    asker.batcher.close()

    assert [4] == asker.served.batches
    assert all(each.failure is None for each in requests)


def test_an_answer_of_other_rows_than_were_asked_is_a_failure_of_the_model(make):
    asker = make()
    asker.served.infer = lambda _inputs: {"sum": np.zeros(7, np.float32)}

    request = asker.ask(2)
    asker.ended(1)

    with pytest.raises(Refused, match=r"has the shape \(7,\) for 2 rows"):
        request.answer  # noqa: B018 - it raises


def test_batches_are_quick_up_to_twice_the_rows_of_one_that_was(make):
    quick = Quick(limit_s=1.0)
    rows = []
    for count, took_s in [(1, 0.1), (2, 0.5), (9, 5.0), (4, 2.0), (4, 0.2), (8, 2.0), (8, 2.0)]:
        quick.note(count, took_s)
        rows.append(quick.rows)

    assert [2, 4, 4, 4, 8, 8, 4] == rows


def test_whoever_asks_computes_what_is_quick_and_all_that_waits_with_it(make):
    asker = make()
    asker.ask(4)
    asker.ended(1)  # by a thread: it was quick
    here = threading.get_ident()
    by = []
    asker.served.infer = lambda inputs: (
        by.append(threading.get_ident()) or Adding.infer(asker.served, inputs)
    )

    requests = [
        asker.batcher.ask(asker.held, asked(n), n, asker.over.put, helps=True) for n in (1, 3)
    ]
    asker.batcher.help()

    assert [True, True] == [each.wants_help for each in requests]
    assert requests == asker.ended(2)
    assert ([here], [4, 4]) == (by, asker.served.batches)


def test_nobody_helps_where_a_thread_computes_already_or_more_waits_than_is_quick(make):
    asker = make()
    asker.ask(1)
    asker.ended(1)
    asker.busy()

    small = asker.batcher.ask(asker.held, asked(1), 1, asker.over.put, helps=True)
    asker.batcher.help()
    large = asker.batcher.ask(asker.held, asked(99), 99, asker.over.put, helps=True)
    asker.served.may_answer.set()
    asker.ended(3)

    assert [True, False] == [small.wants_help, large.wants_help]
    assert [1, 1, 100] == asker.served.batches
