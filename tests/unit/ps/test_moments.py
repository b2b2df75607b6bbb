"""A moment is pinned between two steps: pushes wait for the steps under way, and no longer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.common.errors import Fenced
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store

SPEC = ModelSpec((DenseSpec("w", (2,)),), (TableSpec("t", 1, "zeros"),), optimizers.SGD(1.0))
ONE = Update({("w", 0): np.full(2, -1, np.float32)}, {})
WAIT_S = 300.0  # a fresh checkout compiles its kernels meanwhile


@pytest.fixture
def store():
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(SPEC, {("w", 0): np.zeros(2, np.float32)}, True)
    return store


class Slow:
    """Steps of a store's parameters that last until they are let go."""

    def __init__(self, store, monkeypatch):
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        real = store._state.parameters.apply

        def apply(*arguments):
            self.begun.release()
            assert self.go_on.wait(WAIT_S)
            real(*arguments)

        monkeypatch.setattr(store._state.parameters, "apply", apply)


def test_a_moment_waits_for_the_steps_under_way_and_new_pushes_for_it(store, monkeypatch):
    slow = Slow(store, monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(store.push, Span(1, 1, 0, 1), 0, ONE)
        assert slow.begun.acquire(timeout=WAIT_S)
        pinned = pool.submit(store.pins.pin_moment, "m")
        while not store._state.pinning:
            pass
        second = pool.submit(store.push, Span(2, 1, 0, 1), 0, ONE)
        began_too = slow.begun.acquire(timeout=0.2)
        slow.go_on.set()
        moment = pinned.result(WAIT_S)

        assert not began_too
        assert Outcome.APPLIED == first.result(WAIT_S).outcome == second.result(WAIT_S).outcome
    (_, chunk), *_ = moment.parameters.dense.changed_since(None, "m")
    assert (1, [(1, 1), (2, 0)]) == (
        moment.books.version,
        [(e.task, e.applied) for e in moment.books.ledger],
    )
    np.testing.assert_array_equal([1, 1], chunk.value)
    np.testing.assert_array_equal([2, 2], pulled(store))


def pulled(store):
    return np.frombuffer(store.pull(dense=True, known_version=None, tables=[])[1][0][1], np.float32)


def test_pushes_go_on_after_a_moment_of_nothing_new(store):
    moment = store.pins.pin_moment("m")
    store.pins.unpin_moment(moment)

    assert store.pins.pin_moment("m", moment.books) is None
    assert Outcome.APPLIED == store.push(Span(1, 1, 0, 1), 0, ONE).outcome
    assert 1 == store.pins.pin_moment("m", moment.books).books.version


# -- Masters after each other


def test_a_later_master_ends_the_cuts_and_the_freeze_of_an_older_one(store):
    store.masters.meet(1)
    store.pins.freeze("kept", 9.0)
    store.pins.pin("kept", {}, 9.0)
    store.pins.freeze("frozen", 1e6)

    store.masters.meet(2)

    assert Outcome.APPLIED == store.push(Span(1, 1, 0, 1), 0, ONE).outcome
    assert (False, 1) == store.pins.pin("kept", {}, 9.0)
    with pytest.raises(Fenced, match="master of epoch 2 has taken over.*epoch 1, must end"):
        store.masters.meet(1)


def test_a_moment_outlives_the_master(store):
    store.masters.meet(1)
    moment = store.pins.pin_moment("m")

    store.masters.meet(2)
    store.push(Span(1, 1, 0, 1), 0, ONE)

    (_, chunk), *_ = moment.parameters.dense.changed_since(None, "m")
    np.testing.assert_array_equal([0, 0], chunk.value)
