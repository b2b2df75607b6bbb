"""torch's optimizers for the specs of nn/optimizers.py, and their state by the servers' names.

What a spec means does not depend on who applies it: the servers' fused kernels (ps/optimizers.py) and
these agree within float32 tolerance, and a checkpoint of one strategy is one of every other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..nn import optimizers as specs


class FTRL(torch.optim.Optimizer):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1), as nn/optimizers.py has it."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, beta: float, l1: float, l2: float
    ) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "l1": l1, "l2": l2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; none where the rate is 0, by which the formula would divide."""
        for group in self.param_groups:
            lr, beta, l1, l2 = (group[name] for name in ("lr", "beta", "l1", "l2"))
            for weight in group["params"]:
                if weight.grad is None or lr <= 0.0:
                    continue
                state, grad = self.state[weight], weight.grad
                if not state:
                    state["z"], state["n"] = torch.zeros_like(weight), torch.zeros_like(weight)
                    state["step"] = torch.tensor(0.0)
                z, n = state["z"], state["n"]
                sigma = ((n + grad * grad).sqrt() - n.sqrt()) / lr
                z += grad - sigma * weight
                n += grad * grad
                state["step"] += 1
                weight.copy_(-(z - z.sign() * l1) / ((beta + n.sqrt()) / lr + l2))
                weight.masked_fill_(z.abs() <= l1, 0.0)


def make(spec: specs.Optimizer, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """torch's optimizer for the spec. Its learning rate is to be set before each step."""
    lr = 1.0
    match spec:
        case specs.SGD():
            return torch.optim.SGD(
                parameters,
                lr,
                momentum=spec.momentum,
                dampening=spec.dampening,
                weight_decay=spec.weight_decay,
                nesterov=spec.nesterov,
            )
        case specs.Adagrad():
            return torch.optim.Adagrad(
                parameters,
                lr,
                weight_decay=spec.weight_decay,
                initial_accumulator_value=spec.initial_accumulator_value,
                eps=spec.eps,
            )
        case specs.Adam() | specs.AdamW():
            kind = torch.optim.AdamW if isinstance(spec, specs.AdamW) else torch.optim.Adam
            return kind(
                parameters,
                lr,
                betas=spec.betas,
                eps=spec.eps,
                weight_decay=spec.weight_decay,
                amsgrad=spec.amsgrad,
            )
        case specs.FTRL():
            return FTRL(parameters, lr, spec.beta, spec.l1, spec.l2)


def state_names(spec: specs.Optimizer) -> dict[str, str]:
    """The servers' names of the state beside a weight, and torch's."""
    match spec:
        case specs.SGD():
            return {"momentum": "momentum_buffer"} if spec.momentum else {}
        case specs.Adagrad():
            return {"sum": "sum"}
        case specs.Adam() | specs.AdamW():
            names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if spec.amsgrad else [])]
            return {name: name for name in names}
        case specs.FTRL():
            return {"z": "z", "n": "n"}


def get_state(optimizer: torch.optim.Optimizer, weight: Tensor) -> tuple[int, dict[str, Tensor]]:
    """Steps that the weight has had (0: it has no state yet), and its state by torch's names."""
    state = {
        name: value
        for name, value in optimizer.state[weight].items()
        if name != "step" and isinstance(value, Tensor)
    }
    if not state:
        return 0, {}
    return int(optimizer.state[weight].get("step", 1)), state


def set_state(
    optimizer: torch.optim.Optimizer, weight: Tensor, steps: int, state: dict[str, Tensor]
) -> None:
    """As `get_state` told it."""
    optimizer.state[weight].clear()
    if steps:
        has_step = not isinstance(optimizer, torch.optim.SGD)
        told = {"step": torch.tensor(float(steps))} if has_step else {}
        optimizer.state[weight].update(told | state)
    elif isinstance(optimizer, torch.optim.Adagrad):  # it has its state from the start
        initial = optimizer.param_groups[0]["initial_accumulator_value"]
        optimizer.state[weight].update(
            {"step": torch.tensor(0.0), "sum": torch.full_like(weight, initial)}
        )
