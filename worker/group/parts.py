"""A part of a sharded state: one rank's rows of all parameters, and the optimizer's state of them.

torch's fully_shard splits each parameter by its first dimension: of R ranks, rank r has the rows [r
* ceil(n / R), (r + 1) * ceil(n / R)). A `Part` is named (R, r). Parts of one version and name are
equal, whoever has them. They are read by stretches: [start, stop) of one parameter, flat.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import safetensors.torch
import torch
from torch import Tensor, nn

from ...nn.local import torch_optimizer
from ...nn.model_spec import ModelSpec
from . import optimizer_state
from .checkpoint import STATE, loaded

Range = tuple[int, int, int]  # number of a parameter; [start, stop) of it, flat
Read = Callable[[int, int, Sequence[Range]], "list[Stretch]"]  # those of the part (world, rank)


@dataclass
class Stretch:
    """Values of a parameter from `start` on, flat, and the optimizer's state of them."""

    number: int
    start: int
    value: Tensor
    steps: int = 0
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        return self.start + self.value.numel()

    @torch.no_grad()
    def put(self, other: Stretch) -> None:
        """Take over the values and the state that both stretches have in common."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        if start >= stop:
            return
        mine = slice(start - self.start, stop - self.start)
        theirs = slice(start - other.start, stop - other.start)
        self.value[mine] = other.value[theirs]
        self.steps = max(self.steps, other.steps)
        for name, value in other.state.items():
            self.state.setdefault(name, torch.empty_like(self.value))[mine] = value[theirs]


def rows_of(count: int, world: int, rank: int) -> tuple[int, int]:
    """Return the rows that fully_shard gives a rank of so many, split as torch.chunk does."""
    size = -(-count // world)
    return min(rank * size, count), min((rank + 1) * size, count)


def range_of(number: int, like: Tensor, world: int, rank: int) -> Range:
    """Return the range of a parameter that a rank of so many has, flat."""
    start, stop = rows_of(len(like), world, rank)
    width = math.prod(like.shape[1:])
    return number, start * width, stop * width


class Part:
    """The rows of rank `rank` of `world`, of all parameters, and an optimizer of them."""

    def __init__(
        self, spec: ModelSpec, like: Sequence[Tensor], world: int, rank: int, device: torch.device
    ) -> None:
        """Make a part whose values are still to come.

        `like`: the parameters' shapes and types.
        """
        self.world, self.rank = world, rank
        self._spec, self._like = spec, like
        self._ranges = [range_of(n, p, world, rank) for n, p in enumerate(like)]
        self.weights = []
        for parameter in like:
            start, stop = rows_of(len(parameter), world, rank)
            shape = (stop - start, *parameter.shape[1:])
            self.weights.append(nn.Parameter(parameter.new_empty(shape, device=device)))
        self.optimizer = torch_optimizer(spec.dense_optimizer, self.weights)

    @property
    def name(self) -> tuple[int, int]:
        return self.world, self.rank

    @property
    def numel(self) -> int:
        """The number of values of its parameters."""
        return sum(weight.numel() for weight in self.weights)

    def stretches(self) -> list[Stretch]:
        """Return all stretches of the part, by parameter: views."""
        found = []
        for (number, start, _), weight in zip(self._ranges, self.weights, strict=True):
            steps, state = optimizer_state.get_state(self.optimizer, weight)
            flat = {name: value.reshape(-1) for name, value in state.items()}
            found.append(Stretch(number, start, weight.detach().reshape(-1), steps, flat))
        return found

    def read(self, ranges: Sequence[Range]) -> list[Stretch]:
        """Return copies of stretches of the part."""
        stretches = self.stretches()
        found = []
        for number, start, stop in ranges:
            has = stretches[number]
            target = Stretch(number, start, has.value.new_empty(stop - start))
            target.put(has)
            found.append(target)
        return found

    def set_states(self, stretches: Sequence[Stretch]) -> None:
        """Give the optimizer the state in these stretches, which are of all of the parameters."""
        for weight, has in zip(self.weights, stretches, strict=True):
            state = {name: value.view_as(weight) for name, value in has.state.items()}
            optimizer_state.set_state(self.optimizer, weight, has.steps, state)

    @torch.no_grad()
    def adopt(self, tensors: Sequence[Tensor]) -> None:
        """Move the part's values into these tensors, and live in them from now on."""
        for weight, tensor in zip(self.weights, tensors, strict=True):
            tensor.copy_(weight)
            weight.data = tensor

    def step(self, gradients: Sequence[Tensor | None], rate: float) -> None:
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def blank(self) -> list[Stretch]:
        """Return the places of the part's parameters, for values; then `set_states` of the same."""
        places = zip(self._ranges, self.weights, strict=True)
        return [Stretch(n, start, w.detach().reshape(-1)) for (n, start, _), w in places]

    def copy(self, device: torch.device) -> Part:
        """Return a copy of the part, on a device, which the steps that follow do not touch."""
        twin = Part(self._spec, self._like, *self.name, device)
        targets = twin.blank()
        for target, has in zip(targets, self.stretches(), strict=True):
            target.put(has)
        twin.set_states(targets)
        return twin


def pack(stretches: Iterable[Stretch]) -> bytes:
    """Make one blob of stretches, for another member."""
    tensors: dict[str, Tensor] = {}
    about = []
    for place, each in enumerate(stretches):
        tensors[f"{place}.value"] = each.value
        tensors |= {f"{place}.{STATE}{name}": value for name, value in each.state.items()}
        about.append([each.number, each.start, each.steps])
    return safetensors.torch.save(tensors, {"edl": json.dumps(about)})


def unpack(blob: bytes, device: torch.device) -> list[Stretch]:
    """Return the stretches that `pack` made a blob of, on a device."""
    about, tensors = loaded(blob)
    found = [
        Stretch(number, start, tensors.pop(f"{place}.value").to(device), steps)
        for place, (number, start, steps) in enumerate(about)
    ]
    for key, value in tensors.items():
        place, _, name = key.partition(f".{STATE}")
        found[int(place)].state[name] = value.to(device)
    return found
