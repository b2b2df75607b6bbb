"""Optimizers on the servers: in place, one fused pass over weight and state, float32.

A rule is a formula (formulas.py) with its constants and the state it needs. Each row counts its own
updates (docs/adr/0001), and what a formula needs of that count stands in a table by step, so no row
computes a power. Each rule equals its torch.optim namesake within float32 tolerance, the others the
formula in nn/optimizers.py.

A fresh row's state is a constant (`Rule.state`), so a row may be made at any time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...kernels.compile import FLOATS_1D, FLOATS_2D, INTS_1D, compiled
from ...nn import optimizers as specs
from ...nn.by_name import ByName, Optimizers, optimizer_of
from . import formulas
from .step import apply_of_chunk

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
ChunkStep = Callable[[Floats, Sequence[Floats], Ints, Floats], None]
_ABSENT = np.zeros(1, np.float32)  # stands for a state that the variant does not have
_MOST_STEPS = 1 << 22  # of the table by step; exact for every beta up to 0.999996
_NO_STEPS = np.zeros((1, 3), np.float32)
_DIVIDES = (formulas.FTRL,)  # by the rate
Constants = Callable[[float], Sequence[float]]


@dataclass(frozen=True)
class Rule:
    """An optimizer with its constants.

    `state`: name -> value of a fresh row.

    `by_step` float32[T, 3]: what the formula is told of the updates that the row has had; the last
    line is for all that follow. `row_wise`: a state is one number a row. `chunks`: the rule of
    dense chunks, where it is another one. `spec`: what is done to gradients first.
    """

    state: dict[str, float]
    kind: int
    by_step: Floats
    _constants: Constants
    row_wise: bool = False
    chunks: Rule | None = None
    spec: specs.Optimizer = field(default_factory=specs.SGD)

    def width(self, dim: int) -> int:
        """Return the number of float32 that a state has beside a weight of `dim`."""
        return 1 if self.row_wise else dim

    def constants(self, lr: float) -> Floats | None:
        """Return float32[7] for a step at the rate `lr`; None where it changes nothing."""
        if self.kind in _DIVIDES and lr <= 0.0:
            return None  # a schedule's end must not make NaN
        values = np.zeros(7, np.float32)
        given = self._constants(lr)
        values[: len(given)] = given
        return values

    def prepared(self, grads: Floats) -> Floats:
        """Return the gradients [n], or of rows [n, dim], of what becomes less, and clipped."""
        if self.spec.maximize:
            grads = -grads
        if most := self.spec.clip_value:
            grads = np.clip(grads, -np.float32(most), np.float32(most))
        if (most := self.spec.clip_row_norm) and grads.ndim == 2:
            norms = np.sqrt(np.einsum("ij,ij->i", grads, grads))
            part = np.minimum(most / (norms + 1e-6), 1)
            grads = grads * part.astype(np.float32)[:, None]
        return grads

    def of_chunks(self, lr: float) -> ChunkStep:
        """Return a step at the rate `lr`, already modulated, for any number of dense chunks.

        Of value float32[n], the states, steps int64[1] and the gradient float32[n].
        """
        if self.chunks is not None:
            return self.chunks.of_chunks(lr)
        constants, kernel = self.constants(lr), _chunk_kernel(self.kind)
        by_step, absent = self.by_step, [_ABSENT] * (3 - len(self.state))

        def step(value: Floats, state: Sequence[Floats], steps: Ints, grad: Floats) -> None:
            if constants is not None:
                kernel(value, *state, *absent, steps, self.prepared(grad), constants, by_step)

        return step


@functools.cache
def _chunk_kernel(kind: int) -> Callable[..., None]:
    grad = types.Array(types.float32, 1, "C", readonly=True)
    return compiled(apply_of_chunk(kind), *[FLOATS_1D] * 4, INTS_1D, grad, FLOATS_1D, FLOATS_2D)


def make_rule(spec: specs.Optimizer) -> Rule:
    """Return the rule of an optimizer spec, its kernel for dense chunks compiled."""
    rule = _rule_of(spec)
    chunks = rule.chunks and replace(rule.chunks, spec=spec)
    _chunk_kernel((chunks or rule).kind)
    return replace(rule, chunks=chunks, spec=spec)


class Rules:
    """The rules and rates of a model's tables and dense tensors, by name."""

    def __init__(self, optimizer: Optimizers) -> None:
        self._optimizer = optimizer
        self._by_name: dict[str, Rule] = {}
        self._one = None if isinstance(optimizer, ByName) else make_rule(optimizer)

    def of(self, name: str) -> Rule:
        """Return the rule of a table or a dense tensor."""
        if self._one is not None:
            return self._one
        if name not in self._by_name:
            spec = optimizer_of(self._optimizer, name)
            same = (rule for rule in self._by_name.values() if rule.spec is spec)
            self._by_name[name] = next(same, None) or make_rule(spec)
        return self._by_name[name]

    def rate(self, name: str, step: int) -> float:
        """Return the learning rate of the step that takes version `step` to the next one."""
        return specs.learning_rate(self.of(name).spec, step)


def _rule_of(spec: specs.Optimizer) -> Rule:
    match spec:
        case specs.SGD(momentum=keep, weight_decay=decay):
            if not keep:
                return Rule({}, formulas.SGD, _NO_STEPS, lambda lr: (lr, decay))
            # torch's buffer begins as the first gradient, whatever the dampening
            by_step = np.array([(0, 1, 0), (keep, 1 - spec.dampening, 0)], np.float32)
            kind = formulas.NESTEROV if spec.nesterov else formulas.MOMENTUM
            return Rule({"momentum": 0.0}, kind, by_step, lambda lr: (lr, decay, keep))
        case specs.Adagrad():
            return _adagrad(spec, "sum")
        case specs.RowWiseAdagrad(weight_decay=decay, eps=eps, lr_decay=slower):
            # One number per row of a table; an element of a dense tensor is a row of its own.
            chunks, kind = _adagrad(spec, "row_sum"), formulas.ROW_WISE_ADAGRAD
            return Rule(
                chunks.state, kind, _NO_STEPS, _of(decay, eps, slower), row_wise=True, chunks=chunks
            )
        case specs.FTRL(beta=beta, l1=l1, l2=l2):
            state = {"z": 0.0, "n": spec.initial_accumulator_value}
            shrink = 2 * spec.l2_shrinkage
            return Rule(state, formulas.FTRL, _NO_STEPS, _of(beta, l1, l2, shrink))
        case specs.RMSprop():
            return _rmsprop(spec)
        case specs.Adadelta(rho=rho, weight_decay=decay, eps=eps):
            state = {"square_avg": 0.0, "acc_delta": 0.0}
            return Rule(state, formulas.ADADELTA, _NO_STEPS, _of(decay, rho, 1 - rho, eps))
        case specs.Lion(betas=(keep1, keep2), weight_decay=decay):

            def lion(lr: float) -> Sequence[float]:
                return lr, 1 - lr * decay, keep1, 1 - keep1, keep2, 1 - keep2

            return Rule({"exp_avg": 0.0}, formulas.LION, _NO_STEPS, lion)
        case _:
            return _of_moments(spec)


def _of(*constants: float) -> Constants:
    return lambda lr: (lr, *constants)


def _adagrad(spec: specs.Adagrad | specs.RowWiseAdagrad, name: str) -> Rule:
    state = {name: spec.initial_accumulator_value}
    constants = _of(spec.weight_decay, spec.eps, spec.lr_decay)
    kind = formulas.ADAGRAD_DECAY if spec.lr_decay else formulas.ADAGRAD
    return Rule(state, kind, _NO_STEPS, constants)


def _rmsprop(spec: specs.RMSprop) -> Rule:
    state = {"square_avg": 0.0}
    if spec.centered:
        state["grad_avg"] = 0.0
    if spec.momentum:
        state["momentum_buffer"] = 0.0
    kind = {
        (False, False): formulas.RMSPROP,
        (False, True): formulas.RMSPROP_MOMENTUM,
        (True, False): formulas.RMSPROP_CENTERED,
        (True, True): formulas.RMSPROP_BOTH,
    }[bool(spec.centered), spec.momentum != 0.0]
    keep = spec.alpha
    constants = _of(spec.weight_decay, keep, 1 - keep, spec.eps, spec.momentum)
    return Rule(state, kind, _NO_STEPS, constants)


def _of_moments(spec: specs.OfMoments) -> Rule:
    """Return the rule of an optimizer that has the mean of gradients and one of their squares."""
    (beta1, beta2), eps = spec.betas, spec.eps
    mean = {"exp_avg": 0.0}
    state = {**mean, "exp_avg_sq": 0.0}
    takes = 1 - beta1, beta2, 1 - beta2
    match spec:
        case specs.Adamax(weight_decay=decay):
            constants = _of(decay, 1 - beta1, beta2, eps)
            kind = formulas.ADAMAX
            return Rule({**mean, "exp_inf": 0.0}, kind, _corrections(beta1, beta2), constants)
        case specs.LAMB(weight_decay=decay):
            constants = _of(decay, *takes, eps)
            return Rule(state, formulas.LAMB, _corrections(beta1, beta2), constants)
        case specs.GroupAdam(l1=l1, l21=l21):
            state["z"] = 0.0
            table = _corrections(beta1, beta2)
            table[1:, 2] = 1 / table[:-1, 1]
            alone = Rule(state, formulas.GROUP_ADAM, table, _of(*takes, eps, l1, 0.0))
            constants = _of(*takes, eps, l1, l21)
            return Rule(state, formulas.GROUP_ADAM, table, constants, chunks=alone)
    decay = spec.weight_decay
    decoupled = isinstance(spec, specs.AdamW) or getattr(spec, "decoupled_weight_decay", False)

    def adam(lr: float) -> Sequence[float]:
        shrink, coupled = (1 - lr * decay, 0.0) if decoupled else (1.0, decay)
        return lr, coupled, shrink, *takes, eps

    match spec:
        case specs.NAdam():
            kind, table = formulas.NADAM, _nadam(spec)
        case specs.RAdam():
            kind, table = formulas.RADAM, _radam(beta1, beta2)
        case _:
            kind, table = formulas.ADAM, _corrections(beta1, beta2)
            if spec.amsgrad:
                kind, state["max_exp_avg_sq"] = formulas.AMSGRAD, 0.0
    return Rule(state, kind, table, adam)


# -- Tables by step: what a formula is told of t, the number of the update, from 1 on


def _steps(*slowest: float) -> NDArray[np.float64]:
    """Return 1, 2, ... until no power of these is seen any more in a float32."""
    base = max(slowest)
    last = math.log(2.0**-26) / math.log(base) if 0 < base < 1 else 1.0
    return np.arange(1, 2 + min(int(last), _MOST_STEPS), dtype=np.float64)


def _table(*columns: NDArray[np.float64]) -> Floats:
    table = np.zeros((len(columns[0]), 3), np.float32)
    table[:, : len(columns)] = np.stack(columns, axis=1)
    return table


def _corrections(beta1: float, beta2: float) -> Floats:
    """Return 1 / (1 - beta1^t) and sqrt(1 - beta2^t).

    The table ends where both are 1.
    """
    t = _steps(beta1, beta2)
    return _table(1 / (1 - beta1**t), np.sqrt(1 - beta2**t))


def _nadam(spec: specs.NAdam) -> Floats:
    """Return the weights of gradient and mean, and between them sqrt(1 - beta2^t)."""
    beta1, beta2 = spec.betas
    pace = 0.96**spec.momentum_decay
    t = _steps(beta1, beta2, pace if pace < 1 else 0.0)
    mu = beta1 * (1 - 0.5 * pace ** np.append(t, len(t) + 1))
    product, now, later = np.cumprod(mu), mu[:-1], mu[1:]
    gradient, mean = (1 - now) / (1 - product[:-1]), later / (1 - product[1:])
    return _table(gradient, np.sqrt(1 - beta2**t), mean)


def _radam(beta1: float, beta2: float) -> Floats:
    """Return 1 / (1 - beta1^t), and by what the root of the variance is divided.

    That is 0 while there are too few updates to know the variance.
    """
    t = _steps(beta1, beta2**0.5)  # t * beta2^t must vanish
    correction = 1 - beta2**t
    most = 2 / (1 - beta2) - 1
    rho = most - 2 * t * beta2**t / correction
    known = rho > 5
    safe = np.where(known, rho, most)
    rect = np.sqrt((safe - 4) * (safe - 2) * most / ((most - 4) * (most - 2) * safe + (~known)))
    return _table(1 / (1 - beta1**t), np.where(known, rect * np.sqrt(correction), 0.0))
