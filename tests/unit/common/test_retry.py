"""Trying again: growing pauses, never beyond the deadline."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.retry import Backoff, retry

pytestmark = pytest.mark.fast

backoffs = st.builds(
    lambda first, more: Backoff(first, first + more), st.floats(0.01, 10), st.floats(0, 100)
)


class World:
    """A clock that only pauses and attempts move."""

    def __init__(self, takes_s: float = 0.0, succeeds_at: float = float("inf")) -> None:
        self.now, self.takes_s, self.succeeds_at = 0.0, takes_s, succeeds_at
        self.left: list[float] = []
        self.pauses: list[float] = []

    def attempt(self, left_s: float) -> str:
        self.left.append(left_s)
        self.now += self.takes_s
        if self.now < self.succeeds_at:
            raise OSError(len(self.left))
        return "done"

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return False


@given(backoffs, st.integers(1, 2000))
def test_pauses_grow_from_the_first_to_the_longest(backoff: Backoff, failures: int) -> None:
    pauses = [backoff.after(n) for n in range(1, failures + 1)]

    assert pauses[0] == backoff.first_s
    assert all(
        before <= after <= backoff.longest_s for before, after in pairwise([*pauses, pauses[-1]])
    )
    assert 0.0 == backoff.after(0)


@given(backoffs, st.floats(0, 60), st.floats(0, 3), st.floats(0.5, 1))
def test_no_pause_ends_after_the_deadline_and_the_last_error_is_raised(
    backoff: Backoff, patience_s: float, takes_s: float, part: float
) -> None:
    world = World(takes_s=takes_s)

    with pytest.raises(OSError, match=r"^\d+$") as raised:
        retry(
            world.attempt, backoff, patience_s,
            on=(OSError,), wait=world.wait, clock=lambda: world.now, jitter=lambda: part,
        )  # fmt: skip

    assert raised.value.args == (len(world.left),)
    assert len(world.left) == len(world.pauses) + 1
    assert world.now <= patience_s + takes_s
    assert patience_s == world.left[0]
    for number, pause in enumerate(world.pauses, 1):
        assert pause == backoff.after(number) * part


@given(backoffs, st.floats(0, 30))
def test_an_answer_ends_it(backoff: Backoff, succeeds_at: float) -> None:
    world = World(succeeds_at=succeeds_at)

    answer = retry(
        world.attempt, backoff, 1000.0, on=(OSError,), wait=world.wait, clock=lambda: world.now
    )

    assert "done" == answer
    assert world.now >= succeeds_at


def test_an_error_that_is_none_of_those_is_raised_at_once() -> None:
    world = World()

    with pytest.raises(OSError, match="1"):
        retry(world.attempt, Backoff(1, 2), 100.0, on=(KeyError,), wait=world.wait)

    assert [] == world.pauses


def test_nobody_who_waits_ends_it() -> None:
    world = World()

    with pytest.raises(OSError, match="1"):
        retry(world.attempt, Backoff(0.1, 1), 100.0, on=(OSError,), wait=lambda seconds: True)


def test_an_error_may_say_how_long_to_wait() -> None:
    class Later(Exception):
        after_s = 7.0

    world = World()

    def attempt(left_s: float) -> None:
        world.left.append(left_s)
        if len(world.left) < 3:
            raise Later

    retry(attempt, Backoff(0.1, 1), 100.0, on=(Later,), wait=world.wait, clock=lambda: world.now)

    assert [7.0, 7.0] == world.pauses
