"""A round begins anew once where all its members are in one step for long, and no more for it."""

from edl.master.groups.stalls import Stalls

STEP, NEXT = (7, 0, 16), (7, 16, 32)


def test_all_members_in_one_step_are_a_stall():
    it = Stalls()
    assert not it.told(1, ["a", "b", "c"], "a", STEP)
    assert not it.told(1, ["a", "b", "c"], "b", STEP)
    assert it.told(1, ["a", "b", "c"], "c", STEP)


def test_one_that_is_elsewhere_is_waited_for():
    it = Stalls()
    it.told(1, ["a", "b"], "a", STEP)
    assert not it.told(1, ["a", "b"], "b", NEXT)
    assert it.told(1, ["a", "b"], "b", STEP)


def test_what_was_said_in_another_round_does_not_count():
    it = Stalls()
    it.told(1, ["a", "b"], "a", STEP)
    assert not it.told(2, ["a", "b"], "b", STEP)


def test_a_step_that_is_long_again_is_left_alone_and_the_next_one_is_not():
    it = Stalls()
    for who in "ab":
        it.told(1, ["a", "b"], who, STEP)
    assert not any(it.told(2, ["a", "b"], who, STEP) for who in "ab")
    assert [it.told(2, ["a", "b"], who, NEXT) for who in "ab"] == [False, True]
