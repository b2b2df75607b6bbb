"""Workers and servers are put onto few nodes, where they are already if that can be."""

from dataclasses import replace

import pytest
from tools.plans import GPU, Speed, nodes

from edl.scheduler.cluster import Node, Resources
from edl.scheduler.jobs import Job, Shape
from edl.scheduler.placement import Placed, Placement

pytestmark = pytest.mark.fast

JOB = Job("a", Speed(), GPU, 0.0, maximum=64)
CORE = Resources(cpu=1)
SERVED = replace(JOB, worker=CORE, server=Resources(cpu=2), servers=(1, 2))


def other(number: int, workers_on: dict[str, int]) -> Job:
    held = Shape(sum(workers_on.values()), 0, len(workers_on))
    return replace(JOB, name=f"o{number}", held=held, workers_on=workers_on)


def put(job: Job, shape: Shape, machines: list[Node], *fixed: Job) -> Placed | None:
    return Placement(machines, [job, *fixed], fixed).put(job, shape)


def test_the_node_is_taken_on_which_least_stays_free() -> None:
    machines = [Node(f"n{i}", Resources(gpu=free)) for i, free in enumerate((4, 2, 3))]

    assert Placed({"n1": 2}) == put(JOB, Shape(2, 0, 1), machines)
    assert Placed({"n2": 3}) == put(JOB, Shape(3, 0, 1), machines)
    assert put(JOB, Shape(5, 0, 1), machines) is None


def test_as_few_nodes_as_can_be_are_taken() -> None:
    machines = [Node(f"n{i}", Resources(gpu=free)) for i, free in enumerate((1, 4, 2, 4))]

    assert Placed({"n1": 4, "n3": 4}) == put(JOB, Shape(8, 0, 2), machines)
    assert Placed({"n1": 4, "n3": 4, "n0": 1}) == put(JOB, Shape(9, 0, 3), machines)


def test_a_job_lies_on_more_nodes_than_its_shape_says_only_if_it_may() -> None:
    machines = [Node(f"n{i}", Resources(gpu=2)) for i in range(3)]
    placement = Placement(machines, [JOB], [])

    assert placement.put(JOB, Shape(4, 0, 1)) is None
    assert Placed({"n0": 2, "n1": 2}) == placement.put(JOB, Shape(4, 0, 1), spread=True)


def test_what_is_somewhere_stays_there() -> None:
    job = replace(JOB, held=Shape(2, 0, 1), workers_on={"n2": 2})
    assert Placed({"n2": 2}) == put(job, Shape(2, 0, 1), nodes(4))
    assert Placed({"n2": 4}) == put(job, Shape(4, 0, 1), nodes(4))
    assert Placed({"n0": 4, "n2": 4}) == put(job, Shape(8, 0, 2), nodes(4))

    job = replace(JOB, held=Shape(6, 0, 2), workers_on={"n1": 2, "n3": 4})
    assert Placed({"n3": 4}) == put(job, Shape(4, 0, 1), nodes(4))
    assert Placed({"n1": 2, "n3": 4}) == put(job, Shape(6, 0, 2), nodes(4))


def test_it_moves_where_it_would_lie_on_too_many_nodes() -> None:
    job = replace(JOB, held=Shape(2, 0, 1), workers_on={"n0": 2})

    assert Placed({"n1": 4}) == put(job, Shape(4, 0, 1), nodes(2), other(1, {"n0": 2}))


def test_a_large_job_goes_where_others_have_least() -> None:
    small = [other(1, {"n0": 1}), other(2, {"n1": 2}), other(3, {"n2": 1})]
    placement = Placement(nodes(3), [JOB, *small], [])

    assert Placed({"n0": 4, "n2": 4}) == placement.put(JOB, Shape(8, 0, 2))
    assert Placed({"n1": 2}) == placement.put(small[1], Shape(2, 0, 1))
    assert Placed({"n1": 1}) == placement.put(small[0], Shape(1, 0, 1))


def test_two_jobs_that_span_nodes_share_none() -> None:
    spans = other(1, {"n0": 2, "n1": 2})

    assert Placed({"n2": 4, "n3": 2}) == put(JOB, Shape(6, 0, 2), nodes(4), spans)
    assert put(JOB, Shape(6, 0, 2), nodes(3), spans) is None
    assert Placed({"n0": 1}) == put(JOB, Shape(1, 0, 1), nodes(2), spans)


def test_a_job_with_servers_lies_on_one_node_if_it_fits() -> None:
    machines = [Node(f"n{i}", Resources(cpu=free)) for i, free in enumerate((4, 8, 7))]

    assert Placed({"n2": 3}, {"n2": 2}) == put(SERVED, Shape(3, 2, 1), machines)
    assert Placed({"n1": 6}, {"n1": 1}) == put(SERVED, Shape(6, 1, 1), machines)


def test_a_job_with_servers_spans_nodes_and_stays_where_it_is() -> None:
    machines = [Node(f"n{i}", Resources(cpu=4)) for i in range(3)]
    placed = put(SERVED, Shape(6, 2, 1), machines)
    assert placed is not None
    assert (6, 2) == (sum(placed.workers_on.values()), sum(placed.servers_on.values()))

    job = replace(SERVED, held=Shape(3, 1), workers_on={"n0": 1, "n2": 2}, servers_on={"n1": 1})
    grown = put(job, Shape(5, 1, 1), machines)
    assert grown is not None
    assert {"n1": 1} == grown.servers_on
    assert grown.workers_on["n0"] >= 1
    assert grown.workers_on["n2"] >= 2
    assert put(SERVED, Shape(9, 2, 1), machines) is None


def test_only_nodes_of_the_shapes_kind_are_taken() -> None:
    machines = [*nodes(1, 4, "a"), *nodes(1, 2, "b")]

    assert Placed({"bn0": 2}) == put(JOB, Shape(2, 0, 1, "b"), machines)
    assert put(JOB, Shape(4, 0, 1, "b"), machines) is None


def test_what_stays_takes_its_room_and_nothing_of_nodes_that_are_gone() -> None:
    fixed = other(1, {"n0": 3, "gone": 4})
    placement = Placement(nodes(1), [JOB, fixed], [fixed])

    assert 1 == placement.count(GPU)
    assert placement.put(JOB, Shape(2, 0, 1)) is None
    assert Placed({"n0": 1}) == placement.put(JOB, Shape(1, 0, 1))
