"""The rounds of an all-reduce group, as a machine of events."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.master.groups.rounds import Peer, Rounds

LAST_CALL_S, PATIENCE_S = 10.0, 30.0


def rounds():
    return Rounds(last_call_s=LAST_CALL_S, patience_s=PATIENCE_S)


def peer(name, version=-1):
    return Peer(name, int(name[1:]), f"host:{name}", version)


def formed_of(*names):
    """Return a round of these names, and what it was formed as."""
    group = rounds()
    for name in names:
        group.join(peer(name), 0, False, 0.0)
    return group, group.form()


def names(formed):
    return [member.incarnation for member in formed.members]


def test_the_first_round_waits_for_all_who_are_wanted():
    group = rounds()
    group.join(peer("w0"), 0, False, 5.0)

    assert not group.ready(2, 5.0)
    group.join(peer("w1"), 0, False, 6.0)
    assert group.ready(2, 6.0)


def test_the_first_round_waits_no_longer_than_the_last_call():
    group = rounds()
    group.join(peer("w0"), 0, False, 5.0)

    assert [group.ready(2, now) for now in (14.9, 15.0)] == [False, True]


def test_all_begin_afresh_where_nobody_has_a_state():
    _, formed = formed_of("w1", "w0")

    assert (formed.number, names(formed), formed.afresh) == (1, ["w0", "w1"], True)


def test_a_lost_member_breaks_the_round_and_the_others_go_on_at_once():
    group, _ = formed_of("w0", "w1", "w2")
    group.lost("w0", 1.0)
    assert (group.running, group.broken) == (False, True)

    group.join(peer("w1", 7), 1, True, 1.0)
    assert not group.ready(3, 1.0)  # w2 is still in the old one
    group.join(peer("w2", 7), 1, True, 1.0)

    assert group.ready(3, 1.0)
    formed = group.form()
    assert (names(formed), formed.afresh, formed.top.version) == (["w1", "w2"], False, 7)


def test_who_applied_a_step_that_another_did_not_comes_first():
    """Two members of a round are at most one step apart, and the furthest counts."""
    group, _ = formed_of("w0", "w1", "w2")
    group.lost("w2", 1.0)
    group.join(peer("w0", 7), 1, True, 1.0)
    group.join(peer("w1", 8), 1, True, 1.0)

    formed = group.form()

    assert [(m.incarnation, m.version) for m in formed.members] == [("w1", 8), ("w0", 7)]


def test_a_newcomer_is_let_in_when_all_have_stopped():
    group, _ = formed_of("w0", "w1")
    group.join(peer("w2"), 0, False, 1.0)
    assert group.newcomers
    assert group.running

    for name in ("w0", "w1"):
        assert not group.ready(3, 2.0)
        group.join(peer(name, 5), 1, False, 2.0)

    assert group.ready(3, 2.0)
    assert not group.broken
    assert names(group.form()) == ["w0", "w1", "w2"]


def test_a_repeat_after_a_lost_reply_is_in_the_round_already():
    group, _ = formed_of("w0", "w1")

    group.join(peer("w0"), 0, False, 1.0)

    assert group.running
    assert not group.newcomers


def test_newcomers_alone_begin_afresh():
    group, _ = formed_of("w0")
    group.join(peer("w1"), 0, False, 1.0)
    group.lost("w0", 1.0)

    assert group.ready(1, 1.0)
    assert group.form().afresh


def test_a_latecomer_that_never_got_the_state_does_not_count_as_having_it():
    """Broken once: its incarnation was in the last round, so that went on from nothing."""
    group, _ = formed_of("w0")
    group.join(peer("w1"), 0, False, 1.0)
    group.join(peer("w0", 9), 1, False, 1.0)
    group.form()
    group.lost("w0", 2.0)
    group.join(peer("w1", -1), 2, True, 2.0)

    assert group.ready(1, 20.0)
    assert group.form().afresh


def test_the_last_one_that_leaves_is_asked_for_the_state():
    """Broken once: two that leave at the same time each counted on the other."""
    group, _ = formed_of("w0", "w1")

    assert not group.leave("w0", 1.0)
    assert not group.broken
    assert group.leave("w1", 1.0)
    assert not group.leave("w1", 1.0)


def test_one_that_leaves_others_behind_is_not():
    group, _ = formed_of("w0", "w1")
    group.join(peer("w1", 4), 1, False, 1.0)

    assert not group.leave("w0", 1.0)
    assert group.ready(1, 1.0)
    assert not group.form().afresh


def test_who_does_not_come_back_is_named_once():
    group, _ = formed_of("w0", "w1")
    group.break_(5.0)
    group.join(peer("w0", 3), 1, True, 5.0)

    assert group.overdue(5.0 + PATIENCE_S) == []
    assert [m.incarnation for m in group.overdue(5.1 + PATIENCE_S)] == ["w1"]
    assert group.overdue(6.0 + PATIENCE_S) == []


@given(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
def test_ranks_follow_the_indexes_of_equals(order):
    _, formed = formed_of(*(f"w{ord(letter)}" for letter in order))

    assert [m.index for m in formed.members] == sorted(m.index for m in formed.members)


class Storm(RuleBasedStateMachine):
    """Members that train, die, come and go, each with the state that the rounds let it have.

    `steps`: of each that has a state. The step happens on some members first: all the others
    may die, or lag by that one.
    """

    @initialize()
    def begin(self):
        self.rounds = rounds()
        self.now = 0.0
        self.fresh = 0
        self.steps = {}  # by incarnation: its version
        self.inside = {}  # by incarnation: the round that it is in
        self.waiting = {}  # by incarnation: the round it was in
        self.most = -1

    def tick(self):
        self.now += 1.0

    @rule()
    def newcomer(self):
        name = f"w{self.fresh}"
        self.fresh += 1
        self.steps[name] = -1
        self.waiting[name] = 0
        self.rounds.join(peer(name), 0, False, self.now)

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def death(self, data):
        name = data.draw(st.sampled_from(sorted(self.steps)))
        self.tick()
        del self.steps[name]
        self.inside.pop(name, None)
        self.waiting.pop(name, None)
        self.rounds.lost(name, self.now)

    @precondition(lambda self: self.inside and self.rounds.running)
    @rule(data=st.data())
    def step(self, data):
        """Step: all have computed; some apply it before something happens to the others."""
        quick = data.draw(st.sets(st.sampled_from(sorted(self.inside)), min_size=1))
        base = max(self.steps[name] for name in self.inside)
        behind = {n for n in self.inside if self.steps[n] == base - 1}
        if behind:
            for name in behind:  # none steps further before all have this one
                self.steps[name] = base
            return
        for name in quick:
            if self.steps[name] == base:
                self.steps[name] += 1

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), broken=st.booleans())
    def comes_back(self, data, broken):
        over = not self.rounds.running
        name = data.draw(st.sampled_from(sorted(self.inside)))
        if not (over or broken or self.rounds.newcomers):
            return
        self.tick()
        self.waiting[name] = self.inside.pop(name)
        self.rounds.join(peer(name, self.steps[name]), self.waiting[name], broken, self.now)

    @precondition(lambda self: self.waiting)
    @rule(wanted=st.integers(1, 4))
    def form(self, wanted):
        self.now += LAST_CALL_S
        if not self.rounds.ready(wanted, self.now):
            return
        had = {n: v for n, v in self.steps.items() if v >= 0}
        formed = self.rounds.form()

        assert sorted(names(formed)) == sorted(self.waiting)
        assert self.inside == {}  # nobody is left behind in the old one
        newest = max(had.values(), default=-1)
        assert formed.afresh == (newest < 0)
        if formed.afresh:
            self.steps.update(dict.fromkeys(self.waiting, 0))
        else:
            assert formed.top.version == newest
            self.steps.update(dict.fromkeys(self.waiting, newest))  # healed
        self.inside = dict.fromkeys(self.waiting, formed.number)
        self.waiting.clear()

    @invariant()
    def rounds_rise(self):
        assert self.rounds.number >= getattr(self, "seen", 0)
        self.seen = self.rounds.number


TestStorm = Storm.TestCase
