"""How noisy gradients are: what says how much a larger batch, or a larger learning rate, is worth.

Two numbers for each parameter group: `sqr`, the squared length of the true gradient, and `var`, the
trace of the covariance of a gradient of the initial batch size M0. Both come out of gradients that
training computes anyway. Of n of them, equally large, with L the mean of their squared lengths and T
the squared length of their mean (McCandlish et al. 2018, appendix A.1; AdaScale, ICML '20, section 3;
Pollux, OSDI '21, section 3.1):

    sqr = (n T - L) / (n - 1)        var = (L - T) S / (n - 1)        S = (batch of all n) / M0

Several replicas, or accumulation, give n micro-gradients of one step: unbiased. One replica without
accumulation has only the gradients of two steps in a row (n = 2): biased, for the parameters moved
in between; the first n of the other kind forgets what was found so.

Estimates are averaged exponentially, by 0.999 for every M0 examples. `NoiseEstimator` is that, on
numbers alone; `GradientNoiseScale` makes the numbers out of tensors.

What it costs. Squared lengths are dot products of small parts, added up in float64; of that of the
mean, which all replicas hold, each computes a share.
Not every step is measured, but one for about every `every` x M0 examples (every step while there are
few estimates): which ones depends on no gradient, so the estimates stay unbiased, and one that is
missing only leaves the others more weight. About 2000 / `every` figures count in an average, as many
as every step gives where S = `every`, whatever the present S. The lengths of all replicas are averaged while
training goes on and are used from the next step on; so a gradient is never scaled by its own length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.optim import Optimizer

# x M0 examples between two measured steps. Pollux's workloads (OSDI '21, table 1) have batches of up to
# 32 to 128 x M0, where 0.999^S lets no more figures count. What it costs: adaptive_overhead.py
EVERY = 32
FEW = 64  # estimates, while every step is measured
_SMOOTHING = 0.999  # for every M0 examples; Pollux's code
_LEAST_VAR = 1e-6
_PART = 2**18  # elements of a dot product: float32 sums of more lose digits, temporaries the cache
_LANES = 64  # elements at once
WARM = 5  # steps of Adam before its second moments are taken for a preconditioner

Floats = NDArray[np.float64]


def gain(sqr: float, var: float, scale: float) -> float:
    """How many steps at M0 one step of a batch S times as large is worth: 1 to S.

    (var + sqr) / (var / S + sqr), with sqr at least 0 and var at least 1e-6. AdaScale (ICML '20),
    section 3, its gain ratio; gain / S is Pollux's efficiency (section 3.1).
    """
    sqr, var = max(sqr, 0.0), max(var, _LEAST_VAR)
    return (var + sqr) / (var / scale + sqr)


class NoiseEstimator:
    """The averages, by parameter group. `biased`: they come from the gradients of different steps.

    `raw_sqr` and `raw_var` [G] are as estimated, so the first may be negative; `sqr` and `var` are
    over all groups, and are not. While nothing is known they are 1 and 0 (1e-6). Lists, because they
    are short and read at every step.
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
        """What a step of scale x M0 examples is worth, by group."""
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
    """Whether step number `step` is measured. The same on every replica."""
    return step % (1 if samples < FEW else max(1, round(every / scale))) == 0


@dataclass
class _Step:
    """The optimizer step at hand: `micros` micro-batches of accum_scale x M0 examples each, over all
    replicas; whole x M0 if the batch is whole. The rest is filled where the step is measured."""

    accum_scale: float = 1.0
    micros: int = 1
    whole: float = 1.0
    groups: dict[Tensor, int] = field(default_factory=dict)  # the group of a parameter
    local: list[list[Tensor]] = field(default_factory=list)  # parts of L so far, by group
    scale: float = field(init=False)  # S

    def __post_init__(self) -> None:
        self.scale = self.accum_scale * self.micros


@dataclass(frozen=True)
class _Pending:
    """Lengths on their way: L above T [2, G], summed over the replicas, stand in `values` after `wait`,
    each multiplied by its number of `factors`."""

    values: Tensor
    wait: Callable[[], object]
    factors: tuple[float, float]
    count: int
    scale: float
    step: int
    biased: bool


class GradientNoiseScale:
    """Measures the gradients of an optimizer's parameters; all replicas call it alike.

    For each optimizer step: `start`; `add` for every micro-gradient of every parameter; `finish` when
    the averaged gradients stand in `.grad`; `advance` when the optimizer has made its step, without
    which nothing was measured. `collect` brings in what an earlier step has measured.
    `gradient_scale` tells what gradients are multiplied by (GradScaler).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Iterable[Tensor],
        process_group: distributed.ProcessGroup | None = None,
        gradient_scale: Callable[[], float] = lambda: 1.0,
        every: int = EVERY,
    ) -> None:
        self.optimizer = optimizer
        self.estimator = NoiseEstimator(len(optimizer.param_groups))
        self._parameters = dict.fromkeys(parameters)
        device = next(iter(self._parameters)).device
        self._nothing = torch.zeros((), dtype=torch.float64, device=device)
        self._process_group = process_group
        self._replicas = process_group.size() if process_group else 1
        self._rank = process_group.rank() if process_group else 0
        self._gradient_scale = gradient_scale
        self._every = every
        self._step = _Step()
        self._made = 0  # optimizer steps so far
        self._seen = 0  # of them, up to the last that is in the estimate
        self._sent: _Pending | None = None  # of the step at hand,
        self._pending: _Pending | None = None  # of one that was made
        self._kept: dict[Tensor, Tensor] = {}  # gradients
        self._kept_at: int | None = None  # of this step,
        self._kept_scale = 1.0  # multiplied by this

    @property
    def accum_scale(self) -> float:
        """Examples of a micro-batch, over all replicas, by M0."""
        return self._step.accum_scale

    @property
    def accum_count(self) -> int:
        """Micro-batches of an optimizer step."""
        return self._step.micros

    @property
    def scale(self) -> float:
        """S: examples of an optimizer step by M0."""
        return self._step.scale

    @property
    def raw_sqr_avg(self) -> Floats:
        """[G], as estimated."""
        return np.array(self.estimator.raw_sqr)

    @property
    def raw_var_avg(self) -> Floats:
        """[G], as estimated."""
        return np.array(self.estimator.raw_var)

    def sqr_avg(self) -> float:
        """The squared length of the true gradient."""
        return self.estimator.sqr

    def var_avg(self) -> float:
        """The variance of a gradient of M0 examples."""
        return self.estimator.var

    def gain(self, scale: float) -> float:
        """How many steps at M0 a step of scale x M0 examples is worth."""
        return gain(self.estimator.sqr, self.estimator.var, scale)

    def start(self, accum_scale: float, micros: int, whole: float | None = None) -> None:
        """An optimizer step begins, of `micros` micro-batches.

        `whole`: S of a step of a whole batch, where this one has fewer records.
        """
        if accum_scale != self.accum_scale:
            self._kept_at = None
        whole = accum_scale * micros if whole is None else whole
        self._step, self._sent = _Step(accum_scale, micros, whole), None
        if self._replicas * micros > 1 and self._is_due(self._made):
            self._step.groups = self._groups()
            self._step.local = [[] for _ in self.optimizer.param_groups]

    def is_quiet(self, accum_scale: float) -> bool:
        """Whether a step of one such micro-batch, as the last was, needs no call but `advance`."""
        last, made = self._step, self._made
        if last.accum_scale != accum_scale or last.micros != 1 or self._is_due(made):
            return False
        return self._replicas > 1 or not self._is_due(made + 1)  # else its gradients are kept

    @property
    def measures(self) -> bool:
        """Whether the step at hand wants its micro-gradients added."""
        return bool(self._step.groups)

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """A micro-gradient as autograd hands it over: not averaged, not added to others yet."""
        group = self._step.groups.get(parameter)
        if group is not None:
            self._step.local[group] += self._product(parameter, gradient, gradient)

    def finish(self) -> None:
        """The averaged gradients stand in `.grad`."""
        step, count = self._step, self._step.micros * self._replicas
        if step.groups:
            gradients = _gradients(step.groups)
            total = self._products(gradients, gradients)  # of which each replica has a share
            factor = self._gradient_scale() ** 2
            lengths = self._sum(step.local + total)
            self._send(lengths, (factor * count, factor), count, step.scale, biased=False)
        elif count == 1:
            self._finish_pair()

    def advance(self) -> None:
        """The optimizer has made the step."""
        self._made += 1
        if self._sent is not None:
            self._pending, self._sent = self._sent, None

    def collect(self) -> bool:
        """Bring in what was measured; whether that was anything."""
        pending, self._pending = self._pending, None
        if pending is None:
            return False
        pending.wait()
        lengths, groups = pending.values.tolist(), len(pending.values) // 2
        local, total = pending.factors
        observed = self.estimator.observe(
            [length / local for length in lengths[:groups]],
            [length / total for length in lengths[groups:]],
            count=pending.count,
            scale=pending.scale,
            steps=max(1, pending.step - self._seen) if self._seen else 1,
            biased=pending.biased,
        )
        if observed:
            self._seen = pending.step
        return observed

    def state_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.estimator.state_dict(),
            "made": self._made,
            "seen": self._seen,
            "accum_scale": self.accum_scale,
            "accum_count": self.accum_count,
            "whole": self._step.whole,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.estimator.load_state_dict(state["estimator"])
        self._made, self._seen = int(state["made"]), int(state["seen"])
        scale, micros = float(state["accum_scale"]), int(state["accum_count"])
        self._step = _Step(scale, micros, float(state.get("whole", scale * micros)))
        self._sent = self._pending = self._kept_at = None

    def _is_due(self, step: int) -> bool:
        return is_due(step, self.estimator.samples, self.scale, self._every)

    def _groups(self) -> dict[Tensor, int]:
        """The group of each parameter; anew, for an unfrozen layer may have joined."""
        groups = enumerate(self.optimizer.param_groups)
        return {p: i for i, group in groups for p in group["params"] if p in self._parameters}

    def _finish_pair(self) -> None:
        """One replica without accumulation: this step's gradients and the last one's, if kept."""
        kept, self._kept_at = self._kept_at == self._made - 1, None
        if kept and self._is_due(self._made):
            self._step.groups = self._groups()
            # Each product by the factors of its steps, for a GradScaler's changes.
            last, this = self._kept_scale, self._gradient_scale()
            old, new = self._kept, _gradients(self._step.groups)
            one = self._sum(self._products(old, old)) / last**2
            two = self._sum(self._products(new, new)) / this**2
            both = self._sum(self._products(old, new)) / (last * this)
            lengths = torch.cat([one + two, one + two + 2 * both])
            self._send(lengths, (2.0, 4.0), 2, 2 * self.accum_scale, biased=True)
        if self._is_due(self._made + 1):
            self._kept_at, self._kept_scale = self._made, self._gradient_scale()
            gradients, buffers = _gradients(self._groups()), self._kept
            self._kept = {p: buffers[p] if p in buffers else torch.empty_like(p) for p in gradients}
            for parameter, gradient in gradients.items():
                self._kept[parameter].copy_(gradient)

    def _products(
        self, one: Mapping[Tensor, Tensor], two: Mapping[Tensor, Tensor]
    ) -> list[list[Tensor]]:
        """This replica's share of the inner product of gradients, each by parameter: parts, by group.

        All replicas hold the same gradients, so each multiplies as many elements as another.
        """
        found: list[list[Tensor]] = [[] for _ in self.optimizer.param_groups]
        for parameter, gradient in two.items():
            if parameter in one:
                group = self._step.groups[parameter]
                share = (self._rank, self._replicas)
                found[group] += self._product(parameter, one[parameter], gradient, share)
        return found

    def _product(
        self, parameter: Tensor, one: Tensor, two: Tensor, share: tuple[int, int] = (0, 1)
    ) -> list[Tensor]:
        return inner_product(one, two, share=share)

    def _sum(self, parts: Sequence[list[Tensor]]) -> Tensor:
        """Of each list, in float64."""
        sums = [torch.stack(of).sum(dtype=torch.float64) if of else self._nothing for of in parts]
        return torch.stack(sums)

    def _send(
        self,
        lengths: Tensor,
        factors: tuple[float, float],
        count: int,
        scale: float,
        biased: bool,
    ) -> None:
        """Sum over the replicas, and fetch from the device, while training goes on."""
        wait: Callable[[], object] = _at_once
        if self._replicas > 1:
            work = distributed.all_reduce(lengths, group=self._process_group, async_op=True)
            assert work is not None  # this process is in the group
            wait = work.wait
        if lengths.is_cuda:
            wait()  # lets the stream wait, not this thread
            host = torch.empty(lengths.shape, dtype=lengths.dtype, pin_memory=True)
            lengths = host.copy_(lengths, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
            wait = copied.synchronize
        self._sent = _Pending(lengths, wait, factors, count, scale, self._made + 1, biased)


class AdamGradientNoiseScale(GradientNoiseScale):
    """The same in the space in which Adam steps: of gradients divided by sqrt(v_hat) + eps.

    v_hat are the second moments without their bias; they count from the 5th step on. Moments of
    another batch size are those of another noise: where S changes, Adam begins anew, but not for a
    step that is not whole.
    """

    def start(self, accum_scale: float, micros: int, whole: float | None = None) -> None:
        before = self._step.whole
        super().start(accum_scale, micros, whole)
        if self._made and self._step.whole != before:
            self.optimizer.state.clear()

    def _product(
        self, parameter: Tensor, one: Tensor, two: Tensor, share: tuple[int, int] = (0, 1)
    ) -> list[Tensor]:
        group = self.optimizer.param_groups[self._step.groups[parameter]]
        return adam_product(self.optimizer.state.get(parameter, {}), group, one, two, share)


def adam_product(
    state: Mapping[str, Tensor],
    group: Mapping[str, Any],
    one: Tensor,
    two: Tensor,
    share: tuple[int, int] = (0, 1),
) -> list[Tensor]:
    """`inner_product` of two gradients of a parameter in the space in which Adam steps.

    `state` and `group` are the parameter's, of torch's Adam or AdamW; without moments yet, or too
    early ones, the product is that of the gradients as they are.
    """
    if not state or (steps := float(state["step"])) < WARM:
        return inner_product(one, two, share=share)
    moments = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    unbiased = 1 - float(group["betas"][1]) ** steps
    # Divided by sqrt(unbiased) x (sqrt(v_hat) + eps), for a pass less.
    precondition = Precondition(_flat(moments), group["eps"] * unbiased**0.5)
    return [p * unbiased for p in inner_product(one, two, precondition, share)]


@dataclass(frozen=True)
class Precondition:
    """Divides by sqrt(moments) + eps, element by element; `moments` are flat."""

    moments: Tensor
    eps: float


def inner_product(
    one: Tensor,
    two: Tensor,
    by: Precondition | None = None,
    share: tuple[int, int] = (0, 1),
) -> list[Tensor]:
    """Scalars that add up to the inner product of two tensors of one shape, each divided before.

    `share`: only the k-th of so many equal parts.
    """
    first = _flat(one)
    second = first if two is one else _flat(two)
    (at, of), size = share, first.numel()
    begin, end = size * at // of, size * (at + 1) // of
    if by is not None and _is_plain(first) and _is_plain(by.moments):
        part = slice(begin, end)
        arrays = (flat[part].detach().numpy() for flat in (first, second, by.moments))
        return [torch.tensor(_kernel()(*arrays, by.eps), dtype=torch.float64)]
    products = []
    for start in range(begin, end, _PART):
        part = slice(start, min(start + _PART, end))
        quotients = [flat[part] for flat in ((first,) if second is first else (first, second))]
        if by is not None:
            divisor = by.moments[part].sqrt().add_(by.eps)
            quotients = [quotient / divisor for quotient in quotients]
        products.append(torch.dot(quotients[0], quotients[-1]))
    return products


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


@functools.cache
def _kernel() -> Callable[..., float]:
    from ..kernels.compile import DOUBLE, FLOATS_1D, compiled

    return compiled(_quotients, FLOATS_1D, FLOATS_1D, FLOATS_1D, DOUBLE)


def _quotients(one, two, moments, eps):  # type: ignore[no-untyped-def]  # compiled by numba
    """The inner product of quotients in one pass, where torch needs four: half of the time.

    Added up in lanes, and these in float64: only so may a compiler take several elements at once.
    """
    lanes, least = np.zeros(_LANES), np.float32(eps)
    whole = one.size - one.size % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            at = start + lane
            factor = np.float32(1) / (np.sqrt(moments[at]) + least)
            lanes[lane] += np.float64((one[at] * factor) * (two[at] * factor))
    for at in range(whole, one.size):
        factor = np.float32(1) / (np.sqrt(moments[at]) + least)
        lanes[0] += np.float64((one[at] * factor) * (two[at] * factor))
    return lanes.sum()


def _flat(tensor: Tensor) -> Tensor:
    flat = (tensor.to_dense() if tensor.is_sparse else tensor).reshape(-1)
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat


def _gradients(parameters: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    return {p: p.grad for p in parameters if p.grad is not None}


def _at_once() -> None:
    """There is nothing to wait for."""
