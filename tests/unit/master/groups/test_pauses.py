"""What it costs a group to come to another number of members: the pauses, and no losses."""

from edl.master.groups.pauses import Pauses


def begun(members):
    pauses = Pauses()
    pauses.formed(0.0, members, in_order=True, all_train=True)
    assert pauses.trains(5.0) is None  # the first round comes from nothing
    return pauses


def test_a_newcomer_costs_the_round_in_which_it_comes_and_the_one_in_which_it_counts():
    pauses = begun(2)

    pauses.formed(10.0, 3, in_order=True, all_train=False)
    assert pauses.trains(10.5) is None
    pauses.formed(20.0, 3, in_order=True, all_train=True)

    assert pauses.trains(20.25) == 0.75
    assert pauses.trains(21.0) is None  # all other members ask too


def test_one_who_leaves_costs_one_pause():
    pauses = begun(3)
    pauses.formed(10.0, 2, in_order=True, all_train=True)

    assert pauses.trains(10.5) == 0.5


def test_a_round_of_as_many_is_no_change():
    pauses = begun(2)
    pauses.formed(10.0, 2, in_order=True, all_train=True)

    assert pauses.trains(10.5) is None


def test_a_loss_is_no_change_nor_is_one_that_a_loss_has_met():
    pauses = begun(3)
    pauses.formed(10.0, 2, in_order=False, all_train=True)
    assert pauses.trains(10.5) is None

    pauses.formed(20.0, 3, in_order=True, all_train=False)
    assert pauses.trains(20.5) is None
    pauses.formed(30.0, 2, in_order=False, all_train=True)
    assert pauses.trains(30.5) is None
    pauses.formed(40.0, 1, in_order=True, all_train=True)
    assert pauses.trains(41.0) == 1.0  # and what was lost before is not in it
