"""Scaling rules: by what factor the learning rate grows with the batch.

A rule is asked at each optimizer step for the factor of a batch S times the initial one, one number
for all parameter groups or one for each. It sees the model as `self.adp`: its gradients' noise
(`gns`), its `progress` and its `init_batch_size`. One's own rule is a subclass of ScalingRuleBase.
"""

from __future__ import annotations

import math
from typing import Protocol

from numpy.typing import ArrayLike

from .gradient_noise_scale import GradientNoiseScale
from .noise_estimator import NoiseEstimator


class Scaled(Protocol):
    """A model as a rule sees it: what a rule needs of an AdaptiveDataParallel."""

    gns: GradientNoiseScale

    @property
    def progress(self) -> float:
        """The steps at the initial batch size that the steps so far were worth."""

    @property
    def init_batch_size(self) -> int: ...


class ScalingRuleBase:
    """The base of all rules."""

    adp: Scaled

    def initialize(self, adp: Scaled) -> None:
        """Take the model that the rule is given to, which calls this once."""
        self.adp = adp

    def scale_lr(self, scale: float) -> ArrayLike:
        """Return the factor of the learning rate at `scale` x the initial batch size.

        It is a number, or [G].
        """
        raise NotImplementedError(f"{type(self).__name__} lacks scale_lr(scale)")


def ada_factors(noise: NoiseEstimator, scale: float) -> list[float]:
    """Return by group the gain of a batch `scale` times the initial one.

    Johnson et al. 2020, section 3.
    """
    return noise.gains(scale)


def adam_factors(noise: NoiseEstimator, scale: float, power: float = 0.5) -> list[float]:
    """Return, by group, the gain to that power, of gradients in the space in which Adam steps."""
    return [gain**power for gain in noise.gains(scale)]


class AdaScale(ScalingRuleBase):
    """A rule by the gain of the batch, by group: 1 to the scale S. For SGD.

    Johnson et al. 2020 (ICML), section 3.
    """

    def scale_lr(self, scale: float) -> list[float]:
        return ada_factors(self.adp.gns.estimator, scale)


class AdamScale(AdaScale):
    """A rule by the square root of the gain, of gradients in the space in which Adam steps.

    For Adam and AdamW, whose steps do not grow with gradients.
    """

    def __init__(self, power: float = 0.5) -> None:
        self.power = power

    def scale_lr(self, scale: float) -> list[float]:
        return adam_factors(self.adp.gns.estimator, scale, self.power)


class LinearScale(ScalingRuleBase):
    """A rule whose factor is the scale S itself. Goyal et al. 2017, section 2.1."""

    def scale_lr(self, scale: float) -> ArrayLike:
        return scale


class SqrtScale(ScalingRuleBase):
    """A rule whose factor is the square root of the scale S. Krizhevsky 2014, section 5."""

    def scale_lr(self, scale: float) -> ArrayLike:
        return math.sqrt(scale)


class LEGWScale(ScalingRuleBase):
    """A rule that reaches the square root of the scale S after S times as many warm-up epochs.

    You et al. 2019 (SC).

    `base_warmup_epochs`: of the initial batch size. `data_size`: records of an epoch.
    """

    def __init__(self, base_warmup_epochs: float, data_size: int) -> None:
        self.base_warmup_epochs = base_warmup_epochs
        self.data_size = data_size

    def scale_lr(self, scale: float) -> ArrayLike:
        epochs = self.base_warmup_epochs * scale
        warmup_steps = epochs * self.data_size / self.adp.init_batch_size
        ramp = min(1.0, self.adp.progress / warmup_steps) if warmup_steps else 1.0
        return math.sqrt(scale) * ramp
