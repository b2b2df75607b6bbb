"""Optimizer specs: what a definition's `optimizer()` returns.

Names, arguments and defaults are torch.optim's. The servers apply them (ps/rows/optimizers.py); a
spec is plain data and imports no torch. `lr` is a number or a schedule of the server's version
(steps).
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from dataclasses import dataclass, field
from typing import Any

from ..common.errors import DefinitionError
from . import schedules
from .schedules import Schedule


def _later(default: Any) -> Any:
    """Return a field that older checkpoints lack: it is written where it is not the default."""
    return field(default=default, metadata={"later": True})


@dataclass(frozen=True, kw_only=True, repr=False)
class _Spec:
    """The base of all optimizers: numbers that can be told to the servers.

    Gradients are clipped before they are used; 0: they are not. `clip_norm`: all gradients of a
    worker's push together, rows among them, by their norm, before they leave the worker, as
    torch.nn.utils.clip_grad_norm_ does. `clip_value`: each element, as clip_grad_value_ does, and
    `clip_row_norm`: a row's by its norm, both where a step applies them.
    """

    maximize: bool = _later(False)
    clip_value: float = _later(0.0)
    clip_row_norm: float = _later(0.0)
    clip_norm: float = _later(0.0)

    def __post_init__(self) -> None:
        lr: Any = getattr(self, "lr")  # noqa: B009 which each of them has
        if not isinstance(lr, Schedule) and (
            isinstance(lr, bool) or not isinstance(lr, numbers.Real)
        ):
            raise DefinitionError(
                f"{type(self).__name__}(lr={_told(lr)}): lr is a number or a schedule of edl.nn, "
                f"{', '.join(schedules.SCHEDULES)}, which the servers can follow; no scheduler of "
                "torch; a function of the version is lr=edl.nn.sampled(function, steps=N)"
            )
        for name in (f.name for f in dataclasses.fields(self)):
            value = getattr(self, name)
            if name == "betas":
                value = self._betas(value)
            elif isinstance(getattr(type(self), name), bool):
                value = bool(value)
            elif not isinstance(value, Schedule):
                value = self._number(name, value)
            object.__setattr__(self, name, value)  # numpy's are none that JSON knows
        if min(self.clip_value, self.clip_row_norm, self.clip_norm) < 0:
            raise DefinitionError(f"{type(self).__name__}: clip above 0, or at 0 not at all")

    def check(self) -> None:
        """Raise DefinitionError for what torch refuses, and for what grows without bound.

        SGD alone takes a rate below 0, and climbs. A spec that was written is read all the same.
        """
        first: Any = self
        if not isinstance(self, SGD) and min(learning_rate(first, at) for at in (0, 1)) < 0:
            raise DefinitionError(
                f"{type(self).__name__}: lr is 0 or more; what shall become more, and not less, is "
                "said by maximize=True"
            )
        for name in (f.name for f in dataclasses.fields(self)):
            value = getattr(self, name)
            if name in ("lr", "dampening", "betas") or not isinstance(value, float):
                continue
            is_share = name in ("alpha", "rho")
            if value < 0 or (is_share and value > 1):
                bounds = "from 0 to 1" if is_share else "0 or more"
                raise DefinitionError(f"{type(self).__name__}: {name} is {bounds}, not {value:g}")

    def __repr__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name != "lr"}
        told = [f"{n}={v!r}" for n, v in given.items() if n == "lr" or v != defaults[n]]
        return f"{type(self).__name__}({', '.join(sorted(told, key=lambda t: t[:3] != 'lr='))})"

    def _number(self, name: str, value: Any) -> float:
        good = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not good or not math.isfinite(value):
            raise DefinitionError(f"{type(self).__name__}: {name} is a number, not {value!r}")
        return float(value)

    def _betas(self, value: Any) -> tuple[float, float]:
        try:
            beta1, beta2 = value
        except (TypeError, ValueError):
            raise DefinitionError(
                f"{type(self).__name__}: betas are two numbers, not {value!r}"
            ) from None
        betas = self._number("betas", beta1), self._number("betas", beta2)
        if not all(0 <= beta < 1 for beta in betas):
            raise DefinitionError(f"{type(self).__name__}: betas are from 0 to below 1")
        return betas


@dataclass(frozen=True, repr=False)
class SGD(_Spec):
    """torch.optim.SGD: momentum, Nesterov, dampening, L2 weight decay."""

    lr: float | Schedule = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def check(self) -> None:
        super().check()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise DefinitionError("SGD: nesterov needs momentum above 0, and dampening 0")


@dataclass(frozen=True, repr=False)
class Adagrad(_Spec):
    """torch.optim.Adagrad; lr_decay counts the updates of each row for itself."""

    lr: float | Schedule = 1e-2
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    lr_decay: float = _later(0.0)


@dataclass(frozen=True, repr=False)
class RowWiseAdagrad(_Spec):
    """Adagrad with one number of state a row, as torchrec's EXACT_ROWWISE_ADAGRAD.

    Per row: sum += mean(g^2); w -= lr * g / (sqrt(sum) + eps). An element of a dense tensor is a
    row of its own: there it is torch.optim.Adagrad.
    """

    lr: float | Schedule = 1e-2
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    lr_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class Adam(_Spec):
    """torch.optim.Adam; with amsgrad=True the AMSGrad variant."""

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False


@dataclass(frozen=True, repr=False)
class AdamW(_Spec):
    """torch.optim.AdamW: weight decay decoupled from the gradient."""

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False


@dataclass(frozen=True, repr=False)
class NAdam(_Spec):
    """torch.optim.NAdam: Adam with Nesterov's momentum."""

    lr: float | Schedule = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False


@dataclass(frozen=True, repr=False)
class RAdam(_Spec):
    """torch.optim.RAdam: Adam whose first steps are not divided by a variance of few samples."""

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False


@dataclass(frozen=True, repr=False)
class Adamax(_Spec):
    """torch.optim.Adamax: Adam with the greatest gradient so far instead of the variance."""

    lr: float | Schedule = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class RMSprop(_Spec):
    """torch.optim.RMSprop, centered and with momentum too."""

    lr: float | Schedule = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False


@dataclass(frozen=True, repr=False)
class Adadelta(_Spec):
    """torch.optim.Adadelta."""

    lr: float | Schedule = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class Lion(_Spec):
    """Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", program 1).

    w -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w);
    m = beta2 * m + (1 - beta2) * g.
    """

    lr: float | Schedule = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class LAMB(_Spec):
    """LAMB (You et al. 2020, "Large batch optimization for deep learning", algorithm 2).

    u = Adam's m / (sqrt(v) + eps), corrected, + weight_decay * w; w -= lr * |w| / |u| * u, where
    neither norm is 0 (else lr * u). The norms are of a row, and of a dense tensor, of which the
    servers take each 1,048,576 elements for themselves.
    """

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class GroupAdam(_Spec):
    """Adam with sparse group lasso (Yue et al. 2021, arXiv 2107.14432, algorithm 2): rows become 0.

    m and v as Adam's, corrected, a = sqrt(v) + eps; z += lr * m - (a - a before) * w; s = -z nearer
    to 0 by lr * l1; w = 0 where |s| <= lr * l21 * sqrt(dim), else (1 - lr * l21 * sqrt(dim) / |s|)
    * s / a. So without l1 and l21 it is Adam. The paper's z is this one by lr: a schedule then
    moves weights no more than in Adam. `l21` is for rows of tables only.
    """

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    l1: float = 0.0
    l21: float = 0.0


@dataclass(frozen=True, repr=False)
class FTRL(_Spec):
    """FTRL-Proximal (McMahan et al. 2013, "Ad click prediction", algorithm 1).

    Per coordinate: sigma = (sqrt(n + g^2) - sqrt(n)) / lr; z += g + 2 * l2_shrinkage * w - sigma *
    w; n += g^2; w = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2). It
    is Keras's Ftrl with learning_rate_power -0.5; l2 here is twice Keras's.
    """

    lr: float | Schedule = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = _later(0.0)
    initial_accumulator_value: float = _later(0.0)


OfMoments = Adam | AdamW | NAdam | RAdam | Adamax | LAMB | GroupAdam
Optimizer = SGD | Adagrad | RowWiseAdagrad | RMSprop | Adadelta | Lion | FTRL | OfMoments
_ALL = (
    *(SGD, Adagrad, Adam, AdamW, FTRL, RMSprop, Adadelta, Adamax, NAdam, RAdam, Lion),
    *(RowWiseAdagrad, LAMB, GroupAdam),
)
OPTIMIZERS: dict[str, type[Optimizer]] = {c.__name__: c for c in _ALL}


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
    fields = {
        f.name: getattr(optimizer, f.name)
        for f in dataclasses.fields(optimizer)
        if not f.metadata or getattr(optimizer, f.name) != f.default
    }
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
    optimizer: Optimizer = OPTIMIZERS[name](**fields)
    return optimizer
