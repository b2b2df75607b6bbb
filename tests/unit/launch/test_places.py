"""The places for agents that a coordinator keeps, and what follows where one ends."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.clock import FakeClock
from edl.common.errors import EdlError, UsageError
from edl.durable.journal import Journal
from edl.launch.coordinator import FORMAT, Coordinator
from edl.launch.fleet import Crew, Fleet
from edl.launch.nodes import Member, Round, State
from edl.launch.places import Places
from edl.launch.settings import LaunchSettings
from edl.runtime.base import Exit, Note, Replica, Running

LOST, OUT = -9, 137


def places(state: State | None = None, *, replaces: bool = True, relaunches: int = 1) -> Places:
    numbers = itertools.count()
    return Places(
        state or State(0.0, 0.0),
        replaces=replaces,
        relaunches=relaunches,
        name=lambda: f"a{next(numbers)}",
    )


def started(made: Places, now: float = 0.0) -> list[tuple[int, str]]:
    return [(place.index, place.incarnation) for place in made.starts(now)]


def test_as_many_start_as_are_wanted_and_the_highest_go_first():
    made = places()
    assert made.scale(3) == 0
    assert started(made) == [(0, "a0"), (1, "a1"), (2, "a2")]

    assert made.scale(1) == 3

    assert [place.index for place in made.leaving()] == [1, 2]
    assert made.exited("a2", 130, "left", 5.0) == ""
    assert made.scale(2) == 1
    assert started(made, 5.0) == [(2, "a3")]  # 1 is still taken by the one that goes


def test_scaled_down_those_stay_who_train():
    state = State(0.0, 0.0)
    made = places(state)
    made.scale(3)
    started(made)
    members = tuple(Member(name, "h", 1) for name in ("a1", "a2"))
    state.round, state.running = Round(1, 0, members, "h:1", 0.0), True  # a0 has just come
    made.scale(4)  # whose agent is not started yet

    made.scale(2)
    after = [place.index for place in made.leaving()], [p.index for p in state.places]
    made.scale(1)

    assert ([0], [0, 1, 2]) == after
    assert [0, 2] == [place.index for place in made.leaving()]


def test_one_that_is_lost_is_replaced_at_once_however_often():
    made = places()
    made.scale(1)
    for now in range(0, 500, 10):
        ((_, name),) = started(made, now)
        assert made.exited(name, LOST, "was evicted", now + 5.0) == ""
        assert made.next_start() == now + 5.0


def test_one_that_is_lost_as_soon_as_it_starts_is_replaced_after_a_pause():
    made = places()
    made.scale(1)
    ((_, name),) = started(made)

    made.exited(name, LOST, "was killed", 0.5)

    assert (started(made, 0.5), made.next_start()) == ([], 1.5)


def test_one_that_fails_before_it_has_worked_is_tried_again_so_often_and_then_fails_the_job():
    made = places(relaunches=2)
    made.scale(1)
    whys = []
    for now in (0.0, 100.0, 200.0):
        ((_, name),) = started(made, now)
        whys.append(made.exited(name, 1, "ended with exit code 1", now))

    assert whys[:2] == ["", ""]
    assert "the agent of node 0 ended with exit code 1, 3 times in a row" in whys[2]


def test_who_has_been_in_a_round_begins_to_count_anew():
    made = places(relaunches=1)
    made.scale(1)
    for now in range(0, 500, 100):
        ((_, name),) = started(made, now)
        made.worked(name)
        assert made.exited(name, OUT, "ran out of memory", now) == ""


def test_where_none_is_replaced_a_place_is_empty_until_more_are_wanted():
    state = State(0.0, 0.0)
    made = places(state, replaces=False)
    made.scale(2)
    started(made)

    made.exited("a0", LOST, "was killed", 5.0)

    assert (state.wanted, started(made, 9.0)) == (1, [])
    made.scale(2)
    assert started(made, 9.0) == [(0, "a2")]


@given(st.lists(st.tuples(st.sampled_from(["scale", "end", "lose"]), st.integers(1, 6))))
def test_in_the_end_as_many_run_as_are_wanted(steps):
    state = State(0.0, 0.0)
    made = places(state, relaunches=99)
    made.scale(1)
    for now, (step, number) in enumerate(steps, 1):
        made.starts(now * 100.0)
        running = [place.incarnation for place in made.running()]
        if step == "scale":
            made.scale(number)
        elif running:
            made.exited(running[number % len(running)], 1 if step == "end" else LOST, "", now * 1e2)
    for place in made.leaving():
        made.exited(place.incarnation, 130, "left", 1e6)
    made.starts(1e9)

    assert len(made.running()) == state.wanted
    assert len({place.index for place in state.places}) == len(state.places)


# -- behind a coordinator


class Runtime:
    """A runtime that only remembers what it was asked for."""

    def __init__(self) -> None:
        self.started: list[Replica] = []
        self.adopted: list[Replica] = []
        self.stopped: list[Replica] = []
        self.ends = ""
        self.refuses = ""

    def start(self, role, index, incarnation, env, arguments=()):
        if self.refuses:
            raise EdlError(self.refuses)
        self.started.append(Replica(role, index, incarnation, 7, 70 + index))
        return self.started[-1]

    def adopt(self, replica):
        self.adopted.append(replica)

    def stop(self, replica, grace_s):
        self.stopped.append(replica)

    def close(self):
        self.ends += "closed"

    def detach(self):
        self.ends += "detached"


@pytest.fixture
def kept(tmp_path):
    """Make a coordinator with agents of its own; each call makes the next one of the same job."""
    made, clock = [], FakeClock()

    def make(in_pods: bool = True, number: int = 2, runtime: Runtime | None = None, **more):
        for before in made:
            before.close()
        settings = LaunchSettings("j", 1, 3, str(tmp_path), last_call_s=0.0, **more)
        journal = Journal(tmp_path / "j.sqlite", FORMAT)
        coordinator = Coordinator(settings, journal, clock)
        runtime = runtime or Runtime()
        crew = Crew("worker", {}, ("--", "x.py"), 5.0, in_pods=in_pods, relaunches=1)
        coordinator.keep(Fleet(crew, lambda _report: runtime), number)
        made.append(journal)
        return coordinator, runtime

    make.clock = clock
    yield make
    made[-1].close()


def test_the_next_coordinator_adopts_the_agents_and_starts_none(kept):
    _, before = kept()

    _, runtime = kept()

    assert runtime.adopted == before.started
    assert runtime.started == []


def test_scaled_down_the_last_agents_are_told_to_go_once(kept):
    coordinator, runtime = kept(number=3)

    assert coordinator.scale(1) == 3
    coordinator.scale(1)

    assert runtime.stopped == runtime.started[1:]
    assert coordinator.final_status()["max_nodes"] == 1  # no more are let in


def test_an_agents_end_is_the_loss_of_its_node_and_it_is_replaced(kept):
    coordinator, runtime = kept(number=1)
    (first,) = runtime.started
    coordinator.beat(first.incarnation, host="h", pid=1, round=0, report=None, wait_s=0.0)
    (node,) = coordinator.final_status()["nodes"]

    kept.clock.advance(60.0)
    coordinator.happened(Exit(first, LOST, why="was evicted"))

    assert (node["place"], node["state"]) == (0, "starting")
    assert coordinator.final_status()["nodes"] == []
    assert [each.index for each in runtime.started] == [0, 0]
    assert "is lost: it was evicted" in str(coordinator.final_status()["events"])


def test_why_an_agent_waits_is_told_until_it_runs(kept):
    coordinator, runtime = kept(number=1)
    (first,) = runtime.started

    coordinator.happened(Note(first, "waits: no room"))
    waits = coordinator.final_status()["message"]
    coordinator.happened(Running(first))

    assert (waits, coordinator.final_status()["message"]) == ("node 0 waits: no room", "")


def test_agents_that_cannot_be_started_fail_the_job(kept):
    runtime = Runtime()
    runtime.refuses = "no such program"
    coordinator, _ = kept(number=1, runtime=runtime)
    kept.clock.advance(60.0)
    coordinator.happened(Note(None, "the Kubernetes API answers again"))

    assert "could not be started: no such program" in coordinator.final_status()["message"]


@pytest.mark.parametrize("number", [0, 4])
def test_agents_of_this_machine_are_as_many_as_the_job_allows(kept, number):
    coordinator, _ = kept(in_pods=False)

    with pytest.raises(UsageError, match="--nodes 1:3 of the job: choose a number from 1 to 3"):
        coordinator.scale(number)


@pytest.mark.parametrize("in_pods", [True, False])
def test_a_job_is_over_when_its_agents_have_ended(kept, in_pods):
    """What they have printed last is in their pods' logs by then, which a deletion would take."""
    coordinator, runtime = kept(in_pods=in_pods)
    ended = []
    coordinator.stop("enough")
    thread = threading.Thread(target=lambda: ended.append(coordinator.run(1000.0)), daemon=True)
    thread.start()

    coordinator.happened(Exit(runtime.started[0], 0))
    assert coordinator.final_status()["state"] == "stopping"
    coordinator.happened(Exit(runtime.started[1], 0))

    thread.join(60.0)
    assert (ended, runtime.ends) == ([130], "closed")
    assert len(runtime.started) == 2
