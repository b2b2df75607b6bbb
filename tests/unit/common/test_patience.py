"""A wait that ought to be short says what it waits for, and ends."""

import threading
from concurrent.futures import Future

import pytest

from edl.common import patience
from edl.common.errors import EdlError

pytestmark = pytest.mark.fast


def test_a_wait_that_nobody_ends_says_what_for_and_is_an_error(monkeypatch, caplog):
    monkeypatch.setattr(patience, "_LOOK_S", 0.01)
    waiting = patience.Patience("a step", limit_s=0.03)
    condition = threading.Condition()

    def wait_for_ever():
        while True:
            waiting.wait(condition, 0.01)

    with condition, pytest.raises(EdlError, match="gave up waiting for a step after"):
        wait_for_ever()

    assert "waiting for a step for" in caplog.text


def test_the_same_of_a_future_and_what_that_raises_is_raised(monkeypatch):
    monkeypatch.setattr(patience, "_LOOK_S", 0.01)
    done: Future[int] = Future()
    done.set_result(7)
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("its own"))

    assert 7 == patience.Patience("it").result(done)
    with pytest.raises(TimeoutError, match="its own"):
        patience.Patience("it").result(failed)
    with pytest.raises(EdlError, match="gave up waiting for it"):
        patience.Patience("it", limit_s=0.03).result(Future())
