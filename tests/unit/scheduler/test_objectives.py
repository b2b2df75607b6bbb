"""What each objective makes of the same jobs, by published formulas or by plain words."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tools.plans import GPU, Speed, nodes

from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Plan, Shape
from edl.scheduler.objectives import Outlook, deadline, finish, goodput
from edl.scheduler.options import kinds_of, options
from edl.scheduler.policy import Limits, make_policy

pytestmark = pytest.mark.fast


def job(name: str, power: float = 0.8, **more: object) -> Job:
    return replace(Job(name, Speed(power=power), GPU, 0.0, maximum=64), **more)


def given_workers(plan: Plan) -> dict[str, int]:
    return {name: given.shape.workers for name, given in plan.items()}


def plan(objective: str, jobs: list[Job], machines: list[Node], now: float = 0.0) -> dict[str, int]:
    return given_workers(make_policy(objective, Limits()).plan(jobs, machines, now))


def outlook(jobs: list[Job], machines: list[Node], now: float = 0.0) -> Outlook:
    total = sum((node.free for node in machines), Resources())
    return Outlook([options(each, kinds_of(machines)) for each in jobs], total, now)


def test_goodput_is_the_harmonic_mean_of_speedups_over_the_fair_share() -> None:
    """Two jobs on two nodes of 4 GPUs: the fair share of each is one node, four workers."""
    values = goodput(outlook([job("a", 1.0), job("b")], nodes(2))).values

    assert [0, 1 / 4, 2 / 4, 1, 0.9 * 2] == pytest.approx([-1 / v - 1e-3 for v in values[0]])


def test_goodput_gives_more_to_whoever_makes_more_of_it_and_nothing_to_nobody() -> None:
    jobs = [job("a", 0.95), job("b", 0.2), job("c", 0.2)]

    assert {"a": 4, "b": 2, "c": 2} == plan("goodput", jobs, nodes(2))
    assert dict.fromkeys("abcd", 1) == plan("goodput", [*jobs, job("d")], nodes(1))


def test_finish_has_the_weights_of_hesrpt() -> None:
    """With q = 0.7, share_i = (i/m)^(1/0.3) - ((i-1)/m)^(1/0.3), the largest job first."""
    jobs = [job("small", 1.0, left=1e3), job("large", 1.0, left=1e6), job("mid", 1.0, left=1e4)]

    values = finish(outlook(jobs, nodes(1))).values

    shares = [(i / 3) ** (1 / 0.3) - ((i - 1) / 3) ** (1 / 0.3) for i in (1, 2, 3)]
    weights = [shares[rank] ** 0.3 for rank in (2, 0, 1)]
    assert [each[1] for each in values] == pytest.approx(weights)
    assert [each[3] for each in values] == pytest.approx([4 * weight for weight in weights])


def test_finish_gives_about_the_shares_of_hesrpt() -> None:
    """Where speeds are k ** 0.7, the optimal shares are those of the closed form."""
    jobs = [
        job(name, left=left, speed=lambda shape: shape.workers**0.7)
        for name, left in (("a", 1e3), ("b", 1e4), ("c", 1e5))
    ]
    shares = [(i / 3) ** (1 / 0.3) - ((i - 1) / 3) ** (1 / 0.3) for i in (3, 2, 1)]

    given = plan("finish", jobs, nodes(64, gpus=1))

    assert [round(64 * share) for share in shares] == list(given.values()) == [47, 15, 2]


def test_an_unknown_end_is_that_of_the_median_job_and_all_unknown_are_goodput() -> None:
    known = [job("a", left=1e3), job("b", left=1e5), job("c", left=1e7)]
    ranks = [each[1] for each in finish(outlook([*known, job("x")], nodes(1))).values]
    assert sorted([ranks[1], ranks[3]]) == sorted(ranks)[1:3]

    unknown = [job("a", 0.9), job("b", 0.3)]
    assert plan("goodput", unknown, nodes(2)) == plan("finish", unknown, nodes(2))


def test_a_deadline_is_met_with_the_least_shape_that_does() -> None:
    """The job takes 8,000 s with one worker; with 10 % to spare it needs four for 2,500 s."""
    late = job("late", 1.0, left=8e5, deadline=2500.0)
    jobs = [late, *(job(f"s{i}", 0.9, left=1e3) for i in range(8))]

    assert 4 == plan("deadline", jobs, nodes(2))["late"]
    assert 4 > plan("finish", jobs, nodes(2))["late"]
    (claim,) = deadline(outlook(jobs, nodes(2))).claims
    assert [False, False, False, True, True] == claim.options.tolist()


def test_the_first_deadline_comes_first_and_one_that_cannot_be_met_does_not() -> None:
    jobs = [
        job("a second", 1.0, left=8e5, deadline=2600.0),
        job("b first", 1.0, left=8e5, deadline=2500.0),
        job("never", 1.0, left=8e7, deadline=1000.0),
        job("none", 1.0, left=1e2),
    ]

    given = plan("deadline", jobs, nodes(1))

    assert {"a second": 0, "b first": 4, "never": 0, "none": 0} == given


def test_fulfilment_is_everybodys_minimum_and_then_equal_shares() -> None:
    jobs = [job("a", 0.99), job("b", 0.1), job("c", minimum=2)]
    assert {"a": 2, "b": 2, "c": 2} == plan("fulfilment", jobs, [Node("n", Resources(gpu=6))])
    assert {"a": 1, "b": 1, "c": 2} == plan("fulfilment", jobs, nodes(1))

    jobs = [replace(each, submitted=-i) for i, each in enumerate(jobs)]
    assert {"a": 0, "b": 1, "c": 2} == plan("fulfilment", jobs, nodes(1, 3))


def test_fifo_gives_each_its_maximum_in_turn_and_lets_nobody_by() -> None:
    jobs = [
        job("a", maximum=4, submitted=1.0),
        job("b", maximum=8, submitted=2.0),
        job("c", maximum=1, submitted=3.0),
    ]

    assert {"a": 4, "b": 0, "c": 0} == plan("fifo", jobs, nodes(2))
    assert {"b": 8, "c": 0} == plan("fifo", jobs[1:], nodes(2))
    assert {"a": 4, "b": 8, "c": 1} == plan("fifo", jobs, nodes(4))


def test_fifo_takes_nothing_from_whoever_has_it() -> None:
    old = job("old", maximum=8, submitted=1.0)
    runs = job("runs", submitted=2.0, held=Shape(4, 0, 1), workers_on={"n0": 4})

    assert {"old": 0, "runs": 4} == plan("fifo", [old, runs], nodes(2))


@pytest.mark.parametrize("objective", ["goodput", "finish", "fulfilment"])
def test_a_higher_priority_weighs_more(objective: str) -> None:
    jobs = [job("a", 0.5, left=1e4), job("b", 0.5, left=1e4, priority=3)]

    given = plan(objective, jobs, [Node("n", Resources(gpu=10))])

    assert given["b"] > given["a"]


def test_a_job_that_is_changed_for_little_keeps_what_it_has() -> None:
    def grown(resize_s: float, speed: Callable[[Shape], float]) -> int:
        has = job("a", left=1e4, held=Shape(2, 0, 1), workers_on={"n0": 2})
        return plan("finish", [replace(has, resize_s=resize_s, speed=speed)], nodes(1), 1e3)["a"]

    assert 4 == grown(3.0, lambda shape: 100.0 * shape.workers)
    assert 2 == grown(60.0, lambda shape: 100.0 * shape.workers)
    assert 2 == grown(3.0, lambda shape: 100.0 * shape.workers**0.02)
