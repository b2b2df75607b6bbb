"""The noise of gradients: what says how much a larger batch, or learning rate, is worth.

`noise_estimator.py` has the formulas, `inner_products.py` the products of tensors;
`GradientNoiseScale` decides which gradients are measured, and makes numbers of them over all
replicas.

What it costs. Squared lengths are dot products of small parts, added up in float64; of that of the
mean, which all replicas hold, each computes a share. Not every step is measured, but one for about
every `every` x M0 examples (every step while there are few estimates): which ones depends on no
gradient, so the estimates stay unbiased, and one that is missing only leaves the others more
weight. About 2000 / `every` figures count in an average, as many as every step gives where S =
`every`, whatever the present S. The lengths of all replicas are averaged while training goes on and
are used from the next step on; so a gradient is never scaled by its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.optim import Optimizer

from .inner_products import adam_product, inner_product
from .noise_estimator import EVERY, NoiseEstimator, gain, is_due

Floats = NDArray[np.float64]


@dataclass
class _Step:
    """The optimizer step at hand.

    It has `micros` micro-batches of accum_scale x M0 examples each, over all replicas; whole x M0
    if the batch is whole. The rest is filled where the step is measured.
    """

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
    """Squared lengths of gradients that are being summed over the replicas.

    L above T [2, G], summed over the replicas, stand in `values` after `wait`, each multiplied by
    its number of `factors`.
    """

    values: Tensor
    wait: Callable[[], object]
    factors: tuple[float, float]
    count: int
    scale: float
    step: int
    biased: bool


class GradientNoiseScale:
    """A measurer of the gradients of an optimizer's parameters; all replicas call it alike.

    For each optimizer step: `start`; `add` for every micro-gradient of every parameter; `finish`
    when the averaged gradients stand in `.grad`, again where more came; `advance` when the
    optimizer has made its step, without which nothing was measured. `collect` brings in what an
    earlier step has measured. `gradient_scale` tells what gradients are multiplied by (GradScaler).
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
        self.in_parts = False  # gradients of a micro-batch come in several passes

    @property
    def accum_scale(self) -> float:
        """The examples of a micro-batch, over all replicas, by M0."""
        return self._step.accum_scale

    @property
    def accum_count(self) -> int:
        """The micro-batches of an optimizer step."""
        return self._step.micros

    @property
    def scale(self) -> float:
        """S: the examples of an optimizer step by M0."""
        return self._step.scale

    @property
    def raw_sqr_avg(self) -> Floats:
        """The squared length of the true gradient by group, [G], as estimated."""
        return np.array(self.estimator.raw_sqr)

    @property
    def raw_var_avg(self) -> Floats:
        """The variance of a gradient of M0 examples by group, [G], as estimated."""
        return np.array(self.estimator.raw_var)

    def sqr_avg(self) -> float:
        """Return the squared length of the true gradient."""
        return self.estimator.sqr

    def var_avg(self) -> float:
        """Return the variance of a gradient of M0 examples."""
        return self.estimator.var

    def gain(self, scale: float) -> float:
        """Return how many steps at M0 a step of scale x M0 examples is worth."""
        return gain(self.estimator.sqr, self.estimator.var, scale)

    def start(self, accum_scale: float, micros: int, whole: float | None = None) -> None:
        """Begin an optimizer step of `micros` micro-batches.

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
        """Tell whether a step of one such micro-batch needs no call but `advance`.

        It is of as many examples as the last one was.
        """
        last, made = self._step, self._made
        if last.accum_scale != accum_scale or last.micros != 1 or self._is_due(made):
            return False
        return self._replicas > 1 or not self._is_due(made + 1)  # else its gradients are kept

    @property
    def measures(self) -> bool:
        """Tell whether the step at hand wants its micro-gradients added."""
        return bool(self._step.local)

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add a micro-gradient as autograd gives it: not averaged, not added to others yet."""
        group = self._step.groups.get(parameter)
        if group is not None:
            self._step.local[group] += self._product(parameter, gradient, gradient)

    def come_in_parts(self) -> None:
        """Know that a micro-batch has several passes; the step at hand is not measured any more."""
        if not self.in_parts:
            self.in_parts = True
            self._step.groups, self._step.local = {}, []
            self._sent = self._kept_at = None

    def finish(self, newest: Mapping[Tensor, Tensor] = MappingProxyType({})) -> None:
        """Measure the averaged gradients, which stand in `.grad`.

        `newest`: micro-gradients that were not added, for there may be more of them.
        """
        step, count = self._step, self._step.micros * self._replicas
        if count == 1:
            self._finish_pair()
        elif step.groups:
            local = [list(parts) for parts in step.local]
            for parameter, gradient in newest.items():
                if parameter in step.groups:
                    local[step.groups[parameter]] += self._product(parameter, gradient, gradient)
            gradients = _gradients(step.groups)
            total = self._products(gradients, gradients)  # of which each replica has a share
            factor = self._gradient_scale() ** 2
            lengths = _summed(local + total, self._nothing)
            self._send(lengths, (factor * count, factor), count, step.scale, biased=False)

    def advance(self) -> None:
        """Count the step that the optimizer has made."""
        self._made += 1
        if self._sent is not None:
            self._pending, self._sent = self._sent, None

    def collect(self) -> bool:
        """Give the estimator what was measured; return whether that was anything."""
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
        """Return the group of each parameter; anew, for an unfrozen layer may have joined."""
        groups = enumerate(self.optimizer.param_groups)
        return {p: i for i, group in groups for p in group["params"] if p in self._parameters}

    def _finish_pair(self) -> None:
        """Measure one replica without accumulation.

        That takes this step's gradients and the last one's, if kept. Where they come in parts,
        those of a measured step are not kept: more of it may come, to be measured with the last
        one's.
        """
        kept = self._kept_at == self._made - 1
        if kept and self._is_due(self._made):
            self._step.groups = self._groups()
            # Each product by the factors of its steps, for a GradScaler's changes.
            last, this = self._kept_scale, self._gradient_scale()
            old, new = self._kept, _gradients(self._step.groups)
            nothing = self._nothing
            one = _summed(self._products(old, old), nothing) / last**2
            two = _summed(self._products(new, new), nothing) / this**2
            both = _summed(self._products(old, new), nothing) / (last * this)
            lengths = torch.cat([one + two, one + two + 2 * both])
            self._send(lengths, (2.0, 4.0), 2, 2 * self.accum_scale, biased=True)
            if self.in_parts:
                return
        self._kept_at = None
        if self._is_due(self._made + 1):
            self._kept_at, self._kept_scale = self._made, self._gradient_scale()
            gradients, buffers = _gradients(self._groups()), self._kept
            self._kept = {p: buffers[p] if p in buffers else torch.empty_like(p) for p in gradients}
            for parameter, gradient in gradients.items():
                self._kept[parameter].copy_(gradient)

    def _products(
        self, one: Mapping[Tensor, Tensor], two: Mapping[Tensor, Tensor]
    ) -> list[list[Tensor]]:
        """Return this replica's share of the inner product of gradients: parts, by group.

        The gradients are given by parameter. All replicas hold the same gradients, so each
        multiplies as many elements as another.
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
        del parameter  # Adam's product needs it
        return inner_product(one, two, share=share)

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
    """The noise scale in the space in which Adam steps: of gradients divided by sqrt(v_hat) + eps.

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


def _gradients(parameters: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    return {p: p.grad for p in parameters if p.grad is not None}


def _summed(parts: Sequence[list[Tensor]], nothing: Tensor) -> Tensor:
    """Sum each list, in float64; an empty one is `nothing`."""
    return torch.stack(
        [torch.stack(of).sum(dtype=torch.float64) if of else nothing for of in parts]
    )


def _at_once() -> None:
    """Return at once: there is nothing to wait for."""
