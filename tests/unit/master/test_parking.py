"""Parked callers are asked when an answer may have come, and told when time is up."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.master.parking import Parked, Parking

pytestmark = pytest.mark.fast


def parked(name, deadline=10.0, **more):
    return Parked(lambda: name, lambda: None, deadline, Future(), **more)


class Asked:
    """Answers those whose names are in `given`, one thing each."""

    def __init__(self, things=0):
        self.things = things
        self.order = []

    def ask(self, one):
        self.order.append(one.answer())
        if self.things:
            self.things -= 1
            return True
        return False


def test_who_waits_is_not_asked_while_nothing_may_have_come():
    parking, asked = Parking(), Asked()
    parking.park("task", parked("a"))
    parking.settle("task", lambda: False, asked.ask)  # new: asked once
    for _ in range(5):
        parking.settle("task", lambda: False, asked.ask)

    assert ["a"] == asked.order


def test_who_came_first_is_answered_first_and_nobody_beyond_what_came_is_asked():
    parking, first, then = Parking(), Asked(), Asked(2)
    for name in "abcd":
        parking.park("task", parked(name))
    parking.settle("task", lambda: True, first.ask)
    parking.park("task", parked("e"))
    parking.settle("task", lambda: then.things > 0, then.ask)

    assert ["a", "b", "e"] == then.order  # `e` is new


def test_a_request_that_came_twice_is_answered_twice_whatever_is_left():
    parking, first, then = Parking(), Asked(), Asked(3)
    for name in "abac":
        parking.park("task", parked(name, request=name))
    parking.settle("task", lambda: True, first.ask)
    one_thing = iter([True, False, False])
    parking.settle("task", lambda: next(one_thing), then.ask)

    assert ["a", "a"] == then.order


def test_topics_do_not_touch_each_other():
    parking, asked = Parking(), Asked(1)
    parking.park("task", parked("a"))
    parking.settle("servers", lambda: True, asked.ask)

    assert [] == asked.order


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30), st.integers(0, 25))
def test_exactly_those_whose_time_is_up_and_who_have_no_answer_are_overdue(waiting, now):
    parking = Parking()
    for number, (deadline, _) in enumerate(waiting):
        parking.park("task", parked(number, float(deadline)))
    parking.settle("task", lambda: True, lambda one: waiting[one.answer()][1])

    left = sorted((d, n) for n, (d, answered) in enumerate(waiting) if not answered)
    assert parking.next_deadline() == (left[0][0] if left else None)
    over = [one.answer() for one in parking.overdue(float(now))]
    assert over == [n for d, n in left if d <= now]
    assert sorted(one.answer() for one in parking.take_all()) == sorted(
        n for d, n in left if d > now
    )
