"""The noise of gradients, on numbers alone. Golden values: AdaptDL's own functions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tools.noise import mean, multi_sample, smoothed, squared

from edl.adaptive.inner_products import Precondition, inner_product
from edl.adaptive.noise_estimator import EVERY, NoiseEstimator, gain, is_due

GOLDEN = [[[1.0, 2.0, 0.0]], [[3.0, 0.0, -1.0]]]


def observed(gradients, scale, **more):
    """Return an estimator that has seen these gradients."""
    estimator = NoiseEstimator()
    local, total = np.mean([squared(g) for g in gradients]), squared(mean(gradients))
    estimator.observe([local], [total], count=len(gradients), scale=scale, **more)
    return estimator


def test_two_micro_gradients_give_the_golden_values():
    """McCandlish et al., appendix A.1: from the lengths of small and large batches' gradients."""
    estimator = observed(GOLDEN, scale=2)

    assert (3.0, 4.5) == (estimator.sqr, estimator.var) == multi_sample(GOLDEN, 2)


def test_two_steps_in_a_row_give_the_product_and_half_the_distance_of_their_gradients():
    one, two = np.array(GOLDEN[0][0]), np.array(GOLDEN[1][0])

    estimator = observed(GOLDEN, scale=2 * 1.0, biased=True)

    assert (one @ two, np.sum((one - two) ** 2) / 2) == (estimator.sqr, estimator.var)


def test_estimates_are_averaged_by_0_999_for_each_initial_batch_without_bias():
    sqr = [3.0, 1.0, 2.0]
    scales = [1.0, 4.0, 2.0]
    estimator = NoiseEstimator()
    for value, scale in zip(sqr, scales, strict=True):
        estimator.observe([value + 1], [value + 0.5], count=2, scale=scale)

    assert smoothed(sqr, [0.999**s for s in scales]) == pytest.approx(estimator.raw_sqr[0])
    assert smoothed(scales, [0.999**s for s in scales]) / 2 == pytest.approx(estimator.raw_var[0])


def test_a_step_that_stands_for_several_makes_the_others_as_much_older():
    estimator = NoiseEstimator()
    estimator.observe([2.0], [2.0], count=2, scale=1.0)
    estimator.observe([4.0], [4.0], count=2, scale=1.0, steps=100)

    assert smoothed([2.0, 4.0], [0.999, 0.999**100]) == pytest.approx(estimator.raw_sqr[0])


def test_a_step_of_several_gradients_forgets_what_came_from_different_steps():
    estimator = observed([[[1.0]], [[9.0]]], scale=2, biased=True)
    was = estimator.biased
    estimator.observe([7.5], [5.25], count=2, scale=2)

    assert (True, False, (3.0, 4.5)) == (was, estimator.biased, (estimator.sqr, estimator.var))


def test_gradients_of_different_steps_join_those_of_one():
    estimator = observed(GOLDEN, scale=2)
    estimator.observe([2.0], [2.0], count=2, scale=2, biased=True)

    assert smoothed([3.0, 2.0], [0.999**2] * 2) == pytest.approx(estimator.sqr)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(bad):
    estimator = observed(GOLDEN, scale=2)
    before = estimator.state_dict()

    assert not estimator.observe([1.0], [bad], count=2, scale=1.0)
    assert before == estimator.state_dict()


def test_nothing_known_is_a_gradient_of_length_one_without_noise():
    assert (1.0, 1e-6) == (NoiseEstimator().sqr, NoiseEstimator().var)


def test_groups_are_floored_before_they_are_added_up():
    estimator = NoiseEstimator(2)
    estimator.observe([4.0, 1.0], [1.0, 1.0], count=2, scale=1.0)  # sqr -2 and 1, var 3 and 0

    assert (1.0, 3.0 + 1e-6) == (estimator.sqr, estimator.var)


def test_other_groups_begin_anew():
    estimator = observed(GOLDEN, scale=2)
    estimator.observe([1.0, 2.0], [1.0, 2.0], count=2, scale=1.0)

    assert [1.0, 2.0] == pytest.approx(estimator.raw_sqr)


def test_an_estimator_comes_back_from_its_state():
    one, two = observed(GOLDEN, scale=2), NoiseEstimator()
    two.load_state_dict(one.state_dict())
    for estimator in (one, two):
        estimator.observe([1.0], [0.5], count=4, scale=8.0)

    assert one.state_dict() == two.state_dict()


@pytest.mark.parametrize("replicas", [2, 8])
def test_estimates_converge_to_the_planted_noise(replicas):
    """McCandlish et al., appendix A.1: the estimates of |G|^2 and tr(Sigma) are unbiased."""
    random = np.random.default_rng(replicas)
    true, deviation, scale = random.normal(size=100), 3.0, 2.0  # of a gradient of M0 examples
    estimator = NoiseEstimator()
    for _ in range(1500):
        micro = deviation * (replicas / scale) ** 0.5  # so that n of them are 2 x M0
        gradients = [[true + micro * random.normal(size=100)] for _ in range(replicas)]
        local, total = np.mean([squared(g) for g in gradients]), squared(mean(gradients))
        estimator.observe([local], [total], count=replicas, scale=scale)

    assert (true @ true, 100 * deviation**2) == pytest.approx(
        (estimator.sqr, estimator.var), rel=0.1
    )


def weights_of(theta, samples):
    """Return the weights of so many figures in their exponential average, the last the largest."""
    weights = theta ** np.arange(samples)[::-1]
    return weights / weights.sum()


def test_estimates_of_few_steps_and_of_all_differ_by_their_standard_error():
    """Measuring fewer steps of a stationary stream brings no bias, only the variance of fewer
    figures.

    With weights w and v of the steps in the two estimates, the variance of their difference is
    sum((w - v)^2) times that of a single step's.
    """
    random = np.random.default_rng(0)
    steps, every, streams = 3000, EVERY, 100
    all_of, some_of = NoiseEstimator(streams), NoiseEstimator(streams)  # each a group
    single = []
    for step in range(steps):
        pairs = 0.5 + random.normal(size=(2, streams, 8))
        local, total = (pairs**2).sum(2).mean(0), (pairs.mean(0) ** 2).sum(1)
        single.append([2 * total - local, local - total])
        all_of.observe(local, total, count=2, scale=1.0)
        if step % every == 0:
            some_of.observe(local, total, count=2, scale=1.0, steps=every)
    missing = weights_of(0.999, steps)
    missing[::every] -= weights_of(0.999**every, len(missing[::every]))
    error = np.std(single, axis=(0, 2)) * np.sum(missing**2) ** 0.5
    z_scores = np.subtract([some_of.raw_sqr, some_of.raw_var], [all_of.raw_sqr, all_of.raw_var])
    z_scores /= error[:, None]

    assert [0.0, 0.0] == pytest.approx(z_scores.mean(1), abs=3 / streams**0.5)
    assert [1.0, 1.0] == pytest.approx(z_scores.std(1), abs=3 / (2 * streams) ** 0.5)


@pytest.mark.parametrize("scale", [1, 2, 4, 8, 16, 32, 64])
def test_as_many_figures_count_as_if_every_step_of_32_initial_batches_were_measured(scale):
    """Pollux, table 1: its workloads use batches of up to 32 to 128 initial ones, smoothed by
    0.999^S.
    """

    def counting(theta):  # 1 / sum(w^2), of weights that add up to 1
        return 1 / np.sum(weights_of(theta, 10**5) ** 2)

    due = [step for step in range(1000, 1100) if is_due(step, 64, scale, EVERY)]
    (period,) = set(np.diff(due))

    assert counting(0.999 ** max(32, scale)) == pytest.approx(counting(0.999 ** (scale * period)))


def test_the_gain_has_its_golden_values():
    assert [1.0, 1.5, 2.0, 8 / 3] == pytest.approx([gain(0.5, 1.0, s) for s in (1, 2, 4, 16)])


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1, 1e6))
def test_the_gain_lies_between_one_and_the_scale(sqr, var, scale):
    """AdaScale, section 3: the gain ratio is never below 1 and never above S."""
    assert 1 - 1e-9 <= gain(sqr, var, scale) <= scale * (1 + 1e-9)


def test_without_noise_a_larger_batch_is_worth_nothing_and_with_noise_alone_everything():
    found = [gain(*of, 8) for of in [(1.0, 0.0), (0.0, 1.0), (-1.0, 1.0)]]

    assert [1.0, 8.0, 8.0] == pytest.approx(found, abs=1e-5)


def test_every_step_is_measured_while_estimates_are_few():
    assert all(is_due(step, samples=63, scale=1.0, every=8) for step in range(20))


@pytest.mark.parametrize(("scale", "steps"), [(1, 8), (2, 4), (3, 3), (8, 1), (100, 1)])
def test_later_one_step_is_measured_for_about_so_many_initial_batches(scale, steps):
    due = [step for step in range(1000, 1050) if is_due(step, 64, scale, every=8)]

    assert {steps} == set(np.diff(due))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.linspace(-1, 1, 10),
        torch.linspace(-1, 1, 3_000_000) + 3,
        torch.rand(4, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.full((10_000,), 100.0, dtype=torch.float16),  # the sum exceeds float16
        torch.eye(4).to_sparse(),
        torch.tensor(3.0),
    ],
    ids=["small", "large", "channels last", "float16", "sparse", "scalar"],
)
def test_inner_products_are_those_of_float64(tensor):
    exact = tensor.to_dense().double()
    other = 3 - tensor.to_dense()

    square = sum(map(float, inner_product(tensor, tensor)))
    product = sum(map(float, inner_product(tensor, other)))

    assert exact.square().sum().item() == pytest.approx(square, rel=5e-6)
    assert (exact * other.double()).sum().item() == pytest.approx(product, rel=5e-6)


def parts_and_oracle(size, dtype):
    """Return inner products of two quotients and of one with itself, and those of float64."""
    one, two, moments = (torch.rand(3, size, dtype=dtype) + 0.01).unbind()
    by = Precondition(moments**2, 1e-2)
    divisor = moments.double() + 1e-2
    found = [inner_product(one, of, by) for of in (one, two)]
    return found, [(one.double() / divisor @ (of.double() / divisor)).item() for of in (one, two)]


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 300_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inner_products_can_be_of_quotients(size, dtype):
    found, expected = parts_and_oracle(size, dtype)

    assert expected == pytest.approx([sum(map(float, parts)) for parts in found], rel=2e-6)


def test_quotients_of_gradients_that_are_not_finite_are_not():
    one, by = torch.tensor([1.0, float("inf")]), Precondition(torch.zeros(2), 1.0)
    (product,) = inner_product(one, one, by)

    assert not product.isfinite()


@pytest.mark.parametrize("size", [1, 5, 600_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_shares_of_replicas_in_an_inner_product_add_up_to_it(size, dtype):
    one, moments = torch.rand(2, size, dtype=dtype) + 1
    by = Precondition(moments, 0.5)

    found = [
        sum(float(part) for at in range(3) for part in inner_product(one, one, of, (at, 3)))
        for of in (None, by)
    ]

    one, divisor = one.double(), moments.double() ** 0.5 + 0.5
    assert [quotient.square().sum().item() for quotient in (one, one / divisor)] == pytest.approx(
        found, rel=2e-6
    )
