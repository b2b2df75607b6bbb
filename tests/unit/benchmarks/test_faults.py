"""The fate of the records, how long survivors stood still, and the table of both."""

import pytest

from benchmarks.faults.books import Books, Row, Stall, balance, stall, table, worst

pytestmark = pytest.mark.fast


def test_a_job_that_ended_as_done_has_lost_what_is_missing():
    assert Books(lost=2, repeated=3) == balance([1, 0, 2, 1, 3, 0])


def test_a_job_that_hangs_has_lost_only_what_it_went_on_from():
    assert Books(lost=1, repeated=0, untrained=2) == balance([1, 0, 0, 0], acknowledged=[0, 2])


def test_counts_that_are_sums_of_floats_are_whole():
    assert Books(lost=0, repeated=1) == balance([0.99999, 2.00001])


def test_the_stall_is_the_longest_gap_that_ends_after_the_kill():
    steps = [0.0, 5.0, 6.0, 8.5, 9.0]

    assert Stall(2.5) == stall(steps, since=7.0)


def test_a_survivor_that_never_goes_on_stalls_until_nobody_watches():
    assert Stall(13.0, over=False) == stall([0.0, 1.0, 6.0], since=7.0, until=20.0)


def test_a_last_step_after_the_kill_is_no_end_of_the_stall():
    assert Stall(12.0, over=False) == stall([0.0, 6.0, 8.0], since=7.0, until=20.0)


def test_a_survivor_that_was_done_before_the_kill_has_no_stall():
    assert stall([0.0, 1.0], since=7.0) is None


def test_the_worst_stall_is_one_that_is_not_over():
    endless = Stall(3.0, over=False)

    assert endless == worst([Stall(9.0), endless, None])


def test_a_row_tells_what_was_seen_and_a_dash_what_was_not():
    seen = Row("a", "kill", "a 1", "goes on", Books(1, 2, 3), Stall(4.0, over=False))
    not_run = Row("b", "kill", "-", "could not be run: no such thing")

    assert [
        "| a | kill | 1 | 2 | > 4.00 | goes on; 3 records not trained | a 1 |",
        "| b | kill | - | - | - | could not be run: no such thing | - |",
    ] == table([seen, not_run]).splitlines()[2:]


def test_a_bar_in_an_outcome_does_not_break_the_table():
    assert "| x / y |" in table([Row("a", "kill", "-", "x | y")])
