"""Optimizers on the servers: in place, one fused pass over weight and state, float32.

A formula takes weight, up to three states and the gradient, eight elements at once
(kernels/lanes.py). `step` runs it over a row of a table or a dense chunk, which is one long row.
Each row counts its own updates (docs/adr/0001), and what a formula needs of that count stands in a
table by step, so no row computes a power. Each rule equals its torch.optim namesake within float32
tolerance, FTRL the formula in nn/optimizers.py.

A fresh row's state is a constant (`Rule.state`), so a row may be made at any time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import (
    FLOATS_1D,
    FLOATS_2D,
    INTS_1D,
    PART,
    compiled,
    frozen,
    inlined,
    load_float,
    overload,
)
from ...kernels.lanes import WIDTH, choose, lanes, load, load_first, root, store, store_first
from ...nn import optimizers as specs

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
ChunkStep = Callable[[Floats, Sequence[Floats], Ints, Floats], None]
_ABSENT = np.zeros(1, np.float32)  # stands for a state that the variant does not have
_SGD, _MOMENTUM, _NESTEROV, _ADAGRAD, _ADAM, _AMSGRAD, _FTRL = range(7)
_MOST_STEPS = 1 << 22  # of the table by step; exact for every beta up to 0.999996
_NO_STEPS = np.zeros((1, 2), np.float32)


@dataclass(frozen=True)
class Rule:
    """An optimizer with its constants.

    `state`: name -> value of a fresh row.

    `by_step` float32[T, 2]: what the formula is told of the updates that the row has had; the last
    line is for all that follow.
    """

    state: dict[str, float]
    kind: int
    by_step: Floats
    _constants: Callable[[float], Sequence[float]]

    def constants(self, lr: float) -> Floats | None:
        """Return float32[7] for a step at the rate `lr`; None where it changes nothing."""
        if self.kind == _FTRL and lr <= 0.0:
            return None  # the formula divides by the rate; a schedule's end must not make NaN
        values = np.zeros(7, np.float32)
        given = self._constants(lr)
        values[: len(given)] = given
        return values

    def of_chunks(self, lr: float) -> ChunkStep:
        """Return a step at the rate `lr`, already modulated, for any number of dense chunks.

        Of value float32[n], the states, steps int64[1] and the gradient float32[n].
        """
        constants, kernel = self.constants(lr), _chunk_kernel(self.kind)
        by_step, absent = self.by_step, [_ABSENT] * (3 - len(self.state))

        def step(value: Floats, state: Sequence[Floats], steps: Ints, grad: Floats) -> None:
            if constants is not None:
                kernel(value, *state, *absent, steps, grad, constants, by_step)

        return step


@functools.cache
def _chunk_kernel(kind: int) -> Callable[..., None]:
    grad = types.Array(types.float32, 1, "C", readonly=True)
    return compiled(_apply_of(kind), *[FLOATS_1D] * 4, INTS_1D, grad, FLOATS_1D, FLOATS_2D)


def make_rule(spec: specs.Optimizer) -> Rule:
    """Return the rule of an optimizer spec, its kernel for dense chunks compiled."""
    rule = _rule_of(spec)
    _chunk_kernel(rule.kind)
    return rule


def _rule_of(spec: specs.Optimizer) -> Rule:
    match spec:
        case specs.SGD(momentum=keep, weight_decay=decay):
            if not keep:
                return Rule({}, _SGD, _NO_STEPS, lambda lr: (lr, decay))
            # torch's buffer begins as the first gradient, whatever the dampening
            by_step = np.array([(0, 1), (keep, 1 - spec.dampening)], np.float32)
            kind = _NESTEROV if spec.nesterov else _MOMENTUM
            return Rule({"momentum": 0.0}, kind, by_step, lambda lr: (lr, decay, keep))
        case specs.Adagrad(weight_decay=decay, eps=eps):
            state = {"sum": spec.initial_accumulator_value}
            return Rule(state, _ADAGRAD, _NO_STEPS, lambda lr: (lr, decay, eps))
        case specs.Adam() | specs.AdamW():
            state = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
            if spec.amsgrad:
                state["max_exp_avg_sq"] = 0.0
            beta1, beta2 = spec.betas
            decay, eps = spec.weight_decay, spec.eps
            decoupled = isinstance(spec, specs.AdamW)

            def constants(lr: float) -> Sequence[float]:
                shrink, coupled = (1 - lr * decay, 0.0) if decoupled else (1.0, decay)
                return lr, coupled, shrink, 1 - beta1, beta2, 1 - beta2, eps

            kind = _AMSGRAD if spec.amsgrad else _ADAM
            return Rule(state, kind, _corrections(beta1, beta2), constants)
        case specs.FTRL(beta=beta, l1=l1, l2=l2):
            return Rule({"z": 0.0, "n": 0.0}, _FTRL, _NO_STEPS, lambda lr: (lr, beta, l1, l2))


def _corrections(beta1: float, beta2: float) -> Floats:
    """Return 1 / (1 - beta1^t) and sqrt(1 - beta2^t) by the updates before.

    The table ends where both are 1.
    """
    slowest = max(beta1, beta2)
    last = math.log(2.0**-26) / math.log(slowest) if 0 < slowest < 1 else 1.0
    t = np.arange(1, 2 + min(int(last), _MOST_STEPS), dtype=np.float64)
    table = np.stack([1 / (1 - beta1**t), np.sqrt(1 - beta2**t)], axis=1)
    return np.ascontiguousarray(table, np.float32)


# -- Compiled by numba. A formula takes weight, states (zeros where it has none) and gradient, all
# of them Lanes (kernels/lanes.py), and what it is told of the step. Its result: weight and states.

_ZERO = np.float32(0.0)


class RowAt(NamedTuple):
    """The addresses of a row's weight, states (any address, where it has none) and gradient."""

    weight: np.int64
    a: np.int64
    b: np.int64
    c: np.int64
    grad: np.int64


class Coefficients(NamedTuple):
    """The inputs of a formula beside the row, all float32.

    They are the rule's constants, and a line of `by_step`.
    """

    constants: tuple[np.float32, ...]
    x: np.float32
    y: np.float32


@inlined
def _sgd(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay = told.constants[:2]
    return w - rate * (g + decay * w), a, b, c


@inlined
def _momentum(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay = told.constants[:2]
    m = told.x * a + told.y * (g + decay * w)
    return w - rate * m, m, b, c


@inlined
def _nesterov(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep = told.constants[:3]
    d = g + decay * w
    m = told.x * a + told.y * d
    return w - rate * (d + keep * m), m, b, c


@inlined
def _adagrad(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, eps = told.constants[:3]
    d = g + decay * w
    total = a + d * d
    return w - rate * (d / (root(total) + eps)), total, b, c


@inlined
def _adam(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, coupled, shrink, take1, keep2, take2, eps = told.constants
    w = w * shrink
    d = g + coupled * w
    m = a + take1 * (d - a)
    v = keep2 * b + take2 * d * d
    return w - rate * told.x * (m / (root(v) / told.y + eps)), m, v, c


@inlined
def _amsgrad(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, coupled, shrink, take1, keep2, take2, eps = told.constants
    w = w * shrink
    d = g + coupled * w
    m = a + take1 * (d - a)
    v = keep2 * b + take2 * d * d
    most = choose(v, c, c, v)
    return w - rate * told.x * (m / (root(most) / told.y + eps)), m, v, most


@inlined
def _ftrl(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, base, sparse, ridge = told.constants[:4]
    total = b + g * g
    z = a + (g - (root(total) - root(b)) / rate * w)
    scale = (base + root(total)) / rate + ridge
    dense = (choose(z, _ZERO, _ZERO - sparse, sparse) - z) / scale
    magnitude = choose(z, _ZERO, _ZERO - z, z)
    w = choose(magnitude, sparse, _ZERO, choose(scale, _ZERO, _ZERO, dense))
    return w, z, total, c


@inlined
def _load(address, left):  # type: ignore[no-untyped-def]
    return load(address) if left >= WIDTH else load_first(address, left)


@inlined
def _store(address, value, left):  # type: ignore[no-untyped-def]
    if left >= WIDTH:
        store(address, value)
    else:
        store_first(address, value, left)


@frozen
def _each(formula, states, n, row, told):  # type: ignore[no-untyped-def]
    zero = lanes(_ZERO)
    for left in range(n, 0, -WIDTH):
        at = 4 * (n - left)
        a = _load(row.a + at, left) if states > 0 else zero
        b = _load(row.b + at, left) if states > 1 else zero
        c = _load(row.c + at, left) if states > 2 else zero
        w, g = _load(row.weight + at, left), _load(row.grad + at, left)
        w, a, b, c = formula(w, a, b, c, g, told)
        _store(row.weight + at, w, left)
        if states > 0:
            _store(row.a + at, a, left)
        if states > 1:
            _store(row.b + at, b, left)
        if states > 2:
            _store(row.c + at, c, left)


_FORMULAS = {  # by kind: the formula, and how many states it has
    _SGD: (_sgd, 0),
    _MOMENTUM: (_momentum, 1),
    _NESTEROV: (_nesterov, 1),
    _ADAGRAD: (_adagrad, 1),
    _ADAM: (_adam, 2),
    _AMSGRAD: (_amsgrad, 3),
    _FTRL: (_ftrl, 2),
}


def step(kind, n, row, told):  # type: ignore[no-untyped-def]
    """Make one step of `n` elements: a RowAt and the Coefficients.

    For kernels, in which `kind` is a constant: only its formula is compiled.
    """
    formula, states = _FORMULAS[kind]
    _each(formula, states, n, row, told)


@overload(step, strict=False, jit_options={**PART, "forceinline": True})
def _step_in_kernels(kind, _n, _row, _told):  # type: ignore[no-untyped-def]
    if not isinstance(kind, types.IntegerLiteral):
        return None  # numba then asks with the constant
    formula, states = _FORMULAS[kind.literal_value]

    def in_place(_kind, n, row, told):  # type: ignore[no-untyped-def]
        _each(formula, states, n, row, told)

    return in_place


@inlined
def constants_of(k):  # type: ignore[no-untyped-def]
    """Return the array as a tuple, to have it in registers."""
    return (k[0], k[1], k[2], k[3], k[4], k[5], k[6])


@inlined
def coefficients(constants, by_step, last, steps):  # type: ignore[no-untyped-def]
    """Return the Coefficients of a row that has had so many steps.

    `constants` is a tuple, `by_step` the table's address, `last` its last line.
    """
    line = by_step + 8 * min(steps, last)
    return Coefficients(constants, load_float(line), load_float(line + 4))


@functools.cache
def _apply_of(kind: int) -> Any:
    def apply(weight, a, b, c, steps, grad, constants, by_step):  # type: ignore[no-untyped-def]
        w, g = np.int64(weight.ctypes.data), np.int64(grad.ctypes.data)
        p, q, r = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(c.ctypes.data)
        table, last = np.int64(by_step.ctypes.data), len(by_step) - 1
        told = coefficients(constants_of(constants), table, last, steps[0])
        steps[0] += 1
        step(kind, weight.size, RowAt(w, p, q, r, g), told)  # type: ignore[no-untyped-call]

    return apply
