"""The state of torch's optimizers by weight and by the servers' names (ps/rows/optimizers.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...nn import optimizers as specs


def state_names(spec: specs.Optimizer) -> dict[str, str]:
    """Return the servers' names of the state beside a weight, and torch's."""
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
    """Return the steps that the weight has had, and its state by torch's names.

    0 steps: it has no state yet.
    """
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
    """Give the weight the state that `get_state` returned."""
    optimizer.state[weight].clear()
    if steps:
        counts = isinstance(optimizer, torch.optim.Adagrad | torch.optim.Adam)  # AdamW is one
        told = {"step": torch.tensor(float(steps))} if counts else {}
        optimizer.state[weight].update(told | state)
    elif isinstance(optimizer, torch.optim.Adagrad):  # it has its state from the start
        initial = optimizer.param_groups[0]["initial_accumulator_value"]
        optimizer.state[weight].update(
            {"step": torch.tensor(0.0), "sum": torch.full_like(weight, initial)}
        )
