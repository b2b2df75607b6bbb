"""A student whose teachers do not answer: how long it waits, and when it does so again.

A test's docstring says what was broken once to see it fail.
"""

import random
import threading

import pytest
import torch
from tools.waiting import until

from edl.common.errors import Unreachable
from edl.distill import Rules
from edl.distill.link import Answer, Busy
from edl.distill.teachers import Teachers, Untaught

SHORT_S, FAR_S = 0.2, 60.0
X = torch.arange(4.0)[:, None]


class Hung:
    """A teacher that takes questions and answers none, until it is let."""

    def __init__(self, error=Unreachable):
        self.error, self.well = error, threading.Event()

    def teach(self, parts, _rows, timeout_s, _whole):
        if self.error is Busy and not self.well.wait(0.01):
            raise Busy("4 rows wait there")
        if not self.well.wait(timeout_s):
            raise Unreachable("the time for an answer was over")
        return Answer(list(parts), 0, 1)

    def close(self):
        self.well.set()


class Student:
    def __init__(self, links, without="hard_labels", **rules):
        self.links, self.notes, self.asked = links, [], set()
        self.rules = {"without": without, "timeout_s": 0.05, **rules}
        self.teachers = Teachers(
            self._link, self._rules(SHORT_S), rng=random.Random(1), on_note=self.notes.append
        )

    def _rules(self, wait_s):
        return Rules(wait_s, **self.rules)

    def _link(self, address):
        self.asked.add(address)
        return self.links[address]

    def waits(self, wait_s):
        """From now on a wait is so long."""
        self.teachers._rules = self._rules(wait_s)

    def learn(self):
        return self.teachers.answer(self.teachers.ask(X), 4)


@pytest.fixture
def student():
    made = []

    def make(links, *arguments, **rules):
        made.append(Student(links, *arguments, **rules))
        return made[-1]

    yield make
    for each in made:
        each.teachers.close()


@pytest.mark.parametrize("error", [Unreachable, Busy])
def test_a_hung_teacher_costs_one_wait_with_hard_labels(student, error):
    """Broken once: it costs --teacher_wait_s at each minibatch, to the end of the job."""
    hung = Hung(error)
    it = student({"h:1": hung})
    it.teachers.update(["h:1"])
    assert it.learn() is None
    it.waits(FAR_S)
    for _ in range(20):
        assert it.learn() is None

    assert it.teachers.waited_s < FAR_S / 2
    assert 84 == it.teachers.untaught
    (note,) = it.notes
    assert note.startswith("no teacher has answered for 0.2 s (--teacher_wait_s): training goes on")

    question = it.teachers.ask(X)
    hung.well.set()
    until(lambda: len(it.notes) == 2)
    assert "the teacher at h:1 answers: it is waited for again" == it.notes[1]
    assert torch.equal(X, it.teachers.answer(question, 4))
    assert torch.equal(X, it.learn())


def test_a_teacher_that_has_never_come_costs_one_wait_with_hard_labels(student):
    it = student({"h:1": Hung()})
    assert it.learn() is None
    it.waits(FAR_S)
    assert it.learn() is None
    assert ["no teacher has come for 0.2 s (--teacher_wait_s)"] == [
        note.partition(":")[0] for note in it.notes if "has come" in note
    ]

    it.links["h:1"].well.set()
    question = it.teachers.ask(X)
    it.teachers.update(["h:1"])
    until(lambda: question.is_over)
    assert torch.equal(X, it.learn())


def test_who_is_to_wait_does_so_each_time(student):
    it = student({"h:1": Hung()}, "wait")
    it.teachers.update(["h:1"])
    for _ in range(2):
        with pytest.raises(Untaught, match=r"no teacher has answered for 0\.2 s"):
            it.learn()

    assert it.teachers.waited_s >= 2 * SHORT_S * 0.99


def test_of_many_so_many_are_asked_as_the_rules_say_and_others_in_their_place(student):
    """Broken once: (1) all are asked; (2) a hung one keeps its place."""
    links = {f"h:{n}": Hung() for n in range(5)}
    it = student(links, "wait", most=2)
    it.waits(FAR_S)
    it.teachers.update(list(links))
    chosen = it.teachers.there
    assert 2 == len(chosen)
    for name in {*links} - {*chosen}:
        links[name].well.set()

    assert torch.equal(X, it.learn())
    assert 2 == len(it.teachers.there)
    assert not {*it.teachers.there} <= {*chosen}

    it.teachers.update(chosen[:1])
    assert chosen[:1] == it.teachers.there
