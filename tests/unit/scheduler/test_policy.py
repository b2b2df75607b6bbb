"""One plan for all jobs: who comes first, who keeps what it has, and why, in words."""

import math
from dataclasses import replace

import pytest
from tools.plans import GPU, Speed, broken, nodes

from edl.common.errors import UsageError
from edl.scheduler import milp
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Plan, Quota, Shape
from edl.scheduler.policy import OBJECTIVES, Limits, make_policy

pytestmark = pytest.mark.fast

HOUR = 3600.0


def job(name: str, **more: object) -> Job:
    return replace(Job(name, Speed(), GPU, 0.0, maximum=64), **more)


def has(name: str, on: dict[str, int], **more: object) -> Job:
    shape = Shape(sum(on.values()), 0, len(on))
    return job(name, held=shape, workers_on=on, **more)


def plan(
    jobs: list[Job],
    machines: list[Node],
    now: float = 0.0,
    objective: str = "goodput",
    quotas: tuple[Quota, ...] = (),
) -> Plan:
    limits = Limits(quotas)
    made = make_policy(objective, limits).plan(jobs, machines, now)
    assert [] == broken(made, jobs, machines, quotas)
    return made


def workers(made: Plan) -> dict[str, int]:
    return {name: given.shape.workers for name, given in made.items()}


def test_an_objective_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="'speed' is no objective: choose one of finish, goodput,"):
        make_policy("speed")
    assert ("finish", "goodput", "deadline", "fifo", "fulfilment") == OBJECTIVES


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(patience_s=-1), "the patience is -1 s"),
        (Limits(patience_s=math.nan), "the patience is nan s"),
        (Limits((Quota("a", "u", Resources(gpu=-1)),)), "quota of namespace a and user u has an"),
    ],
)
def test_limits_that_make_no_sense_are_told(limits: Limits, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_policy("finish", limits)


def test_a_time_limit_is_above_zero_and_names_are_given_once() -> None:
    with pytest.raises(UsageError, match="time limit is 0 s"):
        make_policy("finish", Limits(), 0)
    with pytest.raises(UsageError, match="two jobs have the name a"):
        plan([job("a"), job("a")], nodes(1))
    with pytest.raises(UsageError, match="two nodes have the name n0"):
        plan([job("a")], [*nodes(1), *nodes(1)])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_bad_job_keeps_what_it_has_and_stops_nobody(objective: str) -> None:
    bad = has("bad", {"n0": 2}, minimum=4, maximum=2)
    made = plan(
        [bad, job("new", minimum=5, maximum=1), job("good", left=1e4, maximum=2)],
        nodes(1),
        0,
        objective,
    )

    assert {"bad": 2, "new": 0, "good": 2} == workers(made)
    said = "its minimum of 4 workers is above its maximum of 2: give a maximum of at least 4"
    assert f"stays at 2 workers: {said}" == made["bad"].why
    assert made["new"].why.startswith("gets nothing: its minimum of 5 workers is above its maximum")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_who_is_pinned_or_nearly_done_keeps_what_it_has(objective: str) -> None:
    jobs = [
        has("pinned", {"n0": 1}, is_pinned=True),
        has("done", {"n0": 1}, is_nearly_done=True, left=1.0),
        job("starts", is_pinned=True),
        job("waits", is_nearly_done=True, left=1.0, maximum=2),
    ]

    made = plan(jobs, nodes(1), 100.0, objective)

    assert {"pinned": 1, "done": 1, "starts": 0, "waits": 2} == workers(made)
    assert "stays at 1 worker: it is nearly done" == made["done"].why
    assert "stays at 1 worker: it starts, ends, or may not be changed" == made["pinned"].why


def test_there_may_be_no_nodes_and_no_jobs() -> None:
    assert {} == plan([], nodes(1))
    made = plan([job("a")], [], quotas=(Quota("a", None, Resources(gpu=1)),))
    assert "waits: its minimum of 1 worker does not fit on the nodes, even if" in made["a"].why


def test_higher_priorities_have_their_minimum_first() -> None:
    """Even where the low one is worth more to the objective."""
    jobs = [
        has("low", {"n0": 4}, minimum=4, left=10.0, speed=Speed(1e4, 1.0)),
        job("high", minimum=2, priority=1, submitted=9.0, left=1e9),
        job("higher", minimum=2, priority=2, submitted=9.0, left=1e9),
    ]

    assert {"low": 0, "high": 2, "higher": 2} == workers(plan(jobs, nodes(1), 10.0, "finish"))
    assert (
        4
        == plan([jobs[0], replace(jobs[1], priority=0)], nodes(1), 10.0, "finish")[
            "low"
        ].shape.workers
    )


def test_a_gang_above_it_is_passed_only_by_who_leaves_it_nothing_less() -> None:
    jobs = [job("high", minimum=8, priority=1), job("low", minimum=3)]

    assert {"high": 0, "low": 4} == workers(plan(jobs, [*nodes(1), *nodes(1, 3, "k")]))
    assert {"high": 8, "low": 0} == workers(plan(jobs, nodes(2)))


def test_who_waits_beyond_its_patience_is_served_and_the_others_shrink() -> None:
    runs = [has(f"r{i}", {f"n{i}": 4}, left=1e3) for i in range(2)]
    late = job("late", left=1e9, waits_since=10.0)

    before = plan([*runs, late], nodes(2), HOUR, "finish")
    after = plan([*runs, late], nodes(2), HOUR + 10, "finish")

    assert 0 == before["late"].shape.workers
    assert 0 < after["late"].shape.workers
    assert all(after[each.name].shape.workers > 0 for each in runs)
    assert "it had waited longest" in after["late"].why


def test_for_the_longest_waiting_who_was_served_most_is_suspended() -> None:
    runs = [
        has(f"r{i}", {"n0": 1}, maximum=1, served_s=served, priority=priority)
        for i, (served, priority) in enumerate([(5e3, 0), (9e3, 0), (7e3, 0), (9e9, 1)])
    ]
    late = [job(name, maximum=1, waits_since=since) for name, since in (("x", 5.0), ("y", 4.0))]

    made = plan([*runs, *late], nodes(1), HOUR * 2)

    assert {"r0": 1, "r1": 0, "r2": 1, "r3": 1, "x": 0, "y": 1} == workers(made)
    suspended = (
        "1 worker -> 0: suspended, its minimum of 1 worker does not fit: there is room for 0"
    )
    assert f"{suspended}; next in line after x" == made["r1"].why


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_who_may_not_be_suspended_keeps_its_minimum_for_whoever_waits(objective: str) -> None:
    runs = has("runs", {"n0": 3}, minimum=2, served_s=9 * HOUR, priority=-1)
    waits = job("waits", minimum=4, maximum=4, waits_since=-3 * HOUR)

    stays = plan([replace(runs, may_be_suspended=False), waits], nodes(1), objective=objective)
    assert workers(stays)["runs"] >= 2
    assert workers(stays)["waits"] == 0
    assert {"runs": 0, "waits": 4} == workers(plan([runs, waits], nodes(1), objective=objective))


def test_a_job_that_no_nodes_hold_stands_in_nobodys_way() -> None:
    """Its server of 3 cores fits beside none of its workers: there are no nodes for the two."""
    wide = Resources(cpu=3)
    odd = job("odd", worker=wide, server=wide, servers=(1,), maximum=1, priority=1)
    machines = [Node("n0", Resources(cpu=4, gpu=4)), Node("n1", Resources(cpu=2, gpu=4))]

    jobs = [odd, job("plain", worker=Resources(cpu=2), maximum=3)]
    for now in (10.0, 2 * HOUR):
        made = plan(jobs, machines, now)

        assert {"odd": 0, "plain": 3} == workers(made)
        assert (
            "its minimum of 1 worker and 1 server does not fit: there is room for 0"
            in made["odd"].why
        )


def test_who_has_waited_longest_and_fits_nowhere_does_not_keep_the_next_from_being_served() -> None:
    two, wide = Resources(cpu=2), Resources(cpu=3)
    odd = job("odd", worker=wide, server=wide, servers=(1,), maximum=1)
    on = {"r0": "n0", "r1": "n0", "r2": "n1"}
    runs = [has(name, {node: 1}, worker=two, maximum=1) for name, node in on.items()]
    machines = [Node("n0", Resources(cpu=4)), Node("n1", Resources(cpu=2))]

    late = job("x", worker=two, maximum=1, waits_since=5.0)
    made = plan([odd, *runs, late], machines, 2 * HOUR)

    assert {"odd": 0, "x": 1} == {name: workers(made)[name] for name in ("odd", "x")}
    assert 3 == sum(workers(made).values())


def test_who_waits_for_what_there_will_never_be_changes_nothing_for_others() -> None:
    small = job("small", left=10.0, minimum=4)
    runs = has("runs", {"n0": 4}, left=1e9)
    never = job("never", minimum=99, maximum=99)

    for others in ([], [never]):
        made = plan([small, runs, *others], nodes(1), HOUR - 1, "finish")
        late = plan(
            [replace(small, submitted=HOUR + 1), runs, *others], nodes(1), 2 * HOUR, "finish"
        )

        assert 4 == made["small"].shape.workers == late["small"].shape.workers


def test_who_runs_goes_on_until_another_has_waited_too_long_or_comes_first() -> None:
    """However soon the other would end, where a suspension takes a master and servers along."""
    small = job("small", left=10.0, minimum=4)
    runs = has("runs", {"n0": 4}, left=1e9, may_move=False)

    soon = plan([small, runs], nodes(1), HOUR - 1, "finish")
    late = plan([small, runs], nodes(1), HOUR + 1, "finish")
    first = plan([replace(small, priority=1), runs], nodes(1), HOUR - 1, "finish")

    assert {"small": 0, "runs": 4} == workers(soon)
    assert {"small": 4, "runs": 0} == workers(late) == workers(first)


def test_room_is_counted_in_whole_workers() -> None:
    """A worker of two GPUs fits once on each node of three, so two jobs get one each."""
    jobs = [job(name, worker=Resources(gpu=2)) for name in "ab"]

    assert {"a": 1, "b": 1} == workers(plan(jobs, nodes(2, gpus=3)))


def test_a_quota_holds_and_is_told() -> None:
    quotas = (
        Quota("a", None, Resources(math.inf, math.inf, 3)),
        Quota("b", None, Resources(math.inf, math.inf, 1)),
    )
    jobs = [
        job("a1", namespace="a", minimum=2),
        job("a2", namespace="a", minimum=2, submitted=1.0),
        job("b1", namespace="b", minimum=2),
        job("c1", namespace="c"),
    ]

    made = plan(jobs, nodes(2), 10.0, "fulfilment", quotas)

    assert {"a1": 2, "a2": 0, "b1": 0, "c1": 4} == workers(made)
    assert "waits: others have what the quota of namespace a allows; next in line" == made["a2"].why
    said = "the quota of namespace b is too small for its minimum of 2 workers"
    assert f"waits: {said}" == made["b1"].why


def test_quotas_that_overlap_hold_too() -> None:
    quotas = (
        Quota("a", None, Resources(math.inf, math.inf, 5)),
        Quota(None, "u", Resources(math.inf, math.inf, 3)),
    )
    jobs = [job("au", namespace="a", user="u"), job("a", namespace="a"), job("u", user="u")]

    made = plan(jobs, nodes(4), quotas=quotas)

    given = workers(made)
    assert given["au"] + given["u"] == 3
    assert given["au"] + given["a"] >= 4


def test_kinds_of_nodes_are_not_mixed_in_a_job() -> None:
    def speed(shape: Shape) -> float:
        return shape.workers * (3.0 if shape.kind == "fast" else 1.0)

    jobs = [job("a", speed=speed), job("b", speed=speed, maximum=2)]

    made = plan(jobs, [*nodes(1, 4, "fast"), *nodes(2, 4, "slow")])

    assert {"a": 8, "b": 2} == workers(made)
    assert ("slow", "fast") == (made["a"].shape.kind, made["b"].shape.kind)


def test_what_it_has_is_kept_where_the_solver_finds_nothing_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(milp, "solve", lambda problem, time_limit_s: None)
    machines = [*nodes(1, 4, "a"), *nodes(1, 4, "b")]
    held = Shape(2, 0, 1, "b")
    jobs = [
        job("old", held=held, workers_on={"bn0": 2}),
        job("new"),
        job("high", priority=1, minimum=3),
    ]

    made = plan(jobs, machines, 100.0)

    assert held == made["old"].shape
    assert {"old": 2, "new": 0, "high": 3} == workers(made)


def test_a_shape_that_fits_nowhere_gives_way_to_the_next_smaller() -> None:
    """Four GPUs are free, of which no node has three."""
    machines = [Node(f"n{i}", Resources(gpu=3)) for i in range(2)]
    pinned = has("p", {"n0": 1, "n1": 1}, is_pinned=True)

    made = plan([pinned, job("a", speed=lambda s: s.workers / s.nodes**3)], machines)

    assert 2 == made["a"].shape.workers
    assert "starts with 2 workers; 3 workers fit on no nodes together" == made["a"].why


def test_reasons_say_what_changes_what_it_costs_and_when_it_ends() -> None:
    def linear(shape: Shape) -> float:
        return 100.0 * shape.workers

    more = {"speed": linear, "resize_s": 3.0, "maximum": 4}
    made = plan([has("a", {"n0": 2}, left=288e3, **more)], nodes(1), 1e4, "finish")
    assert "2 -> 4 workers: 2 times as fast, ends in 12 min; the change costs 3 s" == made["a"].why

    made = plan([has("a", {"n0": 4}, left=288e3, **more)], nodes(1), 1e4, "finish")
    assert "stays at 4 workers: ends in 12 min" == made["a"].why

    late = job("a", left=288e3, deadline=1e4 + 60, submitted=1e4, **more)
    made = plan([late], nodes(1), 1e4, "deadline")
    assert "starts with 4 workers: ends in 12 min; its deadline is missed" == made["a"].why
    made = plan([replace(late, deadline=2e4)], nodes(1), 1e4, "deadline")
    assert made["a"].why.endswith("; its deadline is met")


def test_a_job_that_must_move_is_told_the_price() -> None:
    jobs = [
        has("a", {"n0": 2}, maximum=2, resize_s=30.0),
        job("b", minimum=4, priority=1, maximum=4),
    ]

    made = plan(jobs, [*nodes(1), Node("z", Resources(gpu=2))], 100.0)

    assert {"z": 2} == made["a"].workers_on
    assert "stays at 2 workers; it moves to other nodes, which costs 30 s" == made["a"].why


def test_jobs_with_servers_get_pairs_beside_those_without() -> None:
    core = Resources(cpu=1)
    served = job("ps", worker=core, server=core, servers=(1, 2, 3), maximum=12)
    machines = [Node(f"n{i}", Resources(cpu=8)) for i in range(2)]

    made = plan([served, job("all", worker=core, maximum=16)], machines, 100.0)

    shape = made["ps"].shape
    assert shape.servers == math.ceil(shape.workers / 3)
    assert "servers" in made["ps"].why
    assert 14 <= sum(workers(made).values()) + shape.servers


def test_a_priority_counts_up_to_the_highest_of_its_quotas_and_that_is_told() -> None:
    quotas = (
        Quota("a", None, Resources(math.inf, math.inf, math.inf), priority=1),
        Quota(None, None, Resources(math.inf, math.inf, math.inf), priority=9),
    )
    loud = job("loud", namespace="a", minimum=4, maximum=4, priority=2**31 - 1)
    others = job("others", namespace="b", minimum=4, maximum=4, priority=2)

    made = plan([loud, others], nodes(1), quotas=quotas)

    assert {"loud": 0, "others": 4} == workers(made)
    assert {"loud": 4, "others": 0} == workers(plan([loud, others], nodes(1)))
    said = "; its priority 2147483647 counts as 1, the most by the quota of namespace a"
    assert made["loud"].why.endswith(said)
    assert "counts as" not in made["others"].why
