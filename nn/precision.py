"""The numbers that a model computes in: half ones by torch's autocast, with float32 around it.

Parameters, gradients, the model's outputs and the loss are float32 whatever the precision: only
what lies between them, the forward pass and the backward pass of it, is computed in bfloat16 or
float16, where torch.autocast holds that to be sound. So losses, metrics, predictions, servers and
checkpoints know nothing of it.

A float16 gradient below 6e-8 is 0, so the loss is multiplied by a scale, and the gradients of the
parameters are divided by it. `LossScale` moves as torch.amp.GradScaler does, but for one thing: a
step whose gradients overflow is computed again by half the scale instead of being left out, since
each record is to be applied exactly once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..common.errors import UsageError
from .buffers import NonFinite

DTYPES = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

_FIRST = 2.0**16  # as GradScaler begins
_LEAST = 2.0**-10  # below it the gradients themselves are not finite
_INTERVAL = 2000  # steps without overflow before the scale is doubled, as GradScaler's

T = TypeVar("T")


class Overflow(NonFinite):
    """A gradient is NaN or infinite: where the loss was scaled, by too much perhaps."""


class LossScale:
    """The factor of a float16 job's losses.

    `remembers`: it goes on from what fitted the steps before; else each step begins anew, so that
    its gradients are a function of its records and parameters alone. A group's members see the same
    gradients, so their factors are the same as long as they began together (`reset`).
    """

    def __init__(self, *, remembers: bool = True) -> None:
        self.value = _FIRST
        self._remembers = remembers
        self._fitted = 0

    def reset(self) -> None:
        """Begin anew."""
        self.value, self._fitted = _FIRST, 0

    def fit(self, compute: Callable[[], T]) -> T:
        """Return what `compute` does, by half the scale after each Overflow.

        Raises Overflow where none fits: then the scale stays as it was, for the other records.
        """
        if not self._remembers:
            self.reset()
        before = self.value
        while True:
            try:
                found = compute()
            except Overflow:
                if self.value <= _LEAST:
                    self.value = before
                    raise
                self.value, self._fitted = self.value / 2, 0
                continue
            self._fitted += 1
            if self._fitted == _INTERVAL:
                self.value, self._fitted = self.value * 2, 0
            return found


class Precision:
    """One of DTYPES on a device, around the passes of a model.

    `repeatable`: see LossScale. Raises UsageError where the device has no such numbers.
    """

    def __init__(self, name: str, device: torch.device, *, repeatable: bool = False) -> None:
        self._dtype = DTYPES[name]
        self._device = device
        self.scale = LossScale(remembers=not repeatable) if name == "fp16" else None
        cuda = device.type == "cuda"
        if name == "bf16" and cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise UsageError(
                f"--precision bf16, but {torch.cuda.get_device_name(device)} does not compute in "
                "bfloat16: use --precision fp16, or float32"
            )

    def of(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass in these numbers; what it returns is float32 at least."""
        if self._dtype is None:
            return forward

        def passed(*features: Any) -> Any:
            with torch.autocast(self._device.type, self._dtype):
                outputs = forward(*features)
            return widened(outputs)

        return passed

    def factor(self) -> float:
        """Return what a loss is multiplied by before its backward pass; 1 where by nothing."""
        return 1.0 if self.scale is None else self.scale.value

    @torch.no_grad()
    def unscale(self, gradients: Iterable[Tensor | None]) -> None:
        """Divide gradients by the factor, in place."""
        there = [gradient for gradient in gradients if gradient is not None]
        if self.scale is not None and there:
            torch._foreach_mul_(there, 1.0 / self.scale.value)

    def fit(self, compute: Callable[[], T]) -> T:
        """Return what `compute` does, again by a smaller factor where its gradients overflow."""
        return compute() if self.scale is None else self.scale.fit(compute)

    def reset(self) -> None:
        """Begin a round: all members of a group scale alike from here on."""
        if self.scale is not None:
            self.scale.reset()


def widened(outputs: Any) -> Any:
    """Return outputs with tensors of 16-bit numbers as float32, in dicts, lists and tuples too."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        fields = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
        halves = {
            name: wide for name, value in fields.items() if (wide := widened(value)) is not value
        }
        return dataclasses.replace(outputs, **halves) if halves else outputs
    if isinstance(outputs, Mapping):
        wide = {key: widened(value) for key, value in outputs.items()}
        return outputs if all(wide[key] is outputs[key] for key in wide) else wide
    if isinstance(outputs, list | tuple):
        parts = [widened(value) for value in outputs]
        if all(part is value for part, value in zip(parts, outputs, strict=True)):
            return outputs
        named = isinstance(outputs, tuple) and hasattr(outputs, "_fields")
        return type(outputs)(*parts) if named else type(outputs)(parts)
    return outputs
