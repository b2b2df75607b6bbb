"""A module that is evaluated with the moving average of the weights that it trains (EMA).

The averages are buffers, so they go where running statistics go: to the servers, through an
all-reduce, into checkpoints, and with the model to whoever loads it. A step moves them as the
forward pass finds the weights, which is what torch's AveragedModel does where it is updated before
each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..common.errors import DefinitionError


class Averaged(nn.Module):
    """`module`, evaluated with averages of the weights that are trained.

    Each forward pass in training mode first makes of each average `decay * average + (1 - decay) *
    weight`; the first values are the weights'. Rows of tables have no average.
    """

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise DefinitionError(f"edl.nn.Averaged: decay is from 0 to below 1, not {decay!r}.")
        self.module = module
        self.decay = decay
        self.average = nn.Module()
        for name, weight in self._trained().items():
            self.average.register_buffer(_key(name), weight.detach().clone())

    def forward(self, *features: Any, **named: Any) -> Any:
        if self.training:
            self._move()
            return self.module(*features, **named)
        averages = {name: self.average.get_buffer(_key(name)) for name in self._trained()}
        return functional_call(self.module, averages, features, named)

    def forget_moved(self) -> None:
        """Keep averages of what is still a weight: rows may have moved to the servers."""
        left = {_key(name) for name in self._trained()}
        for key in [*self.average._buffers]:
            if key not in left:
                del self.average._buffers[key]

    def _trained(self) -> dict[str, Tensor]:
        return {
            name: weight
            for name, weight in self.module.named_parameters()
            if weight.requires_grad and weight.is_floating_point()
        }

    @torch.no_grad()
    def _move(self) -> None:
        for name, weight in self._trained().items():
            average = self.average.get_buffer(_key(name))
            if average.shape != weight.shape or type(weight.data) is not Tensor:
                raise DefinitionError(
                    "edl.nn.Averaged needs whole weights, and --fully_shard splits them: leave out "
                    "one of the two"
                )
            average.lerp_(weight, 1 - self.decay)

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


def _key(name: str) -> str:
    """Return the name of an average: no buffer's name has a dot."""
    return name.replace(".", "/")
