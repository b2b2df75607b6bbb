"""AdaptiveDataParallel: torch's DistributedDataParallel for a batch whose size changes.

    net = AdaptiveDataParallel(net, optimizer, scheduler)
    for batch in loader:                    # an AdaptiveDataLoader
        optimizer.zero_grad()
        loss_function(net(batch)).backward()
        optimizer.step()

The loop is one of micro-batches, an optimizer step of one or several of them; it says which is the
last. Until then gradients stay here and add up: `zero_grad` and `step` (and GradScaler's methods)
do nothing. With the last one replicas average, the sum becomes a mean, its noise is measured
(gradient_noise_scale.py), and the optimizer makes its step with learning rates of the scaling rule,
which stand for that step only.

What happens in a backward pass is `backward.py`.

A micro-batch may have several backward passes before its `step`, as a GAN's discriminator has.
"""

from __future__ import annotations

import functools
import io
import logging
import pickle
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, AdamW, Optimizer

from ..common.errors import CheckpointError, UsageError
from . import checkpoint, collective, data, profile
from .backward import Backward
from .gradient_noise_scale import AdamGradientNoiseScale, GradientNoiseScale
from .newest import models
from .noise_estimator import EVERY
from .scaling_rules import AdamScale, AdaScale, ScalingRuleBase

if TYPE_CHECKING:
    from torch.amp import GradScaler
    from torch.optim.lr_scheduler import LRScheduler


log = logging.getLogger(__name__)


class Scalars(Protocol):
    """TensorBoard's SummaryWriter, as far as it is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...


class AdaptiveDataParallel(DistributedDataParallel):
    """A model that trains on any number of replicas with a batch of any size.

    `scaling_rule`: AdamScale for Adam and AdamW, else AdaScale. `name`: of the state in
    checkpoints; each model needs its own. `gns_every`: gradients are measured once for about so
    many times the initial batch of examples (1: at every step). All else are
    DistributedDataParallel's arguments.

    Restores itself from the newest checkpoint: parameters, buffers, optimizer, scheduler,
    GradScaler, the estimate of the noise, and the progress. A checkpoint is tensors and plain
    values; nothing in it is executed. Raises UsageError where `lr_scheduler` keeps anything else in
    its state, ValueError where there is a state of that name, CheckpointError where the checkpoint
    does not fit the model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        lr_scheduler: LRScheduler | None = None,
        mp_scaler: GradScaler | str | None = None,
        scaling_rule: ScalingRuleBase | None = None,
        name: str = "edl-dataparallel",
        *,
        gns_every: int = EVERY,
        **ddp_kwargs: Any,
    ) -> None:
        if isinstance(mp_scaler, str):  # older AdaptDL had the name in this place
            name, mp_scaler = mp_scaler, None
        if not distributed.is_initialized():
            raise UsageError(
                "an AdaptiveDataParallel needs the other replicas: call "
                "edl.adaptive.init_process_group() before it is made"
            )
        _pack(model)
        super().__init__(model, **ddp_kwargs)
        adam = isinstance(optimizer, Adam | AdamW)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.mp_scaler = mp_scaler
        self.scaling_rule = scaling_rule or (AdamScale() if adam else AdaScale())
        self.progress = 0.0
        self._warned = False
        self.gns = (AdamGradientNoiseScale if adam else GradientNoiseScale)(
            optimizer,
            parameters,
            self.process_group,
            mp_scaler.get_scale if mp_scaler else lambda: 1.0,
            gns_every,
        )
        self.scaling_rule.initialize(self)
        self._backward = Backward(self.gns, parameters, self.process_group)
        _replace(optimizer, "zero_grad", self._zero_grad)
        _replace(optimizer, "step", self._optimizer_step)
        if mp_scaler is not None:
            for method in ("unscale_", "update"):
                _replace(mp_scaler, method, self._if_averaged)
            _replace(mp_scaler, "step", self._scaler_step)
        self._state = _ModelState(name, self)
        checkpoint.load_state(self._state)
        models().add(name, self)

    @property
    def gain(self) -> float:
        """The number of steps at the initial batch size that a step of the present one is worth."""
        return self.gns.gain(self.gns.scale)

    @property
    def gradient_stats(self) -> tuple[float, float]:
        """The squared length of the gradient, and its variance at the initial batch size."""
        return self.gns.sqr_avg(), self.gns.var_avg()

    @property
    def init_batch_size(self) -> int:
        """M0: the batch size of the loader that trains; 1 before there is one."""
        return self._backward.init_batch_size

    @property
    def lr_factors(self) -> list[float]:
        """The factors of the groups' learning rates at the present batch size."""
        factors = self.scaling_rule.scale_lr(self.gns.scale)
        if isinstance(factors, list):  # without NumPy, for this is done at every step
            return factors
        groups = len(self.optimizer.param_groups)
        return [float(f) for f in np.broadcast_to(np.asarray(factors, float), groups)]

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model's forward; with gradients on, decide whether their averaging follows."""
        loop = data.current_dataloader()
        averages = loop is None or loop.is_sync_step()
        if averages is not self.require_backward_grad_sync:  # Module.__setattr__ is slow
            self.require_backward_grad_sync = averages
        if torch.is_grad_enabled():
            self._backward.expect(loop)
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do as the optimizer's `zero_grad`: gradients that still add up stay."""
        if self._backward.zeroes():
            super().zero_grad(set_to_none)

    def to_tensorboard(
        self, writer: Scalars, global_step: int | None = None, tag_prefix: str = ""
    ) -> None:
        """Write what is known of the gradients as scalars.

        `tag_prefix` is given with or without its slash.
        """
        prefix = tag_prefix if not tag_prefix or tag_prefix.endswith("/") else f"{tag_prefix}/"
        sqr, var = self.gradient_stats
        scalars = {
            "Gradient_Norm_Sqr": sqr,
            "Gradient_Variance": var,
            "Gain": self.gain,
            "Learning_Rate_Factor": float(np.mean(self.lr_factors)),
            "Accum_Scale": self.gns.accum_scale,
            "Accum_Count": self.gns.accum_count,
            "Progress": self.progress,
        }
        for tag, value in scalars.items():
            writer.add_scalar(f"{prefix}{tag}", value, global_step)

    def _zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if self._backward.zeroes():
            original(*args, **kwargs)

    def _optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Each call in here costs some microseconds: a backward pass leaves none of it in the cache.
        loop = data.current_dataloader()
        if loop is None:
            return self._plain_step(original, *args, **kwargs)
        if not loop.is_sync_step():
            self._backward.stepped(loop)
            return None
        loop.models.stepped(self._state.name)
        gns = self.gns
        if gns.collect():
            profile.set_gradient_stats(gns.sqr_avg(), gns.var_avg(), self._state.name)
        factors = self.lr_factors
        if factors.count(1.0) == len(factors):  # as without autoscale
            result = original(*args, **kwargs)
        else:
            result = self._scaled(factors, original, *args, **kwargs)
        # Past Module.__setattr__, which costs as much as all else here.
        self.__dict__["progress"] += gns.gain(gns.scale)
        gns.advance()
        self._backward.stepped(loop)
        return result

    def _plain_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Step outside of a loop over an AdaptiveDataLoader, as DistributedDataParallel does."""
        if not self._warned:
            log.warning(
                "model -> trains outside of a loop over an AdaptiveDataLoader: every replica on "
                "what it reads itself, and nothing is saved when it is told to stop"
            )
            self._warned = True
        if collective.preemption().requested:
            sys.exit(collective.PREEMPTED)
        return original(*args, **kwargs)

    def _scaled(
        self, factors: list[float], original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Step with learning rates that stand for this call only."""
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, factor in zip(groups, factors, strict=True):
            group["lr"] = group["lr"] * factor
        try:
            return original(*args, **kwargs)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _if_averaged(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = data.current_dataloader()
        return original(*args, **kwargs) if loop is None or loop.is_sync_step() else None

    def _scaler_step(
        self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        loop = data.current_dataloader()
        if loop is not None and optimizer is self.optimizer:
            self._backward.stepped(loop)  # which it leaves alone where gradients are infinite
            if not loop.is_sync_step():
                return None
        return original(optimizer, *args, **kwargs)


class _ModelState(checkpoint.State):
    """Everything about a model that outlives a restart."""

    def __init__(self, name: str, model: AdaptiveDataParallel) -> None:
        super().__init__(name)
        self._model = model
        if model.lr_scheduler is not None:
            self._check(model.lr_scheduler)

    @property
    def model(self) -> nn.Module:
        """The model that was given to be trained."""
        return self._model.module  # type: ignore[no-any-return]

    def save(self, fileobj: BinaryIO) -> None:
        model = self._model
        parts = {name: _plain(part.state_dict()) for name, part in self._parts().items()}
        torch.save(
            {"model": model.module.state_dict(), "progress": model.progress, **parts}, fileobj
        )

    def load(self, fileobj: BinaryIO) -> None:
        model = self._model
        try:
            saved = torch.load(fileobj, map_location="cpu", weights_only=True)
            model.module.load_state_dict(saved["model"])
            for name, part in self._parts().items():
                part.load_state_dict(saved[name])
            model.progress = float(saved["progress"])
        except (KeyError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"the checkpoint of {self.name!r} does not fit the model, its optimizer, scheduler "
                f"or GradScaler: {error}. Train with those of the checkpoint, or into another "
                "folder."
            ) from error

    def sync(self) -> None:
        """Collect the measurement under way; all else is the same on all replicas already."""
        self._model.gns.collect()

    def _parts(self) -> dict[str, Any]:
        model = self._model
        parts = {
            "optimizer": model.optimizer,
            "lr_scheduler": model.lr_scheduler,
            "mp_scaler": model.mp_scaler,
            "gradient_noise": model.gns,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _check(self, scheduler: LRScheduler) -> None:
        """Raise UsageError now, not at the restart, if a checkpoint cannot keep the state."""
        buffer = io.BytesIO()
        try:
            torch.save(_plain(scheduler.state_dict()), buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise UsageError(
                f"the state of {type(scheduler).__name__} cannot be kept in a checkpoint, which "
                "holds tensors and plain values only: leave the rest out of its state_dict()"
            ) from error


def _replace(owner: object, name: str, replacement: Callable[..., Any]) -> None:
    """Let `replacement(original, *args, **kwargs)` stand for a method of an object.

    It is a method again, for LRScheduler takes `step` apart.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(_owner: object, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, types.MethodType(method, owner))


def _pack(model: nn.Module) -> None:
    """Lay buffers out densely where they have a dimension of one with a stride of its own.

    A transpose leaves it so, and DistributedDataParallel cannot broadcast such.
    """
    for buffer in model.buffers():
        dense = torch.empty(buffer.shape, device="meta").stride()
        if buffer.is_contiguous() and buffer.stride() != dense:
            buffer.data = buffer.data.clone(memory_format=torch.contiguous_format)


def _plain(value: Any) -> Any:
    """Return NumPy's numbers, which learning rates tend to become, as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: _plain(of) for key, of in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value
