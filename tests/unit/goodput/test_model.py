"""Goodput: against the paper's formulas in plain floats, and the predecessor's numbers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edl.goodput import GoodputFunction, GradParams, PerfParams

pytestmark = pytest.mark.fast

PERF = PerfParams(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)
NOISY = GradParams(sqr=0.0005, var=0.005)
PLACES = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 8), (5, 16)]

times_s = st.floats(1e-6, 10.0)
perfs = st.tuples(*[times_s] * 6, st.floats(1.0, 10.0))
moments = st.floats(0.0, 1e6)


@pytest.fixture
def goodput(golden):
    return GoodputFunction(golden.perf, golden.grad, golden.init_batch_size)


def test_efficiency_is_the_predecessor_s(goodput, golden):
    batches, expected = zip(*golden.efficiency, strict=True)

    assert list(expected) == pytest.approx(goodput.efficiency(batches), rel=1e-7)


def test_throughput_is_the_predecessor_s(goodput, golden):
    found = [goodput.throughput(*where) for where, _ in golden.throughput]

    assert [expected for _, expected in golden.throughput] == pytest.approx(found, rel=1e-7)


def test_goodput_is_the_predecessor_s(goodput, golden):
    found = [goodput(*where) for where, _ in golden.goodput]

    assert [expected for _, expected in golden.goodput] == pytest.approx(found, rel=1e-7)


def test_best_batch_sizes_are_the_predecessor_s(golden):
    bounds = golden.max_batch_size, tuple(golden.atomic_bsz_range)
    for grad, accumulation, place, expected in golden.optimize:
        goodput = GoodputFunction(golden.perf, grad, golden.init_batch_size)

        assert expected == pytest.approx(goodput.optimize(*place, *bounds, accumulation), rel=1e-7)


@given(
    perf=perfs, place=st.sampled_from(PLACES), atomic=st.integers(1, 4096), accum=st.integers(0, 9)
)
def test_throughput_is_the_total_batch_over_the_time_of_a_step(oracle, perf, place, atomic, accum):
    goodput = GoodputFunction(perf, (0, 1), 1)

    assert oracle.throughput(perf, *place, atomic, accum) == pytest.approx(
        goodput.throughput(*place, atomic, accum), rel=1e-9
    )


@given(
    grad=st.tuples(st.floats(1e-6, 1e6), moments), init=st.integers(1, 512), scale=st.floats(1, 1e4)
)
def test_efficiency_is_phi_and_the_initial_batch_over_phi_and_the_batch(oracle, grad, init, scale):
    batch = init * scale
    goodput = GoodputFunction(PERF, grad, init)

    assert oracle.efficiency(grad, init, batch) == pytest.approx(
        goodput.efficiency(batch), rel=1e-9
    )


@given(grad=st.tuples(moments, moments), init=st.integers(1, 512))
def test_efficiency_is_1_at_first_and_never_grows_nor_reaches_0(grad, init):
    """Section 3.1: EFFICIENCY is relative to M0, 0 < EFFICIENCY(M) <= 1 for all M >= M0."""
    batches = init * np.geomspace(1, 1e4, 200)

    found = GoodputFunction(PERF, grad, init).efficiency(batches)

    assert 1.0 == found[0]
    assert (found > 0).all()
    assert (np.diff(found) <= 0).all()


@given(perf=perfs, place=st.sampled_from(PLACES[1:]), atomic=st.integers(1, 4096))
def test_a_step_lasts_from_the_longer_part_to_the_sum_of_both(oracle, perf, place, atomic):
    """Section 3.2: gamma = 1 is T_grad + T_sync; to infinity, max(T_grad, T_sync)."""
    grad_s, sync_s = oracle.pass_s(perf, *place, atomic)[0], oracle.sync_s(perf, *place)
    total = place[1] * atomic
    whole = GoodputFunction((*perf[:6], 1.0), (0, 1), 1).throughput(*place, atomic, 0)
    overlapped = GoodputFunction((*perf[:6], 1e6), (0, 1), 1).throughput(*place, atomic, 0)

    assert [grad_s + sync_s, max(grad_s, sync_s)] == pytest.approx(
        [total / whole, total / overlapped], rel=1e-5
    )


def test_times_far_apart_neither_underflow_nor_overflow():
    perf = PerfParams(1e-40, 0.0, 1e40, 0.0, 1e-200, 0.0, 10.0)
    goodput = GoodputFunction(perf, (0, 1), 1)

    found = [goodput.throughput(2, 2, 1, 0), goodput.throughput(1, 2, 1, 0)]

    assert [2e-40, 2e40] == pytest.approx(found)


def test_without_statistics_every_batch_size_is_as_efficient():
    assert 1.0 == GoodputFunction(PERF, (0, 1), 128).efficiency(12800)


def test_a_gradient_of_nothing_gains_nothing_by_a_larger_batch():
    assert 0.25 == GoodputFunction(PERF, (0, 0), 128).efficiency(512)


def test_numbers_give_numbers_and_arrays_broadcast(goodput):
    nodes, replicas = np.array([[1], [2]]), np.array([2, 4, 8])

    evaluated = goodput.evaluate(nodes, replicas, 128, 0)
    best = goodput.optimize(nodes, replicas, 1280)
    one = goodput.optimize(2, 4, 1280)

    assert [float, float, int, int] == [type(goodput(1, 2, 64, 0)), *map(type, one)]
    assert [(2, 3)] * 4 == [each.shape for each in (evaluated, *best)]
    assert one == tuple(each[1, 1] for each in best)
    assert goodput.optimize(1, 4, 1280) == tuple(each[0, 1] for each in best)
    assert goodput(2, 8, 128, 0) == evaluated[1, 2]


def brute_force(oracle, perf, grad, init, place, most, span, accumulation):
    """Section 4.1, eqn 13 over 50 total batch sizes in equal ratios, one at a time.

    Returns the candidates (goodput, m, s) and the total up to which each is rounded up.
    """
    nodes, replicas = place
    low, high = span
    least = max(init, low * replicas)
    found = []
    for number in range(50):
        local = (
            math.exp(math.log(least) + number / 49 * (math.log(most) - math.log(least))) / replicas
        )
        if accumulation:
            accum = max(math.ceil(local / high - 1e-8) - 1, 0)
            if replicas == 1 and local > init + 1e-8:
                accum = max(accum, 1)
            atomic = math.ceil(local / (accum + 1) - 1e-8)
        else:
            accum, atomic = 0, init if replicas == 1 else math.ceil(local - 1e-8)
        atomic = min(max(atomic, low), high)
        total = replicas * atomic * (accum + 1)
        rate = oracle.throughput(perf, nodes, replicas, atomic, accum)
        found.append((rate * oracle.efficiency(grad, init, total), atomic, accum))
    within = [each for each in found if replicas * (each[1] - 1) * (each[2] + 1) < most]
    return max(within or found)


@given(
    perf=perfs,
    grad=st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
    init=st.integers(1, 300),
    place=st.sampled_from(PLACES),
    grows=st.integers(1, 40),
    span=st.tuples(st.integers(1, 64), st.integers(1, 8)),
    accumulation=st.booleans(),
)
def test_best_batch_size_is_that_of_brute_force(
    oracle, perf, grad, init, place, grows, span, accumulation
):
    most, low, high = init * grows, span[0], span[0] * span[1]
    assume(accumulation or place[1] * high >= init)
    assume(accumulation or place[1] > 1 or high >= init)
    goodput = GoodputFunction(perf, grad, init)

    found, atomic, accum = goodput.optimize(*place, most, (low, high), accumulation)

    expected, *_ = brute_force(oracle, perf, grad, init, place, most, (low, high), accumulation)
    assert expected == pytest.approx(found, rel=1e-9)
    assert goodput(*place, atomic, accum) == pytest.approx(found, rel=1e-12)
    assert low <= atomic <= high
    assert init <= place[1] * atomic * (accum + 1)
    assert place[1] * (atomic - 1) * (accum + 1) < most or atomic == low
    assert accumulation or accum == 0


@pytest.mark.parametrize("most", [128, 1000, 12800])
def test_one_replica_without_accumulation_keeps_the_initial_batch_size(most):
    """Section 4.3, and AdaptDL: noise is measured without bias between passes only."""
    goodput = GoodputFunction(PERF, NOISY, 128)

    assert (128, 0) == goodput.optimize(1, 1, most, (1, 12800))[1:]


def test_one_replica_with_accumulation_grows_by_passes_of_its_memory():
    goodput = GoodputFunction(PERF._replace(alpha_c=1.0), (1e-6, 1.0), 128)

    _, atomic, accum = goodput.optimize(1, 1, 1280, (64, 256), accumulation=True)

    assert accum >= 1
    assert 64 <= atomic <= 256
    assert 128 < atomic * (accum + 1)


def test_noisier_gradients_never_want_a_smaller_batch():
    """Section 3.1: the larger phi, the more a larger batch is worth."""
    totals = []
    for noise in np.geomspace(1e-3, 1e3, 13):
        _, atomic, _ = GoodputFunction(PERF, (1.0, noise), 128).optimize(2, 8, 12800)
        totals.append(8 * atomic)

    assert sorted(totals) == totals
    assert totals[0] < totals[-1]


def test_best_goodput_is_that_of_no_batch_size_beyond_the_largest():
    """65 examples in two passes of at least 60 would be 120, and pay: T_sync is long here."""
    goodput = GoodputFunction(PERF._replace(alpha_r=100.0), (1e-6, 1.0), 60)

    assert (64, 0) == goodput.optimize(1, 2, 130, (60, 64), accumulation=True)[1:]


def test_more_replicas_than_the_largest_batch_has_passes_get_the_lower_end():
    goodput = GoodputFunction(PERF, NOISY, 128)

    assert (64, 0) == goodput.optimize(4, 32, 1280, (64, 256))[1:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 1, 128, 0), "num_nodes=0"),
        ((2, 1, 128, 0), "at least one replica on each, not num_nodes=2, num_replicas=1"),
        ((1, math.nan, 128, 0), "num_replicas=nan"),
        ((1, [1, 2], [128, 0], 0), "atomic batch size is at least 1, not atomic_bsz=0"),
        ((1, 1, 128, -1), "accum_steps=-1"),
        ((1, 1, 64, 0), "at least the initial one of 128, not batch_size=64"),
        ((1, [2, 3, 4], [64, 42, 32], 0), "batch_size=126"),
    ],
)
def test_a_step_that_there_is_not_is_refused(goodput, arguments, said):
    with pytest.raises(ValueError, match=said):
        goodput(*arguments)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((64,), "largest batch size is at least the initial one of 128, not 64"),
        ((1280, (0, 64)), "not 0 to 64"),
        ((1280, (65, 64)), "not 65 to 64"),
        (
            (1280, (None, 64)),
            "atomic batch sizes of at most 64 do not add up .* allow accumulation",
        ),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(goodput, bounds, said):
    with pytest.raises(ValueError, match=said):
        goodput.optimize(1, 1, *bounds)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"beta_n": -1e-9}, "at least 0 s"),
        ({"alpha_r": math.inf}, "finite"),
        ({"alpha_c": 0.0, "beta_c": 0.0}, "a pass takes more than 0 s"),
        ({"gamma": 0.9}, "gamma is at least 1"),
    ],
)
def test_impossible_times_are_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        GoodputFunction(PERF._replace(**changed), NOISY, 128)


@pytest.mark.parametrize("grad", [(-1.0, 1.0), (1.0, math.nan)])
def test_impossible_statistics_are_refused(grad):
    with pytest.raises(ValueError, match="finite and at least 0"):
        GoodputFunction(PERF, grad, 128)


@pytest.mark.parametrize("init", [0, 1.5, math.inf])
def test_an_initial_batch_size_is_a_whole_number(init):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        GoodputFunction(PERF, NOISY, init)


def test_all_can_be_asked_without_torch_and_scipy():
    code = (
        "import sys; from edl.goodput import SpeedupFunction, GoodputFunction; "
        "SpeedupFunction(GoodputFunction((1,) * 7, (0, 1), 8))(1, 4); "
        "sys.exit(str({'torch', 'scipy'} & set(sys.modules) or ''))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )

    assert "" == done.stderr.strip()


def test_parameters_have_the_predecessor_s_names_and_order():
    names = "alpha_c beta_c alpha_n beta_n alpha_r beta_r gamma"

    assert (tuple(names.split()), ("sqr", "var")) == (PerfParams._fields, GradParams._fields)
