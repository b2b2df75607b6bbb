"""Calls are made one after the other, when they are due, until nobody wants them."""

from __future__ import annotations

import threading

from edl.k8s.calls import Calls

WAIT_S = 20.0


def test_calls_of_one_moment_keep_their_order_and_a_later_one_waits():
    calls, made, all_made = Calls("test"), [], threading.Event()
    calls.put(lambda: made.append("in an hour"), 3600.0)
    calls.put(lambda: made.append("first"))
    calls.put(lambda: made.append("second"))
    calls.put(all_made.set)

    calls.start()
    assert all_made.wait(WAIT_S)
    calls.close()
    calls.join(WAIT_S)

    assert made == ["first", "second"]


def test_no_call_is_made_after_the_end():
    calls, made = Calls("test"), []
    calls.start()

    calls.close()
    calls.put(lambda: made.append("late"))
    calls.join(WAIT_S)

    assert made == []


def test_a_call_may_ask_for_another_one():
    calls, done = Calls("test"), threading.Event()
    calls.start()

    calls.put(lambda: calls.put(done.set))

    assert done.wait(WAIT_S)
    calls.close()
