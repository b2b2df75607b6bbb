"""Optimizers on the servers: in place, one fused pass over weight and state, float32.

A rule works on rows: `weight[N, W]`, one state array of that shape for each of `state`, and
`steps[N]`, the updates that each row has had. An embedding row is a row; a dense chunk is one row
of its elements. Rows that an update does not name keep weight, state and steps, exactly as
torch.optim leaves a parameter whose gradient is None. Each rule equals its torch.optim namesake
within float32 tolerance, FTRL the formula in nn/optimizers.py.

A fresh row's state is a constant (`Rule.state`), so a row may be made at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..nn import optimizers as specs
from .kernels import BOOLEAN, DOUBLE, FLOATS_2D, FLOATS_2D_IN, INTS_1D, INTS_1D_IN, compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_ABSENT = np.zeros((1, 1), np.float32)  # stands for a state that the variant does not have


@dataclass(frozen=True)
class Rule:
    """An optimizer with its constants. `state`: name -> value of a fresh row."""

    state: dict[str, float]
    _kernel: Callable[..., None]
    _num_arrays: int  # states that the kernel takes, present or not
    _constants: tuple[Any, ...]

    def apply(
        self,
        weight: Floats,
        state: Sequence[Floats],
        steps: Ints,
        rows: Ints,
        grads: Floats,
        lr: float,
    ) -> None:
        """One step of `rows` (unique) with grads[n, W] at the rate `lr`, already modulated."""
        absent = [_ABSENT] * (self._num_arrays - len(state))
        self._kernel(weight, *state, *absent, steps, rows, grads, lr, *self._constants)


def make_rule(spec: specs.Optimizer) -> Rule:
    """The rule of an optimizer spec, compiled."""
    match spec:
        case specs.SGD():
            state = {"momentum": 0.0} if spec.momentum else {}
            constants: tuple[Any, ...] = (
                spec.momentum,
                spec.dampening,
                spec.weight_decay,
                spec.nesterov,
            )
            return _rule(_sgd, 1, state, constants)
        case specs.Adagrad():
            state = {"sum": spec.initial_accumulator_value}
            return _rule(_adagrad, 1, state, (spec.weight_decay, spec.eps))
        case specs.Adam() | specs.AdamW():
            state = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
            if spec.amsgrad:
                state["max_exp_avg_sq"] = 0.0
            decoupled = isinstance(spec, specs.AdamW)
            constants = (*spec.betas, spec.eps, spec.weight_decay, decoupled, spec.amsgrad)
            return _rule(_adam, 3, state, constants)
        case specs.FTRL():
            return _rule(_ftrl, 2, {"z": 0.0, "n": 0.0}, (spec.beta, spec.l1, spec.l2))


def _rule(
    kernel: Callable[..., None],
    num_arrays: int,
    state: dict[str, float],
    constants: tuple[Any, ...],
) -> Rule:
    constants = tuple(c if isinstance(c, bool) else float(c) for c in constants)
    arrays = (FLOATS_2D,) * (1 + num_arrays)
    kinds = tuple(BOOLEAN if isinstance(c, bool) else DOUBLE for c in constants)
    code = compiled(kernel, *arrays, INTS_1D, INTS_1D_IN, FLOATS_2D_IN, DOUBLE, *kinds)
    return Rule(state, code, num_arrays, constants)


# The loops below are compiled by numba. Constants are narrowed first, so that the arithmetic of
# each element is float32 throughout, as torch's is.


def _sgd(  # type: ignore[no-untyped-def]
    weight, buffer, steps, rows, grads, lr, momentum, dampening, weight_decay, nesterov
):
    rate, decay = np.float32(lr), np.float32(weight_decay)
    keep, take = np.float32(momentum), np.float32(1.0 - dampening)
    for i in range(rows.size):
        r = rows[i]
        first = steps[r] == 0
        steps[r] += 1
        for j in range(weight.shape[1]):
            d = grads[i, j] + decay * weight[r, j]
            if momentum != 0.0:
                m = d if first else keep * buffer[r, j] + take * d
                buffer[r, j] = m
                d = d + keep * m if nesterov else m
            weight[r, j] -= rate * d


def _adagrad(weight, total, steps, rows, grads, lr, weight_decay, eps):  # type: ignore[no-untyped-def]
    rate, decay, epsilon = np.float32(lr), np.float32(weight_decay), np.float32(eps)
    for i in range(rows.size):
        r = rows[i]
        steps[r] += 1
        for j in range(weight.shape[1]):
            g = grads[i, j] + decay * weight[r, j]
            total[r, j] += g * g
            weight[r, j] -= rate * (g / (np.sqrt(total[r, j]) + epsilon))


def _adam(  # type: ignore[no-untyped-def]
    weight,
    exp_avg,
    exp_avg_sq,
    max_exp_avg_sq,
    steps,
    rows,
    grads,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    decoupled,
    amsgrad,
):
    epsilon = np.float32(eps)
    take1, keep2, take2 = np.float32(1.0 - beta1), np.float32(beta2), np.float32(1.0 - beta2)
    coupled = np.float32(0.0 if decoupled else weight_decay)
    shrink = np.float32(1.0 - lr * weight_decay if decoupled else 1.0)
    for i in range(rows.size):
        r = rows[i]
        steps[r] += 1
        step_size = np.float32(lr / (1.0 - beta1 ** steps[r]))
        root = np.float32(np.sqrt(1.0 - beta2 ** steps[r]))
        for j in range(weight.shape[1]):
            w = weight[r, j] * shrink
            g = grads[i, j] + coupled * w
            m = exp_avg[r, j] + take1 * (g - exp_avg[r, j])
            v = keep2 * exp_avg_sq[r, j] + take2 * g * g
            exp_avg[r, j] = m
            exp_avg_sq[r, j] = v
            if amsgrad:
                v = max(v, max_exp_avg_sq[r, j])
                max_exp_avg_sq[r, j] = v
            weight[r, j] = w - step_size * (m / (np.sqrt(v) / root + epsilon))


def _ftrl(weight, z, n, steps, rows, grads, lr, beta, l1, l2):  # type: ignore[no-untyped-def]
    if lr <= 0.0:  # the formula divides by the rate; a schedule's end must not make NaN
        return
    rate, base = np.float32(lr), np.float32(beta)
    sparse, ridge = np.float32(l1), np.float32(l2)
    for i in range(rows.size):
        r = rows[i]
        steps[r] += 1
        for j in range(weight.shape[1]):
            g = grads[i, j]
            total = n[r, j] + g * g
            sigma = (np.sqrt(total) - np.sqrt(n[r, j])) / rate
            z[r, j] += g - sigma * weight[r, j]
            n[r, j] = total
            scale = (base + np.sqrt(total)) / rate + ridge
            pull = z[r, j]
            if abs(pull) <= sparse or scale == 0.0:
                weight[r, j] = 0.0
            else:
                weight[r, j] = -(pull - np.sign(pull) * sparse) / scale
