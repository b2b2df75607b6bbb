"""The state of torch's optimizers by weight and by the servers' names (ps/rows/optimizers.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...nn import optimizers as specs

_OF_STEPS = ("step", "mu_product")  # what is a function of the steps alone


def state_names(spec: specs.Optimizer) -> dict[str, str]:
    """Return the servers' names of the state beside a weight, and torch's."""
    match spec:
        case specs.SGD():
            return {"momentum": "momentum_buffer"} if spec.momentum else {}
        case specs.Adagrad():
            names = ["sum"]
        case specs.RowWiseAdagrad():
            names = ["row_sum"]
        case specs.RMSprop():
            names = ["square_avg", *(["grad_avg"] if spec.centered else [])]
            names += ["momentum_buffer"] if spec.momentum else []
        case specs.Adadelta():
            names = ["square_avg", "acc_delta"]
        case specs.Lion():
            names = ["exp_avg"]
        case specs.Adamax():
            names = ["exp_avg", "exp_inf"]
        case specs.FTRL():
            names = ["z", "n"]
        case _:
            names = ["exp_avg", "exp_avg_sq"]
            names += ["max_exp_avg_sq"] if getattr(spec, "amsgrad", False) else []
            names += ["z"] if isinstance(spec, specs.GroupAdam) else []
    return {name: name for name in names}


def get_state(optimizer: torch.optim.Optimizer, weight: Tensor) -> tuple[int, dict[str, Tensor]]:
    """Return the steps that the weight has had, and its state by torch's names.

    0 steps: it has no state yet.
    """
    state = {
        name: value
        for name, value in optimizer.state[weight].items()
        if name not in _OF_STEPS and isinstance(value, Tensor)
    }
    if not state:
        return 0, {}
    return int(optimizer.state[weight].get("step", 1)), state


def set_state(
    optimizer: torch.optim.Optimizer, weight: Tensor, steps: int, state: dict[str, Tensor]
) -> None:
    """Give the weight the state that `get_state` returned."""
    optimizer.state[weight].clear()
    if steps:
        told = (
            {} if isinstance(optimizer, torch.optim.SGD) else {"step": torch.tensor(float(steps))}
        )
        if isinstance(optimizer, torch.optim.NAdam):
            told["mu_product"] = _mu_product(optimizer.param_groups[0], steps)
        optimizer.state[weight].update(told | state)
    elif isinstance(optimizer, torch.optim.Adagrad):  # it has its state from the start
        initial = optimizer.param_groups[0]["initial_accumulator_value"]
        optimizer.state[weight].update(
            {"step": torch.tensor(0.0), "sum": torch.full_like(weight, initial)}
        )


def _mu_product(group: dict[str, Any], steps: int) -> Tensor:
    """Return what NAdam keeps beside the steps, to the bit: torch multiplies it up in float32."""
    product, step = torch.tensor(1.0), 0
    while step < steps and product > 0:
        step += 1
        product *= group["betas"][0] * (1.0 - 0.5 * (0.96 ** (step * group["momentum_decay"])))
    return product
