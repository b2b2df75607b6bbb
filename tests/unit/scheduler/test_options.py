"""The shapes that a job may be given, and what a change of them is worth."""

import math
from dataclasses import replace

import pytest
from tools.plans import GPU, Speed, nodes

from edl.common.errors import UsageError
from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Shape
from edl.scheduler.options import kinds_of, options, worth_of_change

pytestmark = pytest.mark.fast

JOB = Job("a", Speed(), GPU, 0.0, maximum=64)
CORE = Resources(cpu=1)
SERVED = replace(JOB, worker=CORE, server=Resources(cpu=2), servers=(1, 2, 3, 4))


def workers(job: Job, machines: list[Node]) -> list[int]:
    return [shape.workers for shape in options(job, kinds_of(machines)).shapes]


def test_a_job_without_servers_gets_powers_of_two_and_then_whole_nodes() -> None:
    assert [0, 1, 2, 4, 8, 12, 16] == workers(JOB, nodes(4))
    assert [0, 1, 2, 4, 6, 12] == workers(JOB, nodes(2, gpus=6))
    shapes = options(JOB, kinds_of(nodes(4))).shapes
    assert [0, 1, 1, 1, 2, 3, 4] == [shape.nodes for shape in shapes]


def test_minimum_maximum_and_what_it_has_are_among_them() -> None:
    job = replace(JOB, minimum=3, maximum=11, held=Shape(7, 0, 2))

    assert [0, 3, 4, 7, 8, 11] == workers(job, nodes(4))
    assert 3 == options(job, kinds_of(nodes(4))).kept


def test_what_it_has_on_more_nodes_than_it_needs_is_a_shape_of_its_own() -> None:
    table = options(replace(JOB, held=Shape(2, 0, 2)), kinds_of(nodes(2)))

    assert [Shape(2, 0, 1), Shape(2, 0, 2)] == [each for each in table.shapes if each.workers == 2]
    assert table.kept is not None
    assert Shape(2, 0, 2) == table.shapes[table.kept]
    unknown = options(replace(JOB, held=Shape(2)), kinds_of(nodes(2)))
    assert unknown.kept is not None
    assert Shape(2, 0, 1) == unknown.shapes[unknown.kept]


def test_what_it_has_beyond_its_bounds_is_not() -> None:
    assert [0, 1, 2] == workers(replace(JOB, maximum=2, held=Shape(4, 0, 1)), nodes(4))


def test_pairs_with_servers_are_those_that_none_with_as_little_beats() -> None:
    table = options(replace(SERVED, maximum=12), kinds_of([Node("n", Resources(cpu=64))]))

    pairs = [(shape.workers, shape.servers) for shape in table.shapes]
    # A server keeps up with three workers: less than three workers a server is a waste of servers.
    assert [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3)] == pairs[:9]
    assert (12, 4) == pairs[-1]
    assert (12, 1) not in pairs


def test_pairs_are_few() -> None:
    job = replace(SERVED, speed=lambda shape: shape.workers + shape.servers, maximum=200)
    job = replace(job, servers=tuple(range(1, 30)), held=Shape(77, 13))

    table = options(job, kinds_of([Node("n", Resources(cpu=1000))]))

    assert 25 <= len(table.shapes) <= 33
    assert Shape(1, 1, 1) == table.shapes[1]
    assert table.kept is not None
    assert Shape(77, 13) == table.shapes[table.kept]


def test_each_kind_of_nodes_has_its_own_shapes() -> None:
    table = options(JOB, kinds_of([*nodes(1, kind="a"), *nodes(1, 2, "b")]))

    by_kind = {k: [s.workers for s in table.shapes if s.kind == k and s.workers] for k in "ab"}
    assert {"a": [1, 2, 4], "b": [1, 2]} == by_kind


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"minimum": 4, "maximum": 2}, "minimum of 4 workers is above its maximum of 2: give a"),
        ({"minimum": 0}, "minimum is 0: a job needs at least 1 worker"),
        ({"worker": Resources()}, "workers ask for no CPU, memory or GPU: say how much"),
        ({"worker": Resources(cpu=-1)}, "no number of at least 0"),
        ({"servers": ()}, r"numbers of servers are \[\]"),
        ({"servers": (-1,)}, r"numbers of servers are \[-1\]"),
        ({"resize_s": math.nan}, "change of its shape costs nan s"),
        ({"servers_resize_s": -1.0}, "change of its shape costs -1.0 s"),
        ({"left": -1.0}, r"has -1\.0 records left"),
        ({"deadline": math.nan}, "deadline is no time"),
        ({"speed": lambda shape: -1.0}, "predicted speed with 1 worker is -1.0"),
        ({"speed": lambda shape: math.nan}, "predicted speed with 1 worker is nan"),
        ({"speed": lambda shape: 0.0}, "predicted speed is 0 with whatever"),
        ({"speed": lambda shape: [][shape.workers]}, "speed cannot be predicted: list index"),
    ],
)
def test_a_job_that_makes_no_sense_is_told_in_one_sentence(
    wrong: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        options(replace(JOB, **wrong), kinds_of(nodes(1)))
    assert "\n" not in str(caught.value)


def test_a_change_is_worth_what_pollux_says_where_nobody_knows_the_end() -> None:
    job = replace(JOB, held=Shape(2, 0, 1), submitted=100.0, resize_s=30.0, resizes=2)
    table = options(job, kinds_of(nodes(2)))

    worth = worth_of_change(table, 1000.0)

    assert worth.tolist() == pytest.approx([(900 - 60) / 930] * 2 + [1] + [(900 - 60) / 930] * 2)


def test_a_change_is_worth_less_the_nearer_the_end_is() -> None:
    job = replace(JOB, speed=lambda s: float(s.workers), held=Shape(2, 0, 1), resize_s=30.0)

    def gain(left: float, resizes: int = 0) -> float:
        table = options(replace(job, left=left, resizes=resizes), kinds_of(nodes(2)))
        return float((table.speeds * worth_of_change(table, 10_000.0))[3] / table.speeds[2])

    # 2 -> 4 workers: left / 4 + 30 s instead of left / 2
    assert 1 == pytest.approx(gain(120.0))
    assert gain(110.0) < 1 < gain(130.0)
    assert 1.99 < gain(1e6)
    assert gain(1e6, resizes=300) < 0.25 * gain(1e6)


def test_a_change_of_the_servers_is_worth_it_where_it_pays_its_own_price() -> None:
    job = replace(
        JOB,
        speed=lambda s: s.workers * min(4.0, 2.0 * s.servers),
        servers=(1, 2),
        held=Shape(2, 1, 1),
        resize_s=3.0,
        servers_resize_s=20.0,
    )

    def best(left: float) -> Shape:
        table = options(replace(job, left=left, maximum=2), kinds_of(nodes(1)))
        worth = table.speeds * worth_of_change(table, 10_000.0)
        return table.shapes[int(worth.argmax())]

    # 4 -> 8 records/s: left / 8 + 20 s instead of left / 4
    assert Shape(2, 1, 1) == best(150.0)
    assert Shape(2, 2, 1) == best(170.0)
    assert 3.0 == job.price_s(Shape(4, 1, 1))
    assert 20.0 == job.price_s(Shape(4, 2, 1))
    assert 3.0 == replace(job, held=Shape()).price_s(Shape(4, 2, 1))


def test_nothing_is_to_be_paid_by_whoever_has_nothing_or_changes_nothing() -> None:
    table = options(replace(JOB, left=10.0), kinds_of(nodes(1)))
    assert [1.0] * 4 == worth_of_change(table, 50.0).tolist()

    table = options(replace(JOB, held=Shape(4, 0, 1), resize_s=0.0), kinds_of(nodes(1)))
    assert [1.0] * 4 == worth_of_change(table, 50.0).tolist()
