"""The fit of the model of a step: gradient, planted parameters, priors, few rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from tools.turns import examples

from edl.goodput import PerfParams, fit_perf_params
from edl.goodput.fit import LEAST, MOST_GAMMA, objective, rows_of

pytestmark = pytest.mark.fast

PLACES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 8), (4, 16), (8, 32)]
PLANTED = PerfParams(0.05, 0.001, 0.06, 0.004, 0.02, 0.002, 1.5)


def measured(oracle, perf, places=PLACES, sizes=(16, 32, 64), noise=0.0):
    """Return columns of rows as a job under these parameters would measure them."""
    random = np.random.default_rng(0)
    rows = [
        (*place, size, *(s * math.exp(random.normal(0, noise)) for s in made))
        for place in places
        for size in sizes
        for made in [oracle.pass_s(perf, *place, size)]
    ]
    return np.array(rows).T


def plain_objective(oracle, perf, columns):
    """Section 4.1: the RMSLE between prediction and measurement of both passes, and the priors."""
    pairs = [
        [
            (math.log(predicted) - math.log(seen)) ** 2
            for predicted, seen in zip(oracle.pass_s(perf, *row[:3]), row[3:], strict=True)
        ]
        for row in zip(*columns, strict=True)
    ]
    _, _, alpha_n, beta_n, alpha_r, beta_r, gamma = perf
    errors = sum(math.sqrt(sum(column) / len(pairs)) for column in zip(*pairs, strict=True))
    ratios = (beta_n / alpha_n) ** 2 + (beta_r / alpha_r) ** 2
    return errors + 1e-3 * (gamma - 1) ** 2 + 1e-2 * ratios


@pytest.fixture
def columns(oracle):
    return measured(oracle, PLANTED, noise=0.1)


def test_objective_is_that_of_the_paper(oracle, columns):
    for perf in (PLANTED, (0.3, 0.002, 0.01, 0.03, 0.04, 0.001, 4.0)):
        found, _ = objective(np.array(perf), rows_of(*columns))

        assert plain_objective(oracle, perf, columns) == pytest.approx(found, rel=1e-12)


@settings(max_examples=examples(50))
@given(
    theta=st.tuples(*[st.floats(0.01, 1.0)] * 6, st.floats(1.01, 9.9)),
    rounding=st.sampled_from([0.0, 0.1]),
)
def test_gradient_is_that_of_finite_differences(oracle, theta, rounding):
    rows = rows_of(*measured(oracle, PLANTED, noise=0.1))

    _, found = objective(np.array(theta), rows, rounding)

    expected = approx_fprime(
        np.array(theta), lambda moved: objective(moved, rows, rounding)[0], 1e-7
    )
    assert list(expected) == pytest.approx(list(found), rel=1e-3, abs=1e-4)


def test_gradient_at_a_perfect_fit_of_one_replica_is_finite(oracle):
    perf = (0.05, 0.001, *[LEAST] * 4, 1.0)
    rows = rows_of(*measured(oracle, perf, [(1, 1)]))

    value, gradient = objective(np.array(perf), rows)

    assert math.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "planted",
    [
        PLANTED,
        PLANTED._replace(gamma=1.0),
        PLANTED._replace(gamma=3.0),
        PerfParams(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)._replace(beta_n=0.002),
        PerfParams(5e-4, 2e-6, 4e-4, 2e-5, 2e-4, 1e-5, 1.6),  # small model, fast network
        PerfParams(8.0, 0.05, 20.0, 0.5, 6.0, 0.4, 1.2),  # large one, slow
    ],
)
def test_planted_parameters_are_recovered_within_10_percent(oracle, planted):
    columns = measured(oracle, planted, sizes=(32, 128, 512))

    assert list(planted) == pytest.approx(list(fit_perf_params(*columns)), rel=0.1)


def test_measurements_with_noise_are_predicted_within_10_percent(oracle):
    """Pollux reports an error of its throughput model of at most 10 %."""
    columns = measured(oracle, PLANTED, noise=0.05)

    found = fit_perf_params(*columns)

    for place in PLACES:
        assert oracle.pass_s(PLANTED, *place, 48) == pytest.approx(
            oracle.pass_s(found, *place, 48), rel=0.1
        )


def test_the_predecessor_s_rows_are_explained_no_worse_than_by_its_own_fit(oracle, golden):
    for _, columns, theirs in golden.fit:
        ours, theirs = (
            plain_objective(oracle, _minimised(perf, columns), columns)
            for perf in (fit_perf_params(*columns), theirs)
        )

        assert ours <= theirs + 1e-4  # of the logarithm of a time


def _minimised(perf, columns):
    """Return the parameters without what is said of several nodes where one was measured."""
    perf = PerfParams(*perf)
    return perf if max(columns[0]) > 1 else perf._replace(alpha_n=LEAST, beta_n=LEAST)


def test_fit_of_the_predecessor_s_rows_finds_what_was_planted(golden):
    _, columns, theirs = golden.fit[0]

    found = list(fit_perf_params(*columns))

    assert golden.planted == pytest.approx(found, rel=0.01)
    assert theirs == pytest.approx(found, rel=0.01)


def test_one_row_is_fitted_as_by_the_predecessor(golden):
    _, columns, theirs = golden.fit[1]

    assert theirs == pytest.approx(list(fit_perf_params(*columns)), rel=1e-2)


def test_one_batch_size_is_half_constant(oracle):
    """One size says nothing of T_grad = alpha + beta * m but its sum: alpha_c = mean(a) / 2."""
    columns = measured(oracle, PLANTED, sizes=(64,))

    found = fit_perf_params(*columns)

    grad_s = 0.05 + 0.001 * 64
    assert [grad_s / 2, grad_s / 2 / 64] == pytest.approx([found.alpha_c, found.beta_c], rel=1e-3)
    assert oracle.pass_s(PLANTED, 4, 16, 64) == pytest.approx(
        oracle.pass_s(found, 4, 16, 64), rel=0.05
    )


def test_one_node_tells_the_least_of_several(oracle):
    """Section 4.1: parameters of what a job has not used are 0; several nodes are no faster."""
    columns = measured(oracle, PLANTED, [place for place in PLACES if place[0] == 1])

    found = fit_perf_params(*columns)

    assert [PLANTED.alpha_r, PLANTED.beta_r] == pytest.approx(
        [found.alpha_r, found.beta_r], rel=0.1
    )
    assert [1.1 * found.alpha_r, 1.1 * found.beta_r] == pytest.approx([found.alpha_n, found.beta_n])


def test_several_nodes_tell_nothing_of_one(oracle):
    columns = measured(oracle, PLANTED, [place for place in PLACES if place[0] > 1])

    found = fit_perf_params(*columns)

    assert [LEAST, LEAST] == pytest.approx([found.alpha_r, found.beta_r])
    assert [PLANTED.alpha_n, PLANTED.beta_n] == pytest.approx(
        [found.alpha_n, found.beta_n], rel=0.1
    )


def test_two_replicas_tell_nothing_of_more(oracle):
    """Section 4.1: with at most two replicas used, the cost of each further one is 0."""
    columns = measured(oracle, PLANTED, [(1, 1), (1, 2), (2, 2)])

    found = fit_perf_params(*columns)

    assert [LEAST, LEAST] == pytest.approx([found.beta_n, found.beta_r])
    assert oracle.pass_s(PLANTED, 2, 2, 64) == pytest.approx(
        oracle.pass_s(found, 2, 2, 64), rel=0.05
    )


def test_one_replica_synchronises_in_no_time_anywhere(oracle):
    """Section 4.1: a job that has used one GPU only is taken to scale perfectly."""
    found = fit_perf_params(*measured(oracle, PLANTED, [(1, 1)]))

    assert [PLANTED.alpha_c, PLANTED.beta_c] == pytest.approx(
        [found.alpha_c, found.beta_c], rel=0.01
    )
    assert max(found[2:6]) <= 1.1 * LEAST * (1 + 1e-12)


def test_rows_that_are_equal_are_as_one():
    one = fit_perf_params(1, 2, 64, 0.1, 0.12)

    assert list(one) == pytest.approx(list(fit_perf_params([1] * 9, 2, 64, 0.1, 0.12)), rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES),
            st.integers(1, 4096),
            st.floats(1e-6, 1e3),
            st.floats(1e-6, 1e3),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_rows_give_parameters_within_their_bounds(rows):
    columns = zip(*[(*place, *rest) for place, *rest in rows], strict=True)

    found = fit_perf_params(*columns)

    assert all(math.isfinite(value) for value in found)
    assert min(found[:6]) >= LEAST * (1 - 1e-9)
    assert 1 <= found.gamma <= MOST_GAMMA


@pytest.mark.parametrize("time_s", [0.0, -0.1, math.nan, math.inf])
def test_times_that_nothing_takes_are_refused(time_s):
    for columns in (([1, 1], [1, 1], 64, [0.1, time_s], 0.1), (1, 1, 64, 0.1, time_s)):
        with pytest.raises(
            ValueError, match=f"a measured time is above 0 s.*, not time_s={time_s:g}"
        ):
            fit_perf_params(*columns)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (([], [], [], [], []), "at least one row"),
        (([1, 1], [1, 1, 1], 64, 0.1, 0.1), "do not fit together"),
        ((2, 1, 64, 0.1, 0.1), "at least one replica on each"),
        ((1, 1, 0, 0.1, 0.1), "atomic batch size is at least 1"),
    ],
)
def test_rows_that_there_are_not_are_refused(columns, said):
    with pytest.raises(ValueError, match=said):
        fit_perf_params(*columns)
