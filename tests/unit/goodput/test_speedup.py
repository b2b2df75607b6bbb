"""Speedups: the predecessor's numbers, the fair share, and that the table changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from edl.goodput import GoodputFunction, SpeedupFunction, fair_replicas, linear_speedup

pytestmark = pytest.mark.fast


@pytest.fixture
def bounds(golden):
    return golden.max_batch_size, tuple(golden.atomic_bsz_range), True


@pytest.fixture
def goodput(golden):
    return GoodputFunction(golden.perf, (0.0005, 0.005), golden.init_batch_size)


def test_speedups_are_the_predecessor_s(golden, bounds):
    for grad, place, expected in golden.speedup:
        goodput = GoodputFunction(golden.perf, grad, golden.init_batch_size)

        assert expected == pytest.approx(SpeedupFunction(goodput, *bounds)(*place), rel=1e-7)


def test_speedup_is_best_goodput_over_best_goodput_of_one_replica(goodput, bounds):
    nodes, replicas = np.array([[1], [3]]), np.array([3, 31, 32, 200])
    best, one = goodput.optimize(nodes, replicas, *bounds)[0], goodput.optimize(1, 1, *bounds)[0]
    speedup = SpeedupFunction(goodput, *bounds)

    assert (best / one).tolist() == pytest.approx(speedup(nodes, replicas), rel=1e-12)


def test_speedup_over_the_fair_share_is_1_there(goodput, bounds):
    """Section 4.2: SPEEDUP(A) = max GOODPUT(A) / max GOODPUT(a_f), a_f the fair share."""
    fair = fair_replicas({"gpu": 1}, {"gpu": 64}, num_jobs=16)
    speedup = SpeedupFunction(goodput, *bounds, base=(1, fair))
    over_one = SpeedupFunction(goodput, *bounds)

    assert (4, 1.0) == (fair, speedup(1, fair))
    assert over_one(4, 16) / over_one(1, 4) == pytest.approx(speedup(4, 16), rel=1e-12)


@pytest.mark.parametrize(
    ("requests", "totals", "num_jobs", "expected"),
    [
        ({"gpu": 1}, {"gpu": 48}, 16, 3),  # 1 / (1 / 48 * 16) is more than 3 in floats
        ({"gpu": 1}, {"gpu": 64}, 5, 13),
        ({"gpu": 1}, {"gpu": 64}, 160, 1),
        ({"gpu": 1, "cpu": 8}, {"gpu": 64, "cpu": 192}, 2, 12),
        ({"cpu": 0.7, "gpu": 0}, {"cpu": 2.1}, 1, 3),  # 2.1 / 0.7 is more than 3 in floats
    ],
)
def test_fair_share_is_rounded_up_and_the_scarcest_resource_s(requests, totals, num_jobs, expected):
    """Section 4.2: a_f is 1 / J of the cluster. R_f = ceil(1 / (J * max of request / total))."""
    assert expected == fair_replicas(requests, totals, num_jobs)


@pytest.mark.parametrize(
    ("requests", "totals", "num_jobs", "said"),
    [
        ({"gpu": 2}, {"gpu": 1}, 1, "needs 2 of gpu, the cluster has 1"),
        ({"gpu": 2}, {"cpu": 1}, 1, "needs 2 of gpu, the cluster has 0"),
        ({}, {"cpu": 1}, 1, "at least one resource"),
        ({"gpu": 1}, {"gpu": 1}, 0, "at least one job, not 0"),
    ],
)
def test_a_fair_share_that_there_is_not_is_refused(requests, totals, num_jobs, said):
    with pytest.raises(ValueError, match=said):
        fair_replicas(requests, totals, num_jobs)


def test_nothing_on_nothing_is_no_speedup(goodput, bounds):
    speedup = SpeedupFunction(goodput, *bounds)

    assert 0.0 == speedup(0, 0)
    assert [0.0, 1.0] == speedup(np.array([0, 1]), np.array([0, 1])).tolist()


def test_no_jobs_have_no_speedups(goodput, bounds):
    nothing = np.zeros(0, int)

    assert (0,) == SpeedupFunction(goodput, *bounds)(nothing, nothing).shape


def test_numbers_give_numbers(goodput, bounds):
    assert float is type(SpeedupFunction(goodput, *bounds)(2, 4))


def test_a_speedup_is_computed_once(goodput, bounds, monkeypatch):
    asked = []
    optimize = goodput.optimize
    monkeypatch.setattr(goodput, "optimize", lambda *a: asked.append(a) or optimize(*a))
    speedup = SpeedupFunction(goodput, *bounds)
    speedup(2, 100)
    before = len(asked)

    for nodes, replicas in ((1, 1), (1, 127), (100, 127), (0, 0)):
        speedup(nodes, replicas)

    assert before == len(asked)


@pytest.mark.parametrize(
    ("nodes", "replicas", "said"),
    [
        (2, 1, "not num_nodes=2, num_replicas=1"),
        (0, 1, "not num_nodes=0, num_replicas=1"),
        (1, 0, "not num_nodes=1, num_replicas=0"),
        (np.array([1, -1]), np.array([1, -1]), "not num_nodes=-1, num_replicas=-1"),
        (1.0, 2.5, "whole numbers, not float64"),
    ],
)
def test_an_allocation_that_there_is_not_is_refused(goodput, bounds, nodes, replicas, said):
    with pytest.raises(ValueError, match=said):
        SpeedupFunction(goodput, *bounds)(nodes, replicas)


def test_a_job_of_which_nothing_is_known_is_as_fast_as_its_replicas():
    assert 4.0 == linear_speedup(2, 4)
    assert [0.0, 3.0] == linear_speedup(np.array([0, 1]), np.array([0, 3])).tolist()
