"""A shard applies only spans that the master can have leased, by whichever way they come."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edl.common.errors import EdlError, PeerError, Unreachable
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec
from edl.ps.books import leased
from edl.ps.books.aggregation import Update
from edl.ps.books.answers import NotYet
from edl.ps.books.ledger import Entry, Span
from edl.ps.books.state import ShardBooks
from edl.ps.worker_client import PushOutcome

SPEC = ModelSpec((DenseSpec("w", (3,)),), (), optimizers.SGD(1.0))
ONES = {"w": np.ones(3, np.float32)}


@pytest.fixture(params=["grpc", "tcp"])
def transport(request):
    return request.param


class Asked:
    """A shard whose master answers when it is asked, unless it is `silent`."""

    def __init__(self, start_shards, below):
        self.shards = start_shards(1, SPEC)
        self.store = self.shards.stores[0]
        self.times, self.silent, self.below = 0, False, below
        self.shards.client.init(SPEC, {"w": np.zeros(3, np.float32)}, timeout_s=60.0)
        self.store.leased.expect(self._ask)

    def _ask(self):
        self.times += 1
        if not self.silent:
            asks = self.store.leased.asks
            threading.Thread(target=self.store.leased.tell, args=(self.below, asks)).start()

    def push(self, task, attempt=1, start=0, end=1, timeout_s=60.0):
        span = Span(task, attempt, start, end)
        return self.shards.client.push(span, (0,), dense=ONES, timeout_s=timeout_s).outcome

    def weights(self):
        into = {"w": np.zeros(3, np.float32)}
        self.shards.client.pull({}, dense=into, full=True, timeout_s=60.0)
        return into["w"].tolist()


@pytest.fixture
def asked(start_shards):
    return Asked(start_shards, below=10)


def test_a_span_of_a_task_that_the_master_has_made_is_applied_and_asked_for_once(asked):
    outcomes = [asked.push(9), asked.push(9, start=1, end=2), asked.push(3)]

    assert [PushOutcome.APPLIED] * 3 == outcomes
    assert ([-3.0] * 3, 1) == (asked.weights(), asked.times)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"task": 999_999}, "there is no task 999999: the master has made those below 10"),
        ({"task": 3, "attempt": 2}, "task 3 was never leased under attempt 2"),
        ({"task": 9, "attempt": 2**31 - 1}, "task 9 was never leased under attempt 2147483647"),
    ],
    ids=["no task", "an attempt too far", "the last attempt"],
)
def test_a_span_that_the_master_cannot_have_leased_is_refused_and_leaves_no_trace(
    asked, span, message
):
    asked.push(9)
    with pytest.raises(EdlError, match=message) as refused:
        asked.push(**span)

    assert not isinstance(refused.value, PeerError)
    assert (Entry(9, 1, 1),) == asked.store.ledger()
    assert [-1.0] * 3 == asked.weights()


def test_the_attempt_that_the_master_has_fenced_is_applied_and_the_next_is_not(asked):
    asked.store.masters.fence({3: 4}, 0)

    applied = asked.push(3, attempt=4)
    with pytest.raises(EdlError, match="never leased under attempt 5"):
        asked.push(3, attempt=5, start=1, end=2)

    assert PushOutcome.APPLIED == applied
    assert (Entry(3, 4, 1),) == asked.store.ledger()


def test_while_the_master_says_nothing_a_new_task_is_asked_for_again(asked, monkeypatch):
    monkeypatch.setattr(leased, "_WORD_S", 0.01)
    asked.silent = True
    with pytest.raises(NotYet, match="not heard from the master yet .* task 3"):
        asked.store.push(Span(3, 1, 0, 1), 0, Update())
    with pytest.raises(Unreachable):
        asked.push(3, timeout_s=0.5)
    silent = asked.weights()
    asked.silent = False

    assert PushOutcome.APPLIED == asked.push(3)
    assert ([0.0] * 3, [-1.0] * 3) == (silent, asked.weights())


def test_a_master_that_bounds_no_tasks_is_believed(start_shards):
    asked = Asked(start_shards, below=None)

    assert PushOutcome.APPLIED == asked.push(999_999, attempt=3)


def test_what_is_restored_still_asks(asked):
    spec, books = SPEC, ShardBooks(ledger=(Entry(3, 2, 1),))
    asked.store.restorer.begin(spec, books, new_job=False)

    assert 0 == asked.store._state.ledger.tasks_below
    asked.store.restorer.set_books(books)
    assert 0 == asked.store._state.ledger.tasks_below
