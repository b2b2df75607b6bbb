"""Whatever comes, goes, waits or is wrong: no plan breaks a limit, and everybody is served."""

import math
import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools.plans import Speed, broken, held
from tools.turns import examples

from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Quota
from edl.scheduler.policy import OBJECTIVES, Limits, make_policy

ROUND_S = 60.0


def made_job(dice: random.Random, number: int, now: float) -> Job:
    worker = dice.choice(
        [Resources(gpu=1), Resources(gpu=1, cpu=2), Resources(cpu=1), Resources(0.5)]
    )
    minimum = dice.choice([1, 1, 1, 2, 3, 5])
    servers = dice.choice([(0,), (0,), (1,), (1, 2, 3)])
    return Job(
        f"j{number}",
        Speed(dice.choice([50, 100, 400]), dice.uniform(0.2, 1), dice.choice([1, 3])),
        worker,
        now,
        namespace=dice.choice("ab"),
        user=dice.choice("uv"),
        priority=dice.choice([0, 0, 0, 1, 5]),
        minimum=minimum,
        maximum=minimum + dice.choice([-1, 0, 1, 3, 20]),
        server=Resources(cpu=dice.choice([1, 2])) if any(servers) else Resources(),
        servers=servers,
        master=dice.choice([Resources(), Resources(cpu=0.25)]),
        may_move=dice.random() < 0.7,
        left=dice.choice([None, 10.0, 1e5, 1e8]),
        deadline=dice.choice([None, now + 500, now + 5000]),
        resize_s=dice.choice([0.0, 1.0, 30.0]),
    )


def made_nodes(dice: random.Random) -> list[Node]:
    kinds = dice.choice([[""], [""], ["a", "b"]])
    return [
        Node(f"n{i}", Resources(dice.choice([0, 2, 4, 4.5]), 0, dice.choice([0, 2, 4, 4])), kind)
        for i, kind in enumerate(dice.choices(kinds, k=dice.choice([0, 1, 2, 3, 5])))
    ]


def made_quotas(dice: random.Random) -> tuple[Quota, ...]:
    quotas = [
        Quota("a", None, Resources(math.inf, math.inf, 3)),
        Quota("b", None, Resources(2, math.inf, math.inf)),
        Quota(None, "u", Resources(3, 0, 4)),
        Quota("c", None, Resources()),
    ]
    return tuple(dice.sample(quotas, dice.choice([0, 0, 1, 2, 4])))


@settings(max_examples=examples(120), deadline=None)
@given(seed=st.integers(0, 2**32), objective=st.sampled_from(OBJECTIVES))
def test_no_plan_breaks_a_limit(seed: int, objective: str) -> None:
    dice = random.Random(seed)
    quotas = made_quotas(dice)
    policy = make_policy(objective, Limits(quotas, dice.choice([0.0, 100.0, math.inf])))
    machines, jobs = made_nodes(dice), [made_job(dice, i, 0.0) for i in range(dice.randrange(6))]
    for number in range(6):
        now = number * ROUND_S

        plan = policy.plan(jobs, machines, now)

        assert [] == broken(plan, jobs, machines, quotas)
        mixed = policy.plan(dice.sample(jobs, len(jobs)), dice.sample(machines, len(machines)), now)
        assert plan == mixed
        jobs = [replace(job, **held(job, plan[job.name], now)) for job in jobs]
        jobs = [job for job in jobs if dice.random() < 0.9]
        jobs = [
            replace(
                job,
                is_pinned=dice.random() < 0.15,
                is_nearly_done=dice.random() < 0.1,
                served_s=job.served_s + ROUND_S * job.held.workers,
                left=job.left and job.left / 2,
            )
            for job in jobs
        ]
        jobs += [made_job(dice, 10 * number + i + 10, now) for i in range(dice.randrange(3))]
        if dice.random() < 0.3:
            machines = machines[1:]
        if dice.random() < 0.3:
            machines = [*machines, Node(f"m{number}", Resources(4, 0, 4), dice.choice(["", "a"]))]


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), objective=st.sampled_from(OBJECTIVES))
@example(seed=3614, objective="finish")  # workers ask for no cores, and a server does
def test_whoever_waits_is_served_within_its_bound(seed: int, objective: str) -> None:
    """Each job waits its patience, and a round for each other job, whatever their priorities."""
    dice = random.Random(seed)
    patience_s = dice.choice([0.0, 3 * ROUND_S])
    policy = make_policy(objective, Limits(patience_s=patience_s))
    machines = [Node(f"n{i}", Resources(8, 0, dice.choice([2, 4]))) for i in range(2)]
    jobs = [
        replace(job, maximum=max(job.minimum, job.maximum), minimum=min(job.minimum, 2), left=1e12)
        for job in (made_job(dice, i, 0.0) for i in range(dice.choice([3, 6, 9])))
    ]
    bound_s = patience_s + (len(jobs) + 1) * ROUND_S
    waited_s = dict.fromkeys((job.name for job in jobs), 0.0)
    for number in range(30):
        now = number * ROUND_S
        plan = policy.plan(jobs, machines, now)
        jobs = [replace(job, **held(job, plan[job.name], now)) for job in jobs]
        jobs = [replace(j, served_s=j.served_s + ROUND_S * j.held.workers) for j in jobs]
        for job in jobs:
            waited_s[job.name] = 0.0 if job.held.workers else waited_s[job.name] + ROUND_S

        assert max(waited_s.values()) <= bound_s, plan


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), objective=st.sampled_from(OBJECTIVES))
def test_nobody_has_more_than_its_minimum_while_another_waits_too_long(
    seed: int, objective: str
) -> None:
    dice = random.Random(seed)
    policy = make_policy(objective, Limits(patience_s=ROUND_S))
    machines = [Node(f"n{i}", Resources(gpu=4)) for i in range(2)]
    jobs = [
        Job(
            f"j{i}",
            Speed(power=dice.uniform(0.2, 1)),
            Resources(gpu=1),
            0.0,
            priority=dice.choice([0, 1]),
            maximum=dice.choice([1, 4, 8]),
            left=dice.choice([1e3, 1e6]),
        )
        for i in range(dice.choice([4, 8, 12]))
    ]
    for number in range(8):
        now = number * ROUND_S
        plan = policy.plan(jobs, machines, now)
        jobs = [replace(job, **held(job, plan[job.name], now)) for job in jobs]

        late = [j for j in jobs if j.waits_since is not None and now - j.waits_since >= ROUND_S]
        assert not late or max(job.held.workers for job in jobs) == 1
