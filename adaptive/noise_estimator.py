"""The noise of gradients, estimated from their lengths: what a larger batch is worth. Pure.

Two numbers for each parameter group: `sqr`, the squared length of the true gradient, and `var`, the
trace of the covariance of a gradient of the initial batch size M0. Both come out of gradients that
training computes anyway. Of n of them, equally large, with L the mean of their squared lengths and
T the squared length of their mean (McCandlish et al. 2018, appendix A.1; AdaScale, ICML '20,
section 3; Pollux, OSDI '21, section 3.1):

    sqr = (n T - L) / (n - 1)        var = (L - T) S / (n - 1)        S = (batch of all n) / M0

Several replicas, or accumulation, give n micro-gradients of one step: unbiased. One replica without
accumulation has only the gradients of two steps in a row (n = 2): biased, for the parameters moved
in between; the first n of the other kind forgets what was found so.

Estimates are averaged exponentially, by 0.999 for every M0 examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# x M0 examples between two measured steps. Pollux's workloads (OSDI '21, table 1) have batches of
# up to 32 to 128 x M0, where 0.999^S lets no more figures count. What it costs:
# adaptive_overhead.py
EVERY = 32
FEW = 64  # estimates, while every step is measured
_SMOOTHING = 0.999  # for every M0 examples; Pollux's code
_LEAST_VAR = 1e-6


def gain(sqr: float, var: float, scale: float) -> float:
    """Return how many steps at M0 one step of a batch S times as large is worth: 1 to S.

    (var + sqr) / (var / S + sqr), with sqr at least 0 and var at least 1e-6. AdaScale (ICML '20),
    section 3, its gain ratio; gain / S is Pollux's efficiency (section 3.1).
    """
    sqr, var = max(sqr, 0.0), max(var, _LEAST_VAR)
    return (var + sqr) / (var / scale + sqr)


class NoiseEstimator:
    """The averages, by parameter group.

    `biased`: they come from the gradients of different steps.

    `raw_sqr` and `raw_var` [G] are as estimated, so the first may be negative; `sqr` and `var` are
    over all groups, and are not. While nothing is known they are 1 and 0 (1e-6). Lists, because
    they are short and read at every step.
    """

    def __init__(self, groups: int = 1) -> None:
        self.samples = 0
        self.biased = False
        self._weight = 0.0
        self._forget(groups)
        self._publish()

    def observe(
        self,
        local: Sequence[float],
        total: Sequence[float],
        *,
        count: int,
        scale: float,
        steps: int = 1,
        biased: bool = False,
    ) -> bool:
        """Take in L and T [G] of `count` gradients whose sum is of `scale` x M0 examples.

        `steps`: optimizer steps since the last call. False where a number is not finite: nothing
        is changed then.
        """
        if not all(map(math.isfinite, [*local, *total])):
            return False
        if (self.biased and not biased) or len(local) != len(self._sqr):
            self._forget(len(local))
        theta = _SMOOTHING ** (scale * steps)
        for group, (small, large) in enumerate(zip(local, total, strict=True)):
            sqr = (count * large - small) / (count - 1)
            var = (small - large) * scale / (count - 1)
            self._sqr[group] = theta * self._sqr[group] + (1 - theta) * sqr
            self._var[group] = theta * self._var[group] + (1 - theta) * var
        self._weight = theta * self._weight + (1 - theta)
        self.samples += 1
        self.biased = biased
        self._publish()
        return True

    def gains(self, scale: float) -> list[float]:
        """Return what a step of scale x M0 examples is worth, by group."""
        pairs = zip(self.raw_sqr, self.raw_var, strict=True)
        return [gain(sqr, var, scale) for sqr, var in pairs]

    def state_dict(self) -> dict[str, Any]:
        return {
            "sqr": list(self._sqr),
            "var": list(self._var),
            "weight": self._weight,
            "samples": self.samples,
            "biased": self.biased,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sqr, self._var = list(state["sqr"]), list(state["var"])
        self._weight = float(state["weight"])
        self.samples = int(state["samples"])
        self.biased = bool(state["biased"])
        self._publish()

    def _forget(self, groups: int) -> None:
        self._sqr, self._var = [0.0] * groups, [0.0] * groups  # weighted sums
        self._weight = 0.0

    def _publish(self) -> None:
        weight = self._weight
        self.raw_sqr = [sqr / weight if weight else 1.0 for sqr in self._sqr]
        self.raw_var = [var / weight if weight else 0.0 for var in self._var]
        self.sqr = sum(max(sqr, 0.0) for sqr in self.raw_sqr)
        self.var = sum(max(var, _LEAST_VAR) for var in self.raw_var)


def is_due(step: int, samples: int, scale: float, every: int) -> bool:
    """Tell whether step number `step` is measured. The same on every replica."""
    return step % (1 if samples < FEW else max(1, round(every / scale))) == 0
