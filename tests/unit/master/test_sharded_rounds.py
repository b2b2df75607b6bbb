"""The rounds of a group whose state is held in parts: with any one death the state lives on."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tools.turns import examples

from edl.master.groups.rounds import Farewell, Peer, Rounds


def rounds():
    return Rounds(last_call_s=10.0, patience_s=30.0, sharded=True)


def peer(name, version=-1, parts=(), pending=False):
    about = {0: version}  # a ledger that tells whose it is
    return Peer(name, int(name[1:]), f"host:{name}", version, about, frozenset(parts), pending)


def parts_of(world, rank):
    """Return a member's own part and its mirror."""
    return {(world, rank), (world, (rank - 1) % world)}


def formed_of(*names):
    group = rounds()
    for name in names:
        group.join(peer(name), 0, False, 0.0)
    return group, group.form()


def test_a_death_leaves_all_parts():
    group, _ = formed_of("w0", "w1", "w2")
    group.lost("w0", 1.0)
    for rank in (1, 2):
        group.join(peer(f"w{rank}", 7, parts_of(3, rank)), 1, True, 1.0)

    assert group.ready(3, 1.0)
    formed = group.form()
    assert (formed.afresh, formed.version, group.wanted) == (False, 7, (7, 3))


def test_two_neighbours_that_die_leave_a_hole():
    group, _ = formed_of("w0", "w1", "w2")
    for name in ("w0", "w1"):
        group.lost(name, 1.0)
    group.join(peer("w2", 7, parts_of(3, 2)), 1, True, 1.0)

    assert not group.ready(3, 1.0)
    assert group.ready(3, 12.0)
    assert group.form().afresh


def test_a_step_that_one_has_made_all_make():
    """w0 passed the vote and the others did not; without w0 they do not know that it was passed."""
    group, _ = formed_of("w0", "w1", "w2")
    group.lost("w2", 1.0)
    group.join(peer("w0", 8, parts_of(3, 0)), 1, True, 1.0)
    group.join(peer("w1", 7, parts_of(3, 1), pending=True), 1, True, 1.0)

    formed = group.form()

    assert (formed.version, formed.applied) == (8, {0: 8})
    assert [8, 8] == [member.version for member in formed.members]


def test_a_step_that_nobody_is_known_to_have_made_is_dropped():
    group, _ = formed_of("w0", "w1")
    group.lost("w0", 1.0)
    group.join(peer("w1", 7, parts_of(2, 1), pending=True), 1, True, 1.0)

    assert group.form().version == 7


def test_who_leaves_stays_until_the_others_have_its_parts():
    group, _ = formed_of("w0", "w1", "w2")
    leaver = peer("w2", 5, parts_of(3, 2))
    assert group.farewell(leaver, 1.0) is Farewell.STAY
    other = peer("w1", 5, parts_of(3, 1))
    assert group.farewell(other, 1.0) is Farewell.STAY
    group.join(peer("w0", 5, parts_of(3, 0)), 1, False, 1.0)

    formed = group.form()

    assert (formed.afresh, group.wanted) == (False, (5, 3))
    assert [leaver, other] == list(group.givers)
    assert group.farewell(leaver, 2.0) is Farewell.STAY
    group.settle()
    assert [Farewell.GO] * 2 == [group.farewell(each, 2.0) for each in (leaver, other)]


def test_where_all_leave_one_saves_the_state():
    group, _ = formed_of("w0", "w1")
    leavers = [peer(f"w{rank}", 5, parts_of(2, rank)) for rank in (0, 1)]
    assert group.farewell(leavers[1], 1.0) is Farewell.STAY  # the other one may train on

    assert group.farewell(leavers[0], 1.0) is Farewell.SAVE
    assert group.farewell(leavers[1], 1.0) is Farewell.STAY
    group.lost("w0", 2.0)
    assert group.farewell(leavers[1], 2.0) is Farewell.SAVE


@dataclass
class Member:
    """A member of the group.

    `stage`: waiting, told (of a round), assembled, in (past the barrier), leaving.
    """

    version: int = -1
    parts: set = field(default_factory=set)
    pending: bool = False
    stage: str = "waiting"
    round: int = 0
    rank: int = 0


class Storm(RuleBasedStateMachine):
    """Members that put their parts together, step, vote, come and go; death is allowed wherever the
    one before is made good: the round's members have all got their parts since."""

    @initialize(count=st.integers(1, 5))
    def begin(self, count):
        self.rounds = rounds()
        self.now, self.fresh = 0.0, 0
        self.members = {}
        self.started, self.hurt, self.held_world = False, False, 0
        self.plan = None  # version and parts that the newest round began with
        self.votes = {}  # by round and version: all had what the step needs
        self.sizes = {}
        for _ in range(count):
            self.newcomer()

    def told(self, name):
        m = self.members[name]
        return peer(name, m.version, m.parts, m.pending)

    def named(self, *stages):
        return sorted(n for n, m in self.members.items() if m.stage in stages)

    def pick(self, data, names):
        return data.draw(st.sampled_from(names))

    def meet(self, m, version):
        if m.pending and m.version + 1 == version:
            m.version += 1
        elif m.version != version:
            m.version, m.parts = -1, set()
        m.pending = False

    @precondition(lambda self: len(self.members) < 6)
    @rule()
    def newcomer(self):
        name = f"w{self.fresh}"
        self.fresh += 1
        self.members[name] = Member()
        self.rounds.join(self.told(name), 0, False, self.now)

    @rule(wanted=st.integers(1, 4))
    def form(self, wanted):
        self.form_of(wanted)

    def form_of(self, wanted):
        self.now += 10.0
        if not self.rounds.ready(wanted, self.now):
            return
        newest = max((m.version for m in self.members.values() if m.parts), default=-1)
        formed = self.rounds.form()

        assert formed.afresh == (not self.started), "the state is lost"
        assert sorted(m.incarnation for m in formed.members) == self.named("waiting")
        if self.started:
            assert (formed.version, formed.applied) == (newest, {0: newest})
        self.plan = self.rounds.wanted
        self.sizes[formed.number] = len(formed.members)
        for rank, each in enumerate(formed.members):
            m = self.members[each.incarnation]
            m.stage, m.round, m.rank = "told", formed.number, rank
            if formed.afresh:
                m.version, m.pending, m.parts = 0, False, parts_of(len(formed.members), rank)
                m.stage = "assembled"
        self.started = True

    @precondition(lambda self: self.named("told") and self.rounds.running)
    @rule(data=st.data())
    def assemble(self, data):
        self.take_parts(self.pick(data, self.named("told")))

    def take_parts(self, name):
        m = self.members[name]
        version, world = self.plan
        sources = [*self.rounds.members, *self.rounds.givers]
        for rank in range(world):
            having = [p.incarnation for p in sources if (world, rank) in p.parts]
            there = [self.members[n] for n in having if n in self.members]
            assert any((world, rank) in s.parts for s in there), "nobody hands it out"
        self.meet(m, version)
        m.version = version
        m.parts |= parts_of(self.sizes[m.round], m.rank)
        m.stage = "assembled"

    def of_round(self):
        return [self.members.get(p.incarnation) for p in self.rounds.members]

    @precondition(lambda self: self.named("assembled") and self.rounds.running)
    @rule(data=st.data())
    def pass_barrier(self, data):
        self.pass_barrier_of(self.pick(data, self.named("assembled")))

    def pass_barrier_of(self, name):
        if any(m is None or m.stage not in ("assembled", "in") for m in self.of_round()):
            return
        m = self.members[name]
        m.stage, m.parts = "in", parts_of(self.sizes[m.round], m.rank)
        self.rounds.settle()
        self.hurt, self.held_world = False, self.sizes[m.round]

    @precondition(lambda self: self.named("told") and self.rounds.running)
    @rule()
    def all_begin(self):
        self.all_begin_of()

    def all_begin_of(self):
        for name in self.named("told"):
            self.take_parts(name)
        for name in self.named("assembled"):
            self.pass_barrier_of(name)

    @precondition(lambda self: self.named("in") and self.rounds.running)
    @rule(data=st.data(), all_have_it=st.booleans())
    def step(self, data, all_have_it):
        """Give some, or all, the gradients of a step; then some pass the vote."""
        members = self.of_round()
        if any(m is None or m.stage != "in" or m.pending for m in members):
            return
        if len({m.version for m in members}) > 1:
            return  # nobody takes part in the next step before it has made this one
        names = self.named("in")
        having = names if all_have_it else data.draw(st.sets(st.sampled_from(names)))
        voted = data.draw(st.sets(st.sampled_from(names))) if all_have_it else ()
        for name in having:
            self.members[name].pending = True
        self.votes[members[0].round, members[0].version] = len(having) == len(members)
        for name in voted:
            self.vote(self.members[name])

    def vote(self, m):
        if self.votes.get((m.round, m.version)):
            m.version, m.pending = m.version + 1, False

    @precondition(lambda self: any(m.pending for m in self.members.values()))
    @rule(data=st.data())
    def pass_vote(self, data):
        """Pass a vote: its sum may still come where somebody has died since it told its part."""
        name = self.pick(data, sorted(n for n, m in self.members.items() if m.pending))
        if self.members[name].stage == "in":
            self.vote(self.members[name])

    @precondition(lambda self: self.named("told", "assembled", "in"))
    @rule(data=st.data(), leaves=st.booleans())
    def come_back(self, data, leaves):
        """Come back since the round is over, or end it after a step."""
        name = self.pick(data, self.named("told", "assembled", "in"))
        m = self.members[name]
        over = not self.rounds.running or self.rounds.number != m.round
        if not over and (m.stage != "in" or m.pending):
            return
        self.now += 1.0
        if leaves:
            m.stage = "leaving"
            self.ask(name)
        else:
            m.stage = "waiting"
            self.rounds.join(self.told(name), m.round, over, self.now)

    @precondition(lambda self: not self.rounds.running and self.rounds.number)
    @rule()
    def all_come_back(self):
        """Have all members come back and go on: what most often follows a death."""
        for name in self.named("told", "assembled", "in"):
            m = self.members[name]
            m.stage = "waiting"
            self.rounds.join(self.told(name), m.round, True, self.now)
        self.form_of(1)
        if self.rounds.running:
            self.all_begin_of()

    @precondition(lambda self: self.named("leaving"))
    @rule(data=st.data())
    def ask_again(self, data):
        self.ask(self.pick(data, self.named("leaving")))

    def ask(self, name):
        m = self.members[name]
        what = self.rounds.farewell(self.told(name), self.now)
        if what is Farewell.GO:
            del self.members[name]
            self.rounds.lost(name, self.now)
            return
        if self.rounds.wanted[0] == m.version + 1 and m.pending:
            self.meet(m, m.version + 1)
        if what is Farewell.SAVE:  # a new life for those who come
            for other in self.named("leaving"):
                del self.members[other]
                self.rounds.lost(other, self.now)
            self.started = self.hurt = False
            self.held_world = 0

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def death(self, data):
        name = self.pick(data, sorted(self.members))
        m = self.members[name]
        if m.parts and (self.hurt or self.held_world < 2):
            return
        self.hurt = self.hurt or bool(m.parts)
        self.now += 1.0
        del self.members[name]
        self.rounds.lost(name, self.now)


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
