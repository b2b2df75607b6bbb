"""Optimizer specs: what a definition's `optimizer()` returns.

Names, arguments and defaults are torch.optim's. The servers apply them (ps/rows/optimizers.py); a
spec is plain data and imports no torch. `lr` is a number or a schedule of the server's version
(steps).
"""

from __future__ import annotations

import dataclasses
import numbers
from dataclasses import dataclass
from typing import Any

from ..common.errors import DefinitionError
from . import schedules
from .schedules import Schedule


class _Spec:
    """The base of all optimizers: a learning rate that can be told to the servers."""

    lr: float | Schedule

    def __post_init__(self) -> None:
        lr: Any = self.lr
        if isinstance(lr, Schedule):
            return
        if isinstance(lr, bool) or not isinstance(lr, numbers.Real):
            raise DefinitionError(
                f"{type(self).__name__}(lr={_told(lr)}): lr is a number or a schedule of edl.nn, "
                f"{', '.join(schedules.SCHEDULES)}, which the servers can follow; no scheduler of "
                "torch; a function of the version is lr=edl.nn.sampled(function, steps=N)"
            )
        object.__setattr__(self, "lr", float(lr))  # numpy's are none that JSON knows


@dataclass(frozen=True)
class SGD(_Spec):
    """torch.optim.SGD: momentum, Nesterov, dampening, L2 weight decay."""

    lr: float | Schedule = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True)
class Adagrad(_Spec):
    """torch.optim.Adagrad (without lr_decay: use a schedule)."""

    lr: float | Schedule = 1e-2
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


@dataclass(frozen=True)
class Adam(_Spec):
    """torch.optim.Adam; with amsgrad=True the AMSGrad variant."""

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False


@dataclass(frozen=True)
class AdamW(_Spec):
    """torch.optim.AdamW: weight decay decoupled from the gradient."""

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False


@dataclass(frozen=True)
class FTRL(_Spec):
    """FTRL-Proximal (McMahan et al. 2013, "Ad click prediction", algorithm 1).

    Per coordinate: sigma = (sqrt(n + g^2) - sqrt(n)) / lr; z += g - sigma * w; n += g^2;
    w = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2).
    """

    lr: float | Schedule = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


Optimizer = SGD | Adagrad | Adam | AdamW | FTRL
OPTIMIZERS: dict[str, type[Optimizer]] = {c.__name__: c for c in (SGD, Adagrad, Adam, AdamW, FTRL)}


def _told(value: object) -> str:
    kind = type(value)
    if callable(value):
        return f"a {kind.__name__}"
    return (
        repr(value)
        if isinstance(value, str | bool) or value is None
        else f"a {kind.__module__}.{kind.__qualname__}"
    )


def learning_rate(optimizer: Optimizer, version: int) -> float:
    """Return the learning rate of the step that takes `version` to `version + 1`."""
    lr = optimizer.lr
    return lr.at(version) if isinstance(lr, Schedule) else float(lr)


def to_dict(optimizer: Optimizer) -> dict[str, Any]:
    """Return the spec ready for JSON; `from_dict` reads it back."""
    fields = {f.name: getattr(optimizer, f.name) for f in dataclasses.fields(optimizer)}
    lr = fields["lr"]
    if isinstance(lr, Schedule):
        fields["lr"] = schedules.to_dict(lr)
    return {"name": type(optimizer).__name__, **fields}


def from_dict(values: dict[str, Any]) -> Optimizer:
    """Return the spec that `to_dict` wrote.

    Raises DefinitionError for an unknown name.
    """
    fields = dict(values)
    name = fields.pop("name")
    if name not in OPTIMIZERS:
        raise DefinitionError(f"unknown optimizer {name!r}: choose from {sorted(OPTIMIZERS)}")
    if isinstance(fields["lr"], dict):
        fields["lr"] = schedules.from_dict(fields["lr"])
    if "betas" in fields:
        fields["betas"] = tuple(fields["betas"])
    optimizer: Optimizer = OPTIMIZERS[name](**fields)
    return optimizer
