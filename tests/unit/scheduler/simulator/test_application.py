"""Traces are interpolated as Pollux's authors did."""

import re

import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator

from edl.common.errors import UsageError
from edl.goodput import GradParams
from edl.scheduler.simulator.application import Application, Limits, read_applications


def test_bounds_are_those_of_the_tables(toy):
    assert (toy.local_range, toy.batch_range, toy.epochs, toy.replicas) == ((5, 10), (10, 20), 2, 4)
    assert [toy.end_of(0), toy.end_of(1)] == [100, 200]


@pytest.mark.parametrize("local_batch", [5, 6, 7, 10])
def test_within_a_placement_times_are_linear_in_the_local_batch(toy, local_batch):
    expected = (
        np.interp(local_batch, [5, 10], [0.8, 1.3]),
        np.interp(local_batch, [5, 10], [0.3, 0.3]),
    )

    assert toy.step_s((1, 1), local_batch) == pytest.approx(expected)


def test_rotations_of_a_placement_are_one(traces):
    with (traces / "placements.csv").open("a") as file:
        file.write("132,5,2.0,0.7\n132,10,3.0,0.7\n123,5,4.0,0.7\n")
    toy = Application(traces)

    assert toy.step_s((3, 2, 1), 5) == toy.step_s((2, 1, 3), 5) == (2.0, 0.7)
    assert toy.step_s((2, 3, 1), 5) == (4.0, 0.7)


def test_beyond_the_placements_times_are_linear_in_nodes_replicas_and_local_batch(traces):
    def row(*point: int) -> str:
        step_s = 0.1 * point[0] + 0.03 * point[1] + 0.2 * point[2]
        return f"{step_s!r},{step_s / 2!r}\n"

    with (traces / "scalability.csv").open("w") as file:
        file.write("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
        for nodes, replicas in ((6, 6), (6, 24), (16, 16), (16, 64)):
            for local in (5, 10):
                file.write(f"{nodes},{replicas},{local},{row(nodes, replicas, local)}")
    with (traces / "placements.csv").open("w") as file:
        file.write("placement,local_bsz,step_time,sync_time\n")
        for digits in ("1", "4", "1111", "1113", "4444"):
            for local in (5, 10):
                file.write(f"{digits},{local},{row(len(digits), sum(map(int, digits)), local)}")

    step_s, sync_s = Application(traces).step_s((2, 2, 1, 3, 2, 2, 4), 7)

    assert step_s == pytest.approx(0.1 * 7 + 0.03 * 16 + 0.2 * 7)
    assert sync_s == pytest.approx(step_s / 2)


def test_beyond_is_as_scipy_interpolates_the_means_of_placements_that_are_alike(toy, traces):
    with (traces / "placements.csv").open("a") as file:
        file.write("121,5,1.0,0.4\n121,10,2.0,0.4\n112,5,2.0,0.6\n112,10,4.0,0.6\n")
        file.write("1111,5,1.0,0.5\n1111,10,1.0,0.5\n")
    placed = [(1, 1, 0.5, 1.0), (1, 2, 0.6, 1.1), (2, 2, 0.8, 1.3), (3, 4, 1.5, 3.0), (4, 4, 1, 1)]
    farther = [(3, 3, 1.0, 1.5), (3, 6, 1.6, 2.1)]
    points, values = [], []
    for nodes, replicas, five_s, ten_s in placed + farther:
        points += [(nodes, replicas, 5), (nodes, replicas, 10)]
        values += [five_s, ten_s]

    found, _ = Application(traces).step_s((1, 1, 3), 6)

    assert found == pytest.approx(LinearNDInterpolator(points, values)([3, 5, 6])[0])


def test_the_gradient_lies_between_those_of_the_next_batch_sizes(toy):
    assert toy.gradient(10, 0) == GradParams(1, 0)
    assert toy.gradient(16, 1) == pytest.approx(GradParams(1 + 0.6 * 2, 0))


def test_where_the_traces_do_not_reach_one_is_told(toy, traces):
    with pytest.raises(UsageError, match=re.escape(f"{traces}: the traces say nothing of 9")):
        toy.step_s((3, 3, 3), 5)


def test_too_few_rows_to_lie_between_are_told(traces):
    head = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
    (traces / "scalability.csv").write_text(head)
    head = "placement,local_bsz,step_time,sync_time\n"
    (traces / "placements.csv").write_text(head + "1,5,0.5,0\n1,10,1,0\n2,5,0.6,0.1\n")

    with pytest.raises(UsageError, match="scalability.csv and the placements have too few"):
        Application(traces).step_s((3, 3, 3), 5)


def test_limits_narrow_the_tables(traces):
    toy = Application(traces, Limits(local_batch=8, replicas=2, batch=20))

    assert (toy.local_range, toy.replicas, toy.batch) == ((5, 8), 2, 20)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("placements.csv", "placement,local_bsz,step_time\n", "line 1: there is no column 'sync"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n", "has no row"),
        (
            "placements.csv",
            "placement,local_bsz,step_time,sync_time\n1,5,0.5,0\n1x,5,0.5,0\n",
            "line 3: placement is a digit from 1 to 9 for each node, not '1x'",
        ),
        (
            "placements.csv",
            "placement,local_bsz,step_time,sync_time\n1,5,fast,0\n",
            "line 2: step_time is a number of at least 0, not 'fast'",
        ),
        (
            "validation-10.csv",
            "progress,grad_sqr,grad_var\n1,2\n",
            "line 2: the field 'grad_var' is missing",
        ),
        ("validation-10.csv", "progress,grad_sqr,grad_var\n", "has a row for each epoch"),
        ("validation-ten.csv", "progress,grad_sqr,grad_var\n1,2,3\n", "is a batch size by"),
    ],
)
def test_wrong_tables_are_named(traces, name, text, said):
    (traces / name).write_text(text)

    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        Application(traces)

    assert str(traces / name) in str(caught.value)


def test_folders_without_traces_are_told(traces):
    for path in traces.glob("validation-*"):
        path.unlink()
    with pytest.raises(UsageError, match="has no table validation-BATCH.csv"):
        read_applications(traces.parent)
    with pytest.raises(UsageError, match="has no folder of an application"):
        read_applications(traces)
