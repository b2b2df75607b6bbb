"""What was taught is counted over all workers that there have been, each once."""

from edl.master.lessons import Lessons


def test_workers_that_come_and_go_are_added_up():
    it = Lessons()
    assert not it.heard("a", {"taught": 10.0, "loss": 1.0})
    assert it.heard("a", {"taught": 12.0, "untaught": 4.0})
    assert not it.heard("b", {"taught": 5.0})
    assert not it.heard("a", {"taught": 11.0, "untaught": 4.0})  # a beat that was overtaken
    assert not it.heard("c", {})

    assert it.totals == {"records": 17, "cached": 0, "untaught": 4}


def test_a_successor_goes_on_counting():
    it, successor = Lessons(), Lessons()
    it.heard("a", {"taught": 10.0, "untaught": 3.0})
    successor.remember(it.of)
    successor.heard("a", {"taught": 10.0, "untaught": 5.0})

    assert successor.totals == {"records": 10, "cached": 0, "untaught": 5}
