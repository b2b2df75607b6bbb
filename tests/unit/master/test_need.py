"""The number of teachers by need: on a simulated fleet, and rule by rule.

A test's docstring says what was broken once to see it fail.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.teachers_need import Fleet, needed, play
from edl.master.need import LATE_AT_S, LOOKED_AT_S, SPARED_S, Look, Need, Taught

MOST = 16
SPEED = 100.0
STEADY_S = 600
QUICK = settings(max_examples=15, deadline=None)


def fleet(load, seed, most=MOST, speed=SPEED):
    return Fleet(load if callable(load) else lambda _: load, speed, most=most, rng=Random(seed))


def is_near(wanted, load):
    """Tell whether it is the need: one more for late answers, and the tenth of its slack more."""
    return needed(load, SPEED) - 1 <= wanted <= needed(1.1 * load, SPEED) + 1


@QUICK
@given(st.floats(0.3, MOST / 1.2), st.integers(0, 1 << 20))
def test_the_need_is_met_in_three_decisions_and_no_change_of_mind_follows(in_use, seed):
    """Broken once: (1) _in_use without `/ free`; (2) _is_away never; (3) no _SLACK."""
    load = in_use * SPEED
    played = play(fleet(load, seed), Need(1, MOST), 120 + STEADY_S, 1)

    assert len(played.choices) <= 3, played.choices
    assert is_near(played.wanted[120], load), played.choices
    # On the edge of the slack one fewer may do for 60 s in a row by chance, at last.
    assert played.wanted[120] - 1 <= played.wanted[-1] <= played.wanted[120], played.choices
    assert is_near(played.wanted[-1], load), played.choices
    assert sum(played.shares[120:]) / STEADY_S <= 0.02


@QUICK
@given(st.floats(1.0, MOST / 1.2), st.integers(0, 1 << 20))
def test_as_the_load_halves_so_do_the_teachers(in_use, seed):
    load = in_use * SPEED

    def halves(t):
        return load if t < 120 else load / 2

    played = play(fleet(halves, seed), Need(1, MOST), 120 + 240 + STEADY_S, 1)

    assert is_near(played.wanted[120 + 240], load / 2), played.choices
    assert is_near(played.wanted[-1], load / 2), played.choices
    assert sum(played.shares[360:]) / STEADY_S <= 0.02


@QUICK
@given(
    st.lists(st.floats(0.0, 30.0), min_size=1, max_size=6),
    st.tuples(st.integers(0, 3), st.integers(0, 6)),
    st.integers(0, 1 << 20),
)
def test_bounds_are_kept_whatever_the_load(loads, bounds, seed):
    least, more = bounds

    def load(t):
        return max(1e-3, loads[int(t // 100) % len(loads)]) * SPEED

    played = play(fleet(load, seed), Need(least, least + more), 100 * len(loads), least)

    assert all(least <= number <= least + more for number in played.wanted)


def test_a_slow_student_has_one_teacher():
    played = play(fleet(10.0, 0), Need(1, 4), 300, 1)

    assert ([], {1}) == (played.choices, set(played.wanted))


def test_from_none_one_comes_at_once_and_those_that_are_needed_then():
    played = play(fleet(300.0, 0), Need(0, 8), 120, 0)

    (first, choice), *_ = played.choices
    assert (1, "a worker waits, and no teacher is there") == (choice.number, choice.why)
    assert first <= 2
    assert abs(played.wanted[-1] - needed(300.0, SPEED)) <= 1


def test_nothing_is_changed_near_the_end():
    """Broken once: _pays is always true."""
    load = 400.0
    long = play(fleet(load, 0), Need(1, 8), 300, 1, records=int(load * 100))
    short = play(fleet(load, 0), Need(1, 8), 300, 1, records=int(load * 4))

    assert long.choices
    assert [] == short.choices


# -- rule by rule


class Job:
    """A job that a test says what to see of, second by second."""

    def __init__(self, least=1, most=8, wanted=1, **options):
        self.need, self.wanted, self.now = Need(least, most, **options), wanted, 0.0

    def see(self, seconds, *, rate=100.0, share=0.0, there=None, busy=0.5, left=None):
        """Look for so many seconds, or until there is a choice, which is returned."""
        there = self.wanted if there is None else there
        for _ in range(seconds):
            self.now += 1.0
            each = Taught(SPEED * busy, busy, 0.0)
            choice = self.need.look(Look(self.now, rate, share, [each] * there, self.wanted, left))
            if choice is not None:
                self.wanted = choice.number
                return choice
        return None


WAITS = {"rate": SPEED, "share": 0.5, "busy": 1.0}


def test_it_says_why():
    job = Job()

    assert (3, 1 + LOOKED_AT_S) == (job.see(60, **WAITS).number, job.now)
    job = Job()
    assert (
        "the workers wait 50% of the time; without waiting they use 200 records/s, and a teacher "
        "teaches 100"
    ) == job.see(60, **WAITS).why


def test_what_starts_is_on_its_way():
    job = Job()
    job.see(60, **WAITS)

    assert job.see(20, there=1, **WAITS) is None
    assert job.see(9, there=3, **WAITS) is None
    assert 20 == job.need.start_s  # as it took


def test_one_that_never_comes_is_not_waited_for_for_ever():
    job = Job(start_s=5.0)
    job.see(60, **WAITS)

    assert job.see(59, there=1, **WAITS) is None
    assert job.see(30, there=1, **WAITS).number > 3


def test_a_small_wait_brings_nobody():
    assert Job().see(300, share=0.02, busy=1.0) is None


def test_where_nothing_is_known_one_more_is_tried():
    choice = Job().see(60, rate=0.0, share=1.0, busy=0.0)

    assert (2, "nothing is known yet of what a teacher teaches") == (
        choice.number,
        choice.why.partition("; ")[2],
    )


def test_teachers_with_time_left_get_one_more_for_late_answers_and_keep_it():
    """Broken once: no _short."""
    job = Job(wanted=3)

    assert job.see(int(LATE_AT_S), rate=210.0, share=0.03, busy=0.7) is None
    assert 4 == job.see(2, rate=210.0, share=0.03, busy=0.7).number
    assert job.see(600, rate=210.0, busy=0.5) is None
    assert job.see(600, rate=210.0, share=0.03, busy=0.5) is None  # nor any more
    assert 2 == job.see(600, rate=120.0, busy=0.3).number


def test_fewer_only_after_a_minute_in_which_they_would_have_done():
    job = Job(wanted=6)
    easy = {"rate": 150.0, "busy": 0.25}

    assert job.see(int(SPARED_S) - 15, **easy) is None
    assert job.see(10, rate=450.0, busy=0.75) is None
    assert job.see(int(SPARED_S), **easy) is None
    assert 2 == job.see(20, **easy).number


def test_a_pause_of_the_master_begins_anew():
    job = Job(wanted=6)
    job.see(50, rate=150.0, busy=0.25)
    job.now += 20

    assert job.see(50, rate=150.0, busy=0.25) is None


@pytest.mark.parametrize(("least", "then"), [(0, 0), (2, 2)])
def test_where_nothing_is_asked_the_least_stay(least, then):
    job = Job(least=least, wanted=6)
    job.see(20)

    assert job.see(59, rate=0.0, busy=0.0) is None
    choice = job.see(3, rate=0.0, busy=0.0)
    assert (then, "nothing was asked for 60 s") == (choice.number, choice.why)
    assert job.see(600, rate=0.0, busy=0.0) is None


def test_none_are_there_only_where_nothing_is_asked():
    job = Job(least=0, wanted=2)

    assert 1 == job.see(600, rate=1.0, busy=0.005).number
    assert job.see(600, rate=1.0, busy=0.01) is None


def test_new_bounds_hold_at_once():
    job = Job(wanted=2)
    job.need.bound(4, 6)

    assert (4, "from 4 to 6 are allowed") == (job.see(1).number, "from 4 to 6 are allowed")


@pytest.mark.parametrize(
    ("left_s", "more"),
    [(14, False), (16, True)],  # half of what follows the start of 5 s must be above these 5 s
)
def test_more_come_only_where_the_waits_saved_are_longer_than_the_start(left_s, more):
    job = Job(start_s=5.0)

    assert more == (job.see(30, left=int(SPEED * left_s), **WAITS) is not None)


def test_who_waits_for_nobody_gets_one_even_at_the_end():
    assert 1 == Job(least=0, wanted=0).see(5, rate=0.0, share=1.0, left=1).number
