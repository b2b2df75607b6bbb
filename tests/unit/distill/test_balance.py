"""Who is asked: the sooner of two, none that is full, none that lied three times."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from edl.distill.balance import MOST_STRIKES, Balance


def balance(*names):
    made = Balance(random.Random(5))
    made.update(names)
    return made


def test_two_teachers_are_asked_in_turn():
    it = balance("a", "b")
    for _ in range(9):
        it.sent(it.choose(0.0, 10), 10)

    loads = [each.outstanding for each in it.teachers.values()]
    assert max(loads) - min(loads) <= 10  # one request


@given(st.integers(2, 40), st.integers(0, 99))
def test_two_choices_leave_no_teacher_far_behind(teachers, seed):
    it = Balance(random.Random(seed))
    it.update([f"t{n}" for n in range(teachers)])
    for _ in range(20 * teachers):
        it.sent(it.choose(0.0, 1), 1)

    assert max(each.outstanding for each in it.teachers.values()) <= 20 + 6  # log log n


def test_a_slow_teacher_gets_what_it_can_do():
    """A tenth of the others' rows a second: a tenth of their rows."""
    it = balance("fast", "slow")
    rates = {"fast": 1000.0, "slow": 100.0}
    busy = dict.fromkeys(rates, 0.0)
    done = Counter()
    under_way = []
    now = 0.0
    for _ in range(2000):
        while len(under_way) < 8:
            name = it.choose(now, 10)
            it.sent(name, 10)
            busy[name] = max(now, busy[name]) + 10 / rates[name]
            under_way.append((busy[name], name, now))
        under_way.sort()
        now, name, since = under_way.pop(0)
        it.answered(name, 10, now - since, 0, rates[name])
        done[name] += 10

    assert done["fast"] / now >= 0.95 * rates["fast"]


def test_who_is_full_is_left_alone_for_a_growing_while():
    it = balance("a", "b")
    it.sent("a", 4)
    it.missed("a", 4, now=1.0)
    assert {it.choose(1.0, 1) for _ in range(20)} == {"b"}
    it.sent("b", 4)
    it.missed("b", 4, now=1.0)
    assert it.choose(1.0, 1) is None
    assert it.choose(it.next_free(), 1) is not None
    first = it.next_free() - 1.0
    it.sent("a", 4)
    it.missed("a", 4, now=1.0)
    assert it.teachers["a"].not_before - 1.0 == 2 * first


def test_who_answers_wrongly_is_asked_no_more_and_the_right_ones_forgive():
    it = balance("a", "b")
    it.wrong("a", 0)
    it.answered("a", 0, 0.1, 0, 1.0)
    assert [it.wrong("a", 0) for _ in range(MOST_STRIKES)] == [False, False, True]
    assert it.there == ["b"]
    assert {it.choose(0.0, 1) for _ in range(20)} == {"b"}
    it.update(["a", "b"])
    assert it.there == ["b"]


def test_an_answer_is_late_after_twice_what_nearly_all_take():
    it = balance("a")
    assert it.late_after() is None
    for n in range(100):
        it.answered("a", 0, n / 100, 0, 1.0)
    assert it.late_after() == 2 * 0.94


def test_who_was_just_asked_is_not_asked_the_same_again():
    it = balance("a", "b")
    assert it.choose(0.0, 1, but=["a"]) == "b"
    assert it.choose(0.0, 1, but=["a", "b"]) is None
