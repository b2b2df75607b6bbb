"""A workload is played: exact times by hand, nothing used twice, the same again by its seed."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler.jobs import Given, Shape
from edl.scheduler.simulator.application import Application, Limits
from edl.scheduler.simulator.play import Rules, cluster, play
from edl.scheduler.simulator.workload import Arrival


def no_clock():
    return 0.0


def gave(workers_on):
    return Given(Shape(sum(workers_on.values()), 0, len(workers_on)), "by hand", workers_on)


class Script:
    """A policy that says at each time what was written for it, and else what it said before."""

    def __init__(self, said):
        self.said = said
        self.last = {}
        self.seen = {}

    def plan(self, jobs, nodes, now):
        self.last = {**self.last, **self.said.get(now, {})}
        self.seen[now] = {job.name: job for job in jobs}
        return {job.name: gave(self.last.get(job.name, {})) for job in jobs}


def outcomes(result):
    return {job.name: (job.ended, job.restarts, job.gpu_s) for job in result.jobs}


A, B = Arrival("a", 0.0, "toy"), Arrival("b", 70.0, "toy")


def test_two_jobs_on_two_nodes_by_hand(applications):
    script = Script(
        {
            60.0: {"a": {"node-0": 1}},  # waits until 90, then a step a second
            120.0: {"a": {"node-0": 2}, "b": {"node-1": 1}},  # after 30 steps; 0.6 s from 150 on
            300.0: {"b": {"node-0": 1, "node-1": 1}},  # after 150 steps; 0.8 s from 330 on
        }
    )

    result = play([A, B], applications, cluster(2, 2), script.plan, Rules(), no_clock)

    assert outcomes(result) == {
        "a": (pytest.approx(150 + 170 * 0.6), 1, pytest.approx(60 + 2 * 132)),
        "b": (pytest.approx(330 + 50 * 0.8), 1, pytest.approx(180 + 2 * 70)),
    }
    assert result.gpus == ((0, 0), (60, 1), (120, 3), (pytest.approx(252), 1), (300, 2), (370, 0))
    assert (result.mean, result.makespan) == (pytest.approx((252 + 300) / 2), pytest.approx(370))
    assert result.percentile(50) == result.mean
    assert result.plans == 6  # at 60, 120, 180, 240, 300, 360


def test_by_events_the_policy_is_asked_when_a_job_comes_or_ends(applications):
    script = Script({0.0: {"a": {"node-0": 1}}, 70.0: {"b": {"node-1": 1}}})
    rules = Rules(by_events=True)

    result = play([A, B], applications, cluster(2, 1), script.plan, rules, no_clock)

    assert outcomes(result) == {"a": (230, 0, 230), "b": (300, 0, 230)}
    assert list(script.seen) == [0, 60, 70, 120, 180, 230, 240]


def test_a_cheap_change_is_paid_for_as_such(applications):
    script = Script({60.0: {"a": {"node-0": 1}}, 120.0: {"a": {"node-1": 1}}})

    result = play([A], applications, cluster(2, 1), script.plan, Rules(restart_s=2), no_clock)

    assert outcomes(result) == {"a": (60 + 2 + 200 + 2, 1, 204)}


def test_what_is_taken_waits_and_goes_on_where_it_was(applications):
    script = Script(
        {60.0: {"a": {"node-0": 1}}, 120.0: {"a": {}}, 240.0: {"a": {"node-0": 1}}},
    )

    result = play([A], applications, cluster(1, 1), script.plan, Rules(), no_clock)

    assert outcomes(result) == {"a": (240 + 30 + 170, 1, 60 + 200)}
    waited = {now: jobs["a"].waits_since for now, jobs in script.seen.items()}
    assert (waited[60], waited[120], waited[180], waited[300]) == (0, None, 120, None)


def test_a_policy_sees_what_the_job_has_measured_of_itself(applications):
    script = Script({60.0: {"a": {"node-0": 1}}, 120.0: {"a": {"node-0": 2}}})

    play([A], applications, cluster(1, 2), script.plan, Rules(known="exact"), no_clock)

    first, second, third = (script.seen[now]["a"] for now in (60, 120, 180))
    assert [job.maximum for job in (first, second, third)] == [1, 2, 2]
    assert [job.left for job in (first, second, third)] == [None, 1700, pytest.approx(1200)]
    assert [job.held.workers for job in (first, second, third)] == [0, 1, 2]
    assert [job.workers_on for job in (first, second)] == [{}, {"node-0": 1}]
    assert [job.served_s for job in (first, second, third)] == [0, 60, 180]
    assert first.speed(Shape(1, 0, 1)) == 1  # nothing is known yet
    assert second.speed(Shape(1, 0, 1)) == pytest.approx(10, rel=1e-3)
    assert second.speed(Shape(2, 0, 1)) > 11  # it hopes that synchronising costs nothing
    assert third.speed(Shape(2, 0, 1)) == pytest.approx(10 / 0.6, rel=1e-3)
    assert second.speed(Shape()) == 0


@pytest.mark.parametrize("history", [False, True])
def test_by_history_a_new_job_knows_what_the_last_of_its_application_has_measured(
    applications, history
):
    script = Script({60.0: {"a": {"node-0": 1}}, 120.0: {"b": {"node-1": 1}}})
    rules = Rules(history=history, known="exact")

    play([A, B], applications, cluster(2, 1), script.plan, rules, no_clock)

    first, new = script.seen[60]["a"], script.seen[120]["b"]
    assert (first.maximum, first.left, first.speed(Shape(1, 0, 1))) == (1, None, 1)
    assert (new.maximum, new.left) == ((2, 2000) if history else (1, None))
    assert new.speed(Shape(1, 0, 1)) == pytest.approx(10 if history else 1, rel=1e-3)


def test_who_does_not_know_the_end_is_not_told(applications):
    script = Script({60.0: {"a": {"node-0": 1}}})

    play([A], applications, cluster(1, 1), script.plan, Rules(), no_clock)

    assert {job.left for jobs in script.seen.values() for job in jobs.values()} == {None}
    assert not any(job.is_nearly_done for jobs in script.seen.values() for job in jobs.values())


def test_a_job_is_nearly_done_when_a_change_would_take_longer_than_its_rest(applications):
    script = Script({60.0: {"a": {"node-0": 1}}})

    play([A], applications, cluster(1, 1), script.plan, Rules(known="exact"), no_clock)

    nearly = {now: jobs["a"].is_nearly_done for now, jobs in script.seen.items()}
    assert nearly == {60: False, 120: False, 180: False, 240: False}  # it ends at 290

    script = Script({60.0: {"a": {"node-0": 1}}})
    rules = Rules(known="exact", restart_s=55)
    play([A], applications, cluster(1, 1), script.plan, rules, no_clock)

    assert script.seen[300]["a"].is_nearly_done  # it ends at 315


def stated(applications, seed):
    script = Script({60.0: {f"job-{n}": {"node-0": 1} for n in range(500)}})
    jobs = [Arrival(f"job-{n}", 0.0, "toy") for n in range(500)]
    rules = Rules(known="stated", seed=seed)
    result = play(jobs, applications, cluster(1, 500), script.plan, rules, no_clock)
    return np.array([job.left for job in script.seen[120].values()]), result


def test_what_is_stated_is_wrong_by_a_log_normal_error_of_its_seed(applications):
    left, result = stated(applications, 1)

    errors = np.log((left / 10 + 30) / 200)  # of the steps in all; 30 are done
    assert np.std(errors) == pytest.approx(0.3, abs=0.03)
    assert np.mean(errors) == pytest.approx(0, abs=0.04)
    again, same = stated(applications, 1)
    assert (left == again).all()
    assert result == same
    assert (left != stated(applications, 2)[0]).any()


def test_more_is_left_than_was_stated_until_the_end_of_the_epoch(applications):
    rules = Rules(known="stated", error=5.0, seed=3)
    lefts = []

    def plan(jobs, nodes, now):
        lefts.extend((now, job.left) for job in jobs if job.left is not None)
        return {job.name: gave({"node-0": 1}) for job in jobs}

    seeds = range(10)
    for seed in seeds:
        play(
            [A], applications, cluster(1, 1), plan, dataclasses.replace(rules, seed=seed), no_clock
        )

    least = {now: min(left for when, left in lefts if when == now) for now, _ in lefts}
    assert least == {120: 700, 180: 100, 240: 500}  # 30, 90, 150 steps are done; epochs have 100


class Chance:
    """A policy that gives any job anything that is there."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def plan(self, jobs, nodes, now):
        free = {node.name: int(node.free.gpu) for node in nodes}
        plan = {}
        for job in jobs:
            count = int(self.random.integers(0, job.maximum + 1))
            gpus = [name for name, n in free.items() for _ in range(n)]
            chosen = self.random.permutation(gpus)[:count].tolist()
            workers_on = {name: chosen.count(name) for name in set(chosen)}
            for name, n in workers_on.items():
                free[name] -= n
            plan[job.name] = gave(workers_on)
        return plan


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    times=st.lists(st.floats(0, 500), min_size=1, max_size=6),
    by_events=st.booleans(),
)
def test_gpu_seconds_add_up_and_no_more_are_used_than_there_are(
    applications, seed, times, by_events
):
    arrivals = [Arrival(f"job-{n}", at, "toy") for n, at in enumerate(sorted(times))]
    rules = Rules(by_events=by_events)

    narrow = {"toy": Application(applications["toy"].folder, Limits(replicas=2))}

    def played():
        planner = Chance(seed).plan
        return play(arrivals, narrow, cluster(2, 2), planner, rules, no_clock)

    result = played()

    assert [job.name for job in result.jobs] == [arrival.name for arrival in arrivals]
    assert all(0 <= used <= 4 for _, used in result.gpus)
    assert result.gpus[-1][1] == 0
    used_s = sum(used * (end - at) for (at, used), (end, _) in itertools.pairwise(result.gpus))
    assert used_s == pytest.approx(result.gpu_s)
    assert all(job.ended >= job.submitted + 30 + 200 * 0.6 for job in result.jobs)
    assert played() == result


@pytest.mark.parametrize(
    ("workers_on", "said"),
    [
        ({"node-0": 1, "node-1": 1}, "a may have from 1 to 1 workers, or none"),
        ({"node-0": -1}, "a may have from 1 to 1 workers, or none"),
        ({"node-7": 1}, "node-7 has 0 GPUs, the plan gives 1"),
    ],
)
def test_wrong_plans_are_told(applications, workers_on, said):
    script = Script({60.0: {"a": workers_on}})

    with pytest.raises(ValueError, match=said):
        play([A], applications, cluster(2, 1), script.plan, Rules(), no_clock)


def test_no_gpu_is_given_twice(applications):
    script = Script({120.0: {"a": {"node-0": 1}, "b": {"node-0": 1}}})

    with pytest.raises(ValueError, match="node-0 has 1 GPUs, the plan gives 2"):
        play([A, B], applications, cluster(2, 1), script.plan, Rules(), no_clock)


def test_jobs_that_span_nodes_slow_each_other_down_where_they_meet(applications):
    both = {"node-0": 1, "node-1": 1}
    script = Script({60.0: {"a": {"node-0": 1}, "b": {"node-1": 1}}, 120.0: {"a": both, "b": both}})
    jobs = [A, Arrival("b", 0.0, "toy")]
    rules = Rules(interference=0.5)

    result = play(jobs, applications, cluster(2, 2), script.plan, rules, no_clock)

    assert [job.ended for job in result.jobs] == [pytest.approx(150 + 170 * 0.8 / 0.5)] * 2


def test_a_policy_that_serves_nobody_is_given_up(applications):
    with pytest.raises(ValueError, match="has given nobody anything for 86,400 s"):
        play([A], applications, cluster(2, 1), Script({}).plan, Rules(), no_clock)


def test_the_cpu_seconds_of_the_policy_are_counted(applications):
    ticks = itertools.count()
    script = Script({60.0: {"a": {"node-0": 1}}})

    result = play([A], applications, cluster(1, 1), script.plan, Rules(), lambda: next(ticks))

    assert (result.plans, result.policy_cpu_s) == (4, 4)
