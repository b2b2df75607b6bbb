"""Factors of the learning rate. Golden values: AdaptDL's own functions."""

from types import SimpleNamespace

import numpy as np
import pytest

from edl.adaptive import AdamScale, AdaScale, LEGWScale, LinearScale, ScalingRuleBase, SqrtScale
from edl.adaptive.noise_estimator import NoiseEstimator

pytestmark = pytest.mark.fast


def model(sqr=(0.5,), var=(1.0,), progress=0.0, init_batch_size=32):
    """Return a model as far as a rule sees it."""
    estimator = NoiseEstimator(len(sqr))
    # Of two gradients at S = 1: sqr = 2 T - L, var = L - T.
    total = [s + v for s, v in zip(sqr, var, strict=True)]
    local = [s + 2 * v for s, v in zip(sqr, var, strict=True)]
    estimator.observe(local, total, count=2, scale=1.0)
    gns = SimpleNamespace(estimator=estimator)
    return SimpleNamespace(gns=gns, progress=progress, init_batch_size=init_batch_size)


def factor(rule, scale, **of_model):
    rule.initialize(model(**of_model))
    return np.asarray(rule.scale_lr(scale)).tolist()


def test_adascale_is_the_gain():
    """AdaScale, section 3: r_t = E[sigma^2 + mu^2] / E[sigma^2 / S + mu^2]."""
    found = [factor(AdaScale(), scale) for scale in (1, 2, 4, 16)]

    assert [pytest.approx([r]) for r in (1.0, 1.5, 2.0, 8 / 3)] == found


def test_adamscale_is_its_square_root():
    found = [factor(AdamScale(), scale)[0] for scale in (1, 2, 4, 16)]

    assert [1.0, 1.2247449, 1.4142136, 1.6329932] == pytest.approx(found)


def test_adascale_has_a_factor_for_each_group():
    found = factor(AdaScale(), 4, sqr=[0.5, 1.0, -3.0], var=[1.0, -1.0, 1.0])

    assert [2.0, 1.0, 4.0] == pytest.approx(found, abs=1e-5)


def test_linear_scale_is_the_scale():
    """Goyal et al., section 2.1: "When the minibatch size is multiplied by k, multiply the learning
    rate by k."
    """
    assert 16 == factor(LinearScale(), 16)


def test_sqrt_scale_is_its_square_root():
    """Krizhevsky, section 5: "when multiplying the batch size by k, one should multiply the
    learning rate by sqrt(k) to keep the variance in the gradient expectation constant".
    """
    assert 4.0 == factor(SqrtScale(), 16)


@pytest.mark.parametrize(("progress", "ramp"), [(0, 0.0), (50, 0.125), (400, 1.0), (9000, 1.0)])
def test_legw_warms_up_for_more_epochs_the_larger_the_batch(progress, ramp):
    """You et al.: a batch k times as large has k times as many warm-up epochs, and sqrt(k) times
    the learning rate. Here 4 x 1 epochs of 3200 / 32 steps.
    """
    assert 2.0 * ramp == factor(LEGWScale(1, 3200), 4, progress=progress)


def test_legw_without_warm_up_is_the_square_root():
    assert 2.0 == factor(LEGWScale(0, 3200), 4)


def test_a_rule_of_ones_own_must_say_its_factor():
    with pytest.raises(NotImplementedError, match="Mine lacks scale_lr"):
        factor(type("Mine", (ScalingRuleBase,), {})(), 2)
