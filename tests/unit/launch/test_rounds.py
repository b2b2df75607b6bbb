from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tools.turns import examples

from edl.launch.nodes import Failure
from edl.launch.rounds import DONE, FAILED, Policy, Rendezvous

pytestmark = pytest.mark.fast

CRASH = Failure(rank=0, exit_code=1, words="boom")


def machine(least: int = 1, most: int = 4, **policy: float) -> Rendezvous:
    return Rendezvous(Policy(least, most, **{"last_call_s": 3.0, **policy}), 0.0)


def join(made: Rendezvous, name: str, now: float, **more) -> None:
    join.requests += 1
    given = {"request": str(join.requests), "nproc": 1, "store": f"{name}:1", **more}
    made.join(name, now, **given)


join.requests = 0


def ranks(made: Rendezvous) -> list[str]:
    return [member.name for member in made.round.members] if made.running else []


def running(*names: str, most: int = 4, least: int = 1, **policy: float) -> Rendezvous:
    """Return a machine whose first round runs, formed at time 0 of `names`."""
    made = machine(least, most, **{"last_call_s": 0.0, **policy})
    for name in names:
        made.heard(name, 0.0)
    for name in names:
        join(made, name, 0.0)
    assert list(names) == ranks(made)
    return made


def test_a_round_forms_at_once_when_all_places_are_taken():
    made = machine(1, 2)
    join(made, "a", 0.0)
    assert [] == ranks(made)

    join(made, "b", 1.0)

    assert ["a", "b"] == ranks(made)


def test_a_round_of_fewer_forms_after_the_last_call():
    made = machine(1, 4)
    join(made, "a", 0.0)

    made.tick(2.9)
    assert [] == ranks(made)
    made.tick(3.0)

    assert ["a"] == ranks(made)


def test_a_round_waits_for_a_node_that_is_heard_and_still_imports():
    made = machine(1, 4)
    made.heard("slow", 0.0)
    join(made, "a", 0.0)
    made.heard("slow", 9.0)
    made.heard("a", 9.0)
    assert [] == ranks(made)

    join(made, "slow", 10.0)

    assert ["slow", "a"] == ranks(made)


def test_no_round_forms_below_the_minimum_and_the_job_fails_when_that_lasts():
    made = machine(2, 4, wait_for_nodes_s=10.0)
    join(made, "a", 0.0)
    made.heard("a", 9.0)
    assert ("", "") == made.outcome

    made.tick(10.0)

    assert FAILED == made.outcome[0]
    assert "only 1 of at least 2 nodes" in made.outcome[1]


def test_the_oldest_of_those_who_stay_has_rank_0():
    made = running("a", "b", "c", most=3)
    made.leave("a", 1.0)
    join(made, "c", 1.0)
    join(made, "new", 1.0)

    join(made, "b", 2.0)

    assert ["b", "c", "new"] == ranks(made)
    assert "b:1" == made.round.store


def test_a_node_that_waits_ends_the_round_of_those_who_run():
    made = running("a")

    join(made, "b", 1.0)
    assert (None, [], 1) == (made.runs_in("a"), ranks(made), made.round.number)
    join(made, "a", 2.0)

    assert (["a", "b"], 2) == (ranks(made), made.round.number)


def test_nodes_that_start_at_the_same_time_cost_one_round():
    made = running("a", freeze_s=0.0)
    made.heard("slow", 1.0)
    join(made, "b", 2.0)
    assert (["a"], "for node-1, to come in together") == (ranks(made), made.held_back(2.0))

    join(made, "slow", 3.0)
    join(made, "a", 4.0)

    assert (["a", "slow", "b"], 2) == (ranks(made), made.round.number)


def test_only_the_first_round_has_a_last_call():
    made = machine(1, 4, last_call_s=3.0)
    join(made, "a", 0.0)
    join(made, "b", 0.0)
    made.tick(3.0)
    made.leave("b", 4.0)

    join(made, "a", 5.0)

    assert ["a"] == ranks(made)


def test_a_node_waits_while_all_places_are_taken_and_takes_the_first_that_is_free():
    made = running("a", "b", most=2)
    join(made, "spare", 1.0)
    assert (["a", "b"], "all 2 places are taken") == (ranks(made), made.held_back(1.0))

    made.leave("a", 2.0)
    join(made, "b", 2.0)

    assert ["b", "spare"] == ranks(made)


def test_those_who_run_keep_their_places_before_those_who_wait():
    made = running("a", "b", most=2)
    join(made, "c", 1.0)
    join(made, "d", 1.0)

    join(made, "a", 2.0, failure=CRASH)
    join(made, "b", 2.0)

    assert ["a", "b"] == ranks(made)


def test_no_node_is_let_in_when_the_job_is_nearly_done():
    made = running("a", nearly_done_s=30.0)
    made.reported("a", 1.0, 10.0, 40.0)

    join(made, "early", 11.0, store="x:1")  # exactly 30 s are left
    assert [] == ranks(made)

    made = running("a", nearly_done_s=30.0)
    made.reported("a", 1.0, 10.0, 40.0)
    join(made, "late", 11.1, store="x:1")
    assert (["a"], "nearly done: 30 s are left") == (ranks(made), made.held_back(11.1))


def test_a_report_that_has_proved_wrong_holds_nobody_back():
    made = running("a", nearly_done_s=30.0, silent_s=1e9)
    made.reported("a", 0.0, 10.0, 0.0)
    join(made, "b", 1.0)
    assert (["a"], 60.0) == (ranks(made), made.next_tick(1.0))

    made.tick(60.0)

    assert [] == ranks(made)


def test_no_node_is_let_in_while_the_round_is_frozen_and_then_it_is():
    made = running("a", freeze_s=10.0)
    join(made, "b", 1.0)
    assert (["a"], 10.0) == (ranks(made), made.next_tick(5.0))

    made.tick(10.0)

    assert [] == ranks(made)


def test_a_silent_node_is_lost_and_the_others_form_a_round():
    made = running("a", "b", silent_s=15.0)
    made.heard("b", 14.0)
    assert 15.0 == made.next_tick(14.0)

    made.tick(15.0)
    assert [] == ranks(made)
    join(made, "b", 15.0)

    assert ["b"] == ranks(made)


def test_a_node_whose_connection_broke_is_lost_soon_unless_it_is_heard_again():
    made = running("a", "b", silent_s=15.0, dropped_s=2.0)
    for name in ("a", "b"):
        made.heard(name, 5.0)
        made.dropped(name, 5.0)
    made.heard("a", 6.0)

    made.tick(7.0)

    assert ["a"] == [node.name for node in made.nodes]


def test_a_member_that_does_not_stop_its_workers_in_time_is_lost():
    made = running("a", "b", rejoin_s=10.0)
    join(made, "a", 1.0)
    made.heard("a", 10.0)
    made.heard("b", 10.0)
    assert [] == ranks(made)

    made.tick(11.0)

    assert (["a"], ["a"]) == (ranks(made), [node.name for node in made.nodes])


def test_a_repeated_join_does_not_end_the_round_that_it_led_to():
    made = running("b")
    join(made, "a", 1.0, request="one")
    join(made, "b", 1.0)
    assert ["b", "a"] == ranks(made)

    join(made, "a", 2.0, request="one")

    assert ["b", "a"] == ranks(made)


def test_a_join_whose_reply_was_lost_counts_for_the_round_after():
    made = running("a")
    join(made, "b", 1.0, request="one")
    join(made, "a", 1.0)
    join(made, "a", 2.0)  # its workers failed before b knew of the round
    assert [] == ranks(made)

    join(made, "b", 3.0, request="one")

    assert ["a", "b"] == ranks(made)


def test_the_job_is_done_when_all_of_one_round_have_succeeded():
    made = running("a", "b")
    made.succeed("a", 1, 1.0)
    assert ("", "") == made.outcome

    made.succeed("b", 1, 2.0)

    assert DONE == made.outcome[0]


def test_who_succeeded_and_left_has_succeeded():
    made = running("a", "b")
    made.succeed("a", 1, 1.0)
    made.leave("a", 1.0)

    made.succeed("b", 1, 2.0)

    assert DONE == made.outcome[0]


def test_a_round_that_broke_is_run_again_by_those_who_had_succeeded():
    made = running("a", "b")
    made.succeed("a", 1, 1.0)
    made.leave("b", 2.0)

    assert ("", "") == made.outcome
    join(made, "a", 3.0)
    made.succeed("a", 2, 4.0)
    assert DONE == made.outcome[0]


def test_no_node_is_let_in_once_somebody_has_succeeded():
    made = running("a", "b")
    made.succeed("a", 1, 1.0)

    join(made, "c", 2.0)

    assert (["a", "b"], "the job is ending") == (ranks(made), made.held_back(2.0))


def test_a_script_that_fails_more_often_than_it_may_ends_the_job_with_its_words():
    made = running("a", max_restarts=1)
    join(made, "a", 1.0, failure=CRASH)
    assert ("", 1) == (made.outcome[0], made.state.restarts_used)

    join(made, "a", 2.0, failure=CRASH)

    assert (
        FAILED,
        "rank 0 on node-0 ended with exit code 1, after 1 restarts.\nThe end of its log:\nboom",
    ) == made.outcome


def test_what_the_peers_of_a_lost_node_die_of_is_no_failure():
    made = running("a", "b", max_restarts=0)
    made.dropped("b", 1.0)
    join(made, "a", 1.1, failure=CRASH)

    made.tick(3.0)

    assert (("", ""), ["a"]) == (made.outcome, ranks(made))


def test_what_dies_while_a_round_is_ended_on_purpose_is_no_failure():
    made = running("a", "b", max_restarts=0)
    join(made, "c", 1.0)
    join(made, "a", 1.1, failure=CRASH)

    join(made, "b", 1.2)

    assert (("", ""), ["a", "b", "c"]) == (made.outcome, ranks(made))


def test_a_killed_worker_is_named_rather_than_the_peer_that_died_of_it():
    made = running("a", "b", max_restarts=0)
    join(made, "b", 1.0, failure=Failure(1, 1, "connection closed by peer"))

    join(made, "a", 1.1, failure=Failure(0, -9))

    assert "rank 0 on node-0 was killed by signal 9." == made.outcome[1]


def test_a_round_is_numbered_above_all_that_its_nodes_have_seen_on_disk():
    made = machine(1, 2)
    join(made, "a", 0.0, newest=3)
    join(made, "b", 0.0, newest=7)

    assert (8, 0) == (made.round.number, made.round.restarts)


def test_a_range_that_is_none_is_refused():
    with pytest.raises(ValueError, match="4:2 is no range"):
        Policy(4, 2)


SILENT_S = 15.0


def test_after_a_restart_of_the_coordinator_a_node_that_is_gone_is_lost_soon():
    before = running("a", "b", silent_s=15.0, reconnect_s=6.0)
    made = Rendezvous.restored(before.policy, json.loads(json.dumps(before.dump())), 100.0)
    made.heard("a", 101.0)

    made.tick(105.9)
    assert ["a", "b"] == ranks(made)
    made.tick(106.0)

    assert ["a"] == [node.name for node in made.nodes]


class Storm(RuleBasedStateMachine):
    """Any order of joins, kills, silence, failures, ends, and restarts of the coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(
            2, 4, last_call_s=3.0, silent_s=SILENT_S, wait_for_nodes_s=1e9, max_restarts=10**6
        )
        self.now = 0.0
        self.made = Rendezvous(self.policy, 0.0)
        self.count = 0
        self.last = 0
        self.known: dict[int, tuple] = {}

    def alive(self) -> list[str]:
        return [node.name for node in self.made.nodes]

    def pick(self, number: int) -> str | None:
        names = self.alive()
        return names[number % len(names)] if names else None

    @rule()
    def arrive(self) -> None:
        self.count += 1
        self.made.heard(f"n{self.count}", self.now)

    @rule(number=st.integers(0, 9), nproc=st.integers(1, 3), fails=st.booleans())
    def join_one(self, number: int, nproc: int, fails: bool) -> None:
        if name := self.pick(number):
            join(self.made, name, self.now, nproc=nproc, failure=CRASH if fails else None)

    @rule(backwards=st.booleans())
    def all_that_are_told_join(self, backwards: bool) -> None:
        for name in self.alive()[:: -1 if backwards else 1]:
            if self.made.runs_in(name) is None and not self.made.outcome[0]:
                join(self.made, name, self.now)

    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        if name := self.pick(number):
            self.made.leave(name, self.now)

    @rule(number=st.integers(0, 9))
    def connection_breaks(self, number: int) -> None:
        if name := self.pick(number):
            self.made.dropped(name, self.now)

    @rule(number=st.integers(0, 9))
    def hear(self, number: int) -> None:
        if name := self.pick(number):
            self.made.heard(name, self.now)

    @rule(number=st.integers(0, 9), left_s=st.floats(0, 100))
    def report(self, number: int, left_s: float) -> None:
        if name := self.pick(number):
            self.made.reported(name, self.now, 1.0, left_s)

    @precondition(lambda self: self.made.running)
    @rule(number=st.integers(0, 9), late=st.booleans())
    def succeed(self, number: int, late: bool) -> None:
        if name := self.pick(number):
            self.made.succeed(name, self.made.round.number - late, self.now)

    @rule(seconds=st.floats(0.1, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.made.tick(self.now)

    @rule()
    def coordinator_restarts(self) -> None:
        dumped = json.loads(json.dumps(self.made.dump()))
        before = (self.made.round, self.made.running, self.alive(), self.made.outcome)
        self.made = Rendezvous.restored(self.policy, dumped, self.now)
        assert before == (self.made.round, self.made.running, self.alive(), self.made.outcome)

    @invariant()
    def a_round_has_as_many_as_it_may(self) -> None:
        if self.made.running:
            members = [member.name for member in self.made.round.members]
            assert len(set(members)) == len(members)
            assert 2 <= len(members) <= 4
            assert [self.made.round.rank(name) for name in members] == list(range(len(members)))

    @invariant()
    def rounds_rise_and_never_change(self) -> None:
        found = self.made.round
        if found is not None:
            assert found.number >= self.last
            self.last = found.number
            assert self.known.setdefault(found.number, found.members) == found.members

    @invariant()
    def who_joined_runs_or_waits(self) -> None:
        for node in self.made.nodes:
            if node.joined:
                assert self.made.runs_in(node.name) is None

    @invariant()
    def nobody_waits_who_could_run(self) -> None:
        """A round runs soon when all living nodes are heard and join when they must.

        It is of all of them or of as many as it may have; else a reason is told.
        """
        if self.made.outcome[0]:
            return
        copy = Rendezvous.restored(self.policy, json.loads(json.dumps(self.made.dump())), self.now)
        now, alive = self.now, self.alive()
        for _ in range(3):
            for name in alive:
                if copy.runs_in(name) is None and not copy.outcome[0]:
                    join(copy, name, now)
            now += self.policy.last_call_s
            for name in alive:
                copy.heard(name, now)
        if copy.outcome[0]:
            return
        waiting = [name for name in alive if copy.runs_in(name) is None]
        members = [member.name for member in copy.round.members] if copy.running else []
        if gone := set(members).difference(alive):
            assert all(map(copy.state.has_succeeded, gone))  # their part is done: the others go on
        else:
            assert copy.running == (len(alive) >= 2)
        assert not waiting or not copy.running or copy.held_back(now)

    @invariant()
    def it_wakes_in_time(self) -> None:
        assert self.made.next_tick(self.now) > self.now


Storm.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestStorm = Storm.TestCase
