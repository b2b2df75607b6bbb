"""Optimizers of nn/optimizers.py that torch.optim lacks, as optimizers of torch.

A parameter that is a row of a table (`as_row`) is treated as the servers treat a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def as_row(parameter: nn.Parameter) -> nn.Parameter:
    """Mark the parameter as a row of a table, and return it."""
    parameter.is_row = True  # type: ignore[attr-defined]
    return parameter


def clip(optimizer: torch.optim.Optimizer, norm: float, value: float, row_norm: float) -> None:
    """Clip all gradients by their norm, each by value, those of rows by their own; 0: not at all.

    `norm`: of all that the optimizer has.
    """
    if norm:
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        nn.utils.clip_grad_norm_(list(map(_dense_for_clipping, weights)), norm)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is None:
                continue
            if value:
                weight.grad = weight.grad.clamp(-value, value)
            if row_norm and getattr(weight, "is_row", False):
                nn.utils.clip_grad_norm_([weight], row_norm)


def _dense_for_clipping(weight: Tensor) -> Tensor:
    """Return the weight, or a tensor whose gradient is the values of the weight's sparse one."""
    if weight.grad is None or not weight.grad.is_sparse:
        return weight
    weight.grad = weight.grad.coalesce()
    values = weight.grad._values()
    stand_in = torch.empty_like(values)
    stand_in.grad = values  # its memory: clipped in place
    return stand_in


class _Own(torch.optim.Optimizer):
    """The loop over parameters; `state["step"]` counts the updates of each, this one included."""

    def __init__(self, parameters: Iterable[nn.Parameter], **defaults: Any) -> None:
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, _closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"] = torch.tensor(0.0)
                state["step"] += 1
                grad = -weight.grad if group["maximize"] else weight.grad
                self._update(weight, grad, state, group)

    def _update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


def _moments(g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Renew Adam's moments; return them corrected."""
    beta1, beta2 = group["betas"]
    m = state.setdefault("exp_avg", torch.zeros_like(g)).lerp_(g, 1 - beta1)
    v = state.setdefault("exp_avg_sq", torch.zeros_like(g)).mul_(beta2).add_((1 - beta2) * g * g)
    t = state["step"].item()
    return m / (1 - beta1**t), v / (1 - beta2**t)


class FTRL(_Own):
    """See optimizers.FTRL."""

    def _update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        lr, beta, l1, l2 = (group[k] for k in ("lr", "beta", "l1", "l2"))
        first = group["initial_accumulator_value"]
        n = state.setdefault("n", torch.full_like(w, first))
        z = state.setdefault("z", torch.zeros_like(w))
        if lr <= 0:
            return  # the formula divides by the rate
        sigma = ((n + g * g).sqrt() - n.sqrt()) / lr
        z += g + 2 * group["l2_shrinkage"] * w - sigma * w
        n += g * g
        shrunk = -(z - z.sign() * l1) / ((beta + n.sqrt()) / lr + l2)
        w.copy_(torch.where(z.abs() <= l1, torch.zeros_like(z), shrunk))


class RowWiseAdagrad(_Own):
    """See optimizers.RowWiseAdagrad."""

    def _update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        row = getattr(w, "is_row", False)
        like = w.new_empty(1) if row else w
        first = group["initial_accumulator_value"]
        total = state.setdefault("row_sum", torch.full_like(like, first))
        g = g + group["weight_decay"] * w
        total += (g * g).mean() if row else g * g
        rate = group["lr"] / (1 + (state["step"].item() - 1) * group["lr_decay"])
        w -= rate * g / (total.sqrt() + group["eps"])


class Lion(_Own):
    """See optimizers.Lion."""

    def _update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        m = state.setdefault("exp_avg", torch.zeros_like(w))
        sign = (beta1 * m + (1 - beta1) * g).sign()
        w.mul_(1 - lr * group["weight_decay"]).sub_(lr * sign)
        m.mul_(beta2).add_((1 - beta2) * g)


class LAMB(_Own):
    """See optimizers.LAMB; the norms are of a whole parameter."""

    def _update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        m, v = _moments(g, state, group)
        update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * w
        here, there = w.norm().item(), update.norm().item()
        w -= group["lr"] * (here / there if here and there else 1.0) * update


class GroupAdam(_Own):
    """See optimizers.GroupAdam."""

    def _update(self, w: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        lr, eps, t = group["lr"], group["eps"], state["step"].item()
        z = state.setdefault("z", torch.zeros_like(w))
        before = torch.zeros_like(w)
        if t > 1:
            before = (state["exp_avg_sq"] / (1 - group["betas"][1] ** (t - 1))).sqrt() + eps
        m, v = _moments(g, state, group)
        over = v.sqrt() + eps
        z += lr * m - (over - before) * w
        s = -(z - z.sign() * torch.clamp(z.abs(), max=lr * group["l1"]))
        left = 1.0
        if getattr(w, "is_row", False):
            least, norm = lr * group["l21"] * w.numel() ** 0.5, s.norm().item()
            left = 1 - least / norm if norm > least else 0.0
        w.copy_(torch.where(over > 0, left * s / over, torch.zeros_like(s)))
