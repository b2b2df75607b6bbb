"""A step that does not end tears the shard, so its process is replaced; nobody waits for ever."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edl.common import patience
from edl.common.errors import EdlError
from edl.nn import optimizers
from edl.nn.model_spec import DenseSpec, ModelSpec
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.rows import lock as lock_module
from edl.ps.rows.lock import SharedLock
from edl.ps.wire.buffers import Buffers

SPEC = ModelSpec((DenseSpec("w", (3,)),), (), optimizers.SGD(1.0))
STEP = Update({("w", 0): np.ones(3, np.float32)})


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(patience, "_LOOK_S", 0.02)
    monkeypatch.setattr(patience.Patience.__init__, "__defaults__", (0.05,))
    monkeypatch.setattr(lock_module, "LIMIT_S", 0.05)


@pytest.fixture
def hung(monkeypatch):
    """Yield a store with a step under way that ends only with the test."""
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    store.init(SPEC, {("w", 0): np.zeros(3, np.float32)}, True)
    begun, end = threading.Event(), threading.Event()
    monkeypatch.setattr(store._state.parameters, "apply", lambda *_: (begun.set(), end.wait(60)))
    pushing = threading.Thread(target=store.push, args=(Span(1, 1, 0, 1), 0, STEP), daemon=True)
    pushing.start()
    assert begun.wait(60)
    yield store
    end.set()
    pushing.join(60)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.push(Span(1, 1, 1, 2), 0, STEP),
        lambda store: store.masters.fence({1: 2}, 0),
        lambda store: store.flush(),
        lambda store: store.pins.pin_moment("m"),
    ],
    ids=["push", "fence", "flush", "snapshot"],
)
def test_whoever_waits_for_a_step_that_hangs_is_told_and_the_server_ends(hung, call):
    with pytest.raises(EdlError, match="gave up waiting for a step under way on server 0"):
        call(hung)

    assert hung.torn


def test_a_freeze_ends_at_its_deadline_though_a_step_hangs(hung):
    entries, _ = hung.pins.freeze("c", 0.05)

    assert (False, 0) == hung.pins.pin("c", {}, 0.05)
    assert [1] == [entry.task for entry in entries]


def test_a_lock_that_is_never_given_back_is_an_error_on_both_sides():
    shared, held = SharedLock(), SharedLock()
    with shared, pytest.raises(EdlError, match="gave up waiting"), shared.alone():
        pass
    with shared:  # nobody waits for it any more
        pass
    with held.alone(), pytest.raises(EdlError, match="gave up waiting"), held:
        pass
    with held:
        pass


def test_a_kernel_that_never_ends_is_an_error_and_the_lock_is_given_back():
    lock = SharedLock()
    lock.word[0] += 2  # a kernel shares it
    with pytest.raises(EdlError, match="gave up waiting for a kernel"), lock.alone():
        pass
    lock.word[0] -= 2

    with lock.alone():
        pass
    with lock:
        pass


def test_a_budget_that_is_never_given_back_is_an_error():
    buffers = Buffers(4 << 20)
    buffers.take(3 << 20)

    with pytest.raises(EdlError, match="gave up waiting for memory"):
        buffers.take(3 << 20)
    assert 0 == buffers.waiting
