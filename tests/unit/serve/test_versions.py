"""Versions of a model: no request sees half a swap, none is dropped, each is closed once."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from tools.turns import examples

from edl.serve.kserve.refused import Refused, Why
from edl.serve.versions import Versions


class Swaps(RuleBasedStateMachine):
    """Swaps, requests and ends in any order, beside a plain account of what must be so."""

    held = Bundle("held")

    def __init__(self):
        super().__init__()
        self.keep = 2
        self.versions = Versions("m", self.keep)
        self.made = 0
        self.kept = []  # (name, served), the newest last
        self.holds = {}  # served: requests under way
        self.closed = []
        self.ended = False

    @rule(name=st.sampled_from("abcd"))
    def swap(self, name):
        self.made += 1
        served = self.made
        self.closed += self.versions.install(name, served)
        if self.ended:
            assert served in self.closed
            return
        self.kept = [*((n, s) for n, s in self.kept if n != name), (name, served)][-self.keep :]

    @rule(target=held, name=st.sampled_from(["", "a", "b", "c", "d"]))
    def ask(self, name):
        expected = [s for n, s in self.kept if name in ("", n)]
        try:
            held = self.versions.hold(name)
        except Refused as error:
            why = error.why
        else:
            why = None
        if why is not None:
            assert not expected or self.ended
            assert why in (Why.AWAY, Why.UNKNOWN)
            return None
        assert expected[-1] == held.served
        assert held.served not in self.closed
        self.holds[held.served] = self.holds.get(held.served, 0) + 1
        return held

    @rule(held=consumes(held))
    def answer(self, held):
        if held is None:
            return
        assert held.served not in self.closed, "closed while a request was under way"
        self.holds[held.served] -= 1
        self.closed += self.versions.release(held)

    @rule()
    def end(self):
        self.closed += self.versions.end()
        self.ended, self.kept = True, []

    @invariant()
    def each_is_closed_once_when_nobody_holds_it(self):
        alive = {s for _, s in self.kept} | {s for s, n in self.holds.items() if n}
        assert sorted(set(range(1, self.made + 1)) - alive) == sorted(self.closed)

    @invariant()
    def the_kept_may_be_asked(self):
        assert [n for n, _ in self.kept] == self.versions.names


TestSwaps = Swaps.TestCase
TestSwaps.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_version_that_is_not_there_is_named_with_those_that_are():
    versions = Versions("m", keep=2)
    versions.install("7", "seven")

    with pytest.raises(Refused, match=r"no version '8': it has '7'"):
        versions.hold("8")


def test_a_failure_is_told_until_that_version_is_there():
    versions = Versions("m")
    versions.fail("7", "torn")
    told = dict(versions.failed)

    versions.install("7", "seven")

    assert ({"7": "torn"}, {}) == (told, versions.failed)


def test_a_release_without_a_hold_is_told():
    versions = Versions("m")
    versions.install("7", "seven")
    held = versions.hold()
    versions.release(held)

    with pytest.raises(ValueError, match="held by nobody"):
        versions.release(held)
