"""The pauses around a kill, by the journals of a group's members."""

import pytest

from benchmarks.faults.pauses import Kill, seen, table

pytestmark = pytest.mark.fast

KILLED = 10.0  # after the step 100


def member(pid, rank, times, first_step, up=None, counts=True):
    lines = [{"event": "up", "at": times[0] if up is None else up, "pid": pid, "rank": rank}]
    for number, at in enumerate(times):
        lines.append({"event": "forward", "at": at - 0.05})
        lines.append({"event": "step", "at": at, "step": first_step + number, "counts": counts})
    return lines


def every(period, start, end):
    return [start + period * n for n in range(round((end - start) / period) + 1)]


def going_on(pause):
    """Return steps of 0.1 s up to the kill, and from then on after a pause."""
    return every(0.1, 5.0, 10.0), every(0.1, 10.0 + pause, 20.0)


def journals(pause=0.6, again=0):
    before, after = going_on(pause)
    survivor = member(1, 1, before, 50, up=0.0)
    survivor += member(1, 1, after, 101 - again)[1:]
    victim = member(2, 0, before, 50, up=0.0)
    return {1: survivor, 2: victim}


def test_the_stall_is_the_survivors_pause_less_an_ordinary_step():
    found = seen(KILLED, 2, journals(pause=0.6), until=20.0)

    assert (pytest.approx(0.5), pytest.approx(0.1), 0, 0) == (
        found.stall,
        found.step,
        found.again,
        found.restarted,
    )


def test_the_pause_as_the_replacement_comes_is_another_one():
    lines = journals(pause=0.6)
    late = [line for line in lines[1] if not 12.05 < line["at"] < 12.35]
    replacement = member(3, 0, every(0.1, 12.5, 20.0), 120, up=11.0)

    found = seen(KILLED, 2, {**lines, 1: late, 3: replacement}, until=20.0)

    assert pytest.approx(0.5) == found.stall
    assert pytest.approx(0.3, abs=0.01) == found.coming
    assert pytest.approx(2.5) == found.replaced


def test_a_replacement_that_only_follows_has_no_part_yet():
    following = member(3, 0, every(0.1, 11.0, 12.0), 105, counts=False)

    found = seen(KILLED, 2, {**journals(), 3: following}, until=20.0)

    assert found.replaced is None


def test_a_step_that_a_survivor_does_again_is_counted():
    assert seen(KILLED, 2, journals(again=1), until=20.0).again == 1


def test_where_all_are_started_again_the_stall_is_the_jobs():
    before, _ = going_on(0.0)
    old = {1: member(1, 1, before, 50, up=0.0), 2: member(2, 0, before, 50, up=0.0)}
    new = {3: member(3, 0, every(0.1, 15.0, 20.0), 81), 4: member(4, 1, every(0.1, 15.0, 20.0), 81)}

    found = seen(KILLED, 2, old | new, until=20.0)

    assert (pytest.approx(4.9), 20, 1) == (found.stall, found.again, found.restarted)
    assert pytest.approx(7.0) == found.replaced  # the first step that nobody had done


def test_nobody_goes_on_while_watched():
    before, _ = going_on(0.0)
    old = {1: member(1, 1, before, 50, up=0.0), 2: member(2, 0, before, 50, up=0.0)}
    later = {3: member(3, 0, every(0.1, 45.0, 50.0), 81)}

    found = seen(KILLED, 2, old | later, until=40.0)

    assert (pytest.approx(29.9), False, 0) == (found.stall, found.over, found.restarted)


def test_the_table_has_a_row_for_each_kind():
    kinds = [Kill("ours", 2, "outside", victim, KILLED) for victim in (0, 1, 0)]
    found = seen(KILLED, 2, journals(), until=20.0)

    lines = table([(kind, found) for kind in kinds]).splitlines()

    assert ["another | 1", "rank 0 | 2"] == [" | ".join(x.split(" | ")[3:5]) for x in lines[2:]]
