"""The queue of jobs to look at: nothing twice at once, nothing lost, pauses that grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.k8s.keys import Keys

pytestmark = pytest.mark.fast


def test_what_is_put_in_twice_is_looked_at_once():
    keys: Keys[str] = Keys()
    keys.add("a", 1.0)
    keys.add("a", 0.0)

    assert [keys.take(0.0), keys.take(9.0)] == ["a", None]


def test_what_changes_while_it_is_looked_at_is_looked_at_again_afterwards():
    """Broken once: a key is forgotten that is put in while it is busy."""
    keys: Keys[str] = Keys()
    keys.add("a", 0.0)
    keys.take(0.0)
    keys.add("a", 0.0)

    during = keys.take(1.0)
    keys.done("a")

    assert (during, keys.take(1.0)) == (None, "a")


def test_pauses_after_failures_grow_and_a_success_ends_them():
    keys: Keys[str] = Keys()
    pauses = []
    for _ in range(10):
        keys.add("a", 0.0)
        keys.take(0.0)
        pauses.append(keys.failed("a", 0.0))
    keys.take(100.0)
    keys.done("a")
    keys.add("a", 0.0)
    keys.take(0.0)

    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert keys.failed("a", 0.0) == 0.5


def test_what_failed_waits_unless_something_changes():
    keys: Keys[str] = Keys()
    keys.add("a", 0.0)
    keys.take(0.0)
    keys.failed("a", 10.0)

    assert (keys.take(10.4), keys.wait_s(10.0)) == (None, 0.5)
    keys.add("a", 10.1)
    assert keys.take(10.4) == "a"


OPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "take", "done", "failed"]))
)


@given(OPS)
def test_whatever_happens_no_key_is_busy_twice_and_none_is_lost(ops):
    keys: Keys[str] = Keys()
    busy: set[str] = set()
    waiting: set[str] = set()
    for key, op in ops:
        if op == "add":
            keys.add(key, 0.0)
            waiting.add(key)
        elif op == "take":
            taken = keys.take(1e9)
            assert (taken is None) == (not waiting - busy)
            if taken is not None:
                assert taken not in busy
                busy.add(taken)
                waiting.discard(taken)
        elif key in busy:
            busy.discard(key)
            if op == "failed":
                keys.failed(key, 0.0)
                waiting.add(key)
            else:
                keys.done(key)

    assert len(keys) == len(waiting)
