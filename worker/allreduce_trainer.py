"""Forward, backward and step of one member of an all-reduce group, by torch's DistributedDataParallel.

The gradient of a minibatch is the mean over its N records: each member weighs its slice's loss by
n / N, and DDP adds up. Beside the gradients travel a few numbers, as those of a parameter of DDP's own
module: whether a member wants the round to end after this step, the loss of the whole minibatch, and
which buffers the forward has changed. So all members agree on them without another message. What a step
changes of running statistics is averaged with the same weights.

A step is applied by `commit`, once all of it is here; until then nothing of the state has changed.
A member whose state is still on its way keeps what was reduced (`Reduced`), and applies it later.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..common.errors import DefinitionError
from ..nn.buffers import Buffers, NonFinite, add_changes, mean_changes
from ..nn.embedding import tables
from ..nn.fitness import check_loss, check_weights, refuse_tables, weight_versions
from ..nn.model_spec import ModelSpec
from .device import seed_step, to_device
from .group_state import GroupState
from .ps_trainer import _seed_of, compiled
from .slices import Slice

if TYPE_CHECKING:
    from .adaptive_batch import AdaptiveBatch, Measured, Meter

# Buffers are averaged here; torch calls that option by another name from 2.12 on.
_SYNCS = inspect.signature(DistributedDataParallel).parameters
_NO_BROADCAST: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in _SYNCS
    else {"broadcast_buffers": False}
)


@dataclass
class Reduced:
    """What a step of the group came to: gradients by parameter, changes by buffer."""

    gradients: list[Tensor | None]
    changes: list[Tensor | None]
    task: int
    end: int
    loss: float
    ends_round: bool
    records: int
    measured: Measured | None = None


class _Weighted(nn.Module):
    """The model and its loss, as DDP has them."""

    def __init__(
        self, model: nn.Module, forward: Callable[..., Any], loss: Any, buffers: Buffers
    ) -> None:
        super().__init__()
        self.model = model
        words = torch.zeros(2 + len(buffers.names), device=next(model.parameters()).device)
        self.said = nn.Parameter(words)
        self._forward, self._loss, self._watched = forward, loss, buffers

    def forward(self, features: Any, labels: Any, weight: float, wish: float) -> Tensor:
        made = weight_versions(self.model)
        outputs = self._forward(features)
        check_weights(self.model, made)
        loss: Tensor = self._loss(outputs, labels)
        check_loss(loss)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NonFinite(f"the loss is {value}")
        words = torch.tensor([wish, value * weight, *self._watched.changed()], device=loss.device)
        return loss * weight + (self.said * words).sum()


class GroupTrainer:
    """What a group does beside its steps, which is nothing where it has no servers."""

    model: nn.Module
    state: GroupState

    def pass_over(self, piece: Slice) -> None:
        """A minibatch of which no record is used."""
        self.state.applied[piece.lease.task.id] = piece.end

    def finish(self) -> None:
        """Wait for what this member has under way beside the group."""

    def settle(self) -> int:
        """All members have finished: all call this after the same step. The version of the servers
        that have what was pushed; 0: there are none."""
        return 0

    def cut(self, name: str) -> GroupState | None:
        """Of all sides, which are settled: the group's part. None: they do not stand together."""
        raise NotImplementedError("there are no servers")


class AllReduceTrainer(GroupTrainer):
    """One member's model. `enter` before the steps of a round, `leave` after them."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor],
        spec: ModelSpec,
        *,
        device: torch.device,
        compile: bool = False,
        warmup_steps: int = 0,
        batch: AdaptiveBatch | None = None,
    ) -> None:
        """`warmup_steps`: over which the learning rate goes where `follow` says. `batch`: the
        minibatch, where it follows the goodput.

        Raises DefinitionError for a model with tables, which only servers hold.
        """
        self.model = make_model().to(device)
        self._check(list(tables(self.model)))
        self.state = GroupState(self.model, spec, batch)
        self.meter: Meter | None = None  # of a round whose steps are measured
        self._spec = spec
        self._device = device
        self._forward = compiled(self.model) if compile else self.model
        self._loss = loss
        self._warmup_steps = warmup_steps
        self._buffers = Buffers(self.model)
        self._ddp: DistributedDataParallel | None = None
        self._world = 1

    def _check(self, names: Sequence[str]) -> None:
        if names:
            raise DefinitionError(refuse_tables(list(names)))

    def follow(self, factor: float) -> None:
        """The learning rate goes to so many times what the optimizer says."""
        self.state.follow(factor, self._warmup_steps)

    def enter(self, world: int) -> None:
        """Train with so many members, in torch's default process group."""
        self._world = world
        # Which parameters a step uses may depend on its records, and none is left out unseen.
        self._ddp = DistributedDataParallel(
            _Weighted(self.model, self._forward, self._loss, self._buffers),
            **_NO_BROADCAST,
            init_sync=False,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )

    def leave(self) -> None:
        """The round is over."""
        self._ddp = self.meter = None
        for parameter in self.model.parameters():
            parameter.grad = None

    def reduce(self, piece: Slice, wish: bool) -> Reduced:
        """A step's gradients, of all members. Raises NonFinite, torch's errors, or the user's.

        wish: the round shall end after this step.
        """
        assert self._ddp is not None, "a step needs its round"
        task = piece.lease.task
        seed_step(
            _seed_of(self._spec.seed, task.epoch, task.id, piece.start, piece.used), self._device
        )
        self.model.train()
        self._ddp.zero_grad(set_to_none=True)
        self._buffers.begin()
        share = 0.0
        try:
            for number, (features, labels, count, prepared) in enumerate(piece.parts):
                weight = count / piece.total
                share += weight
                last = number + 1 == len(piece.parts)
                self._ddp.require_backward_grad_sync = last
                self._begin_part(prepared)
                inputs = to_device(features, self._device), to_device(labels, self._device)
                with self._watch(piece, weight, last):
                    loss = self._ddp(*inputs, weight * self._world, float(wish and last))
                    loss.backward()
                if count:  # a stand-in has no gradient
                    self._end_part()
            wishes, mean, *flags = self._ddp.module.said.grad.tolist()
            changed = [flag > 0 for flag in flags]
            # What a member without a share computes on may be anything.
            mine = self._buffers.changes() if share else [None] * len(changed)
            changes = mean_changes(self._buffers.before, mine, changed, share)
        finally:
            self._buffers.restore()
        gradients = [parameter.grad for parameter in self.state.parameters]
        there = [gradient for gradient in gradients if gradient is not None]
        if there and not math.isfinite(float(nn.utils.get_total_norm(there))):
            raise NonFinite(f"the gradient of the minibatch is not finite (the loss is {mean:g})")
        step = Reduced(gradients, changes, task.id, piece.end, mean, wishes > 0, piece.total)
        if self.meter is not None and (measured := self.meter.exchange()) is not None:
            step.measured = measured
            step.ends_round |= measured.chosen not in (0, self.meter.minibatch)
        return step

    def _watch(
        self, piece: Slice, weight: float, last: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Around a pass forward and backward."""
        if self.meter is None:
            return contextlib.nullcontext()
        return self.meter.watch(piece, weight, last)

    def _begin_part(self, prepared: Any) -> None:
        """Before a forward pass."""

    def _end_part(self) -> None:
        """After its backward pass."""

    @torch.no_grad()
    def commit(self, step: Reduced) -> None:
        """Apply a step."""
        state = self.state
        for parameter, gradient in zip(state.parameters, step.gradients, strict=True):
            parameter.grad = gradient
        rate = state.learning_rate(step.records) * state.lr_factor(self._warmup_steps)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        state.optimizer.step()
        add_changes(self._buffers.now(), step.changes)
        if state.batch is not None:
            state.batch.advance(state.version, step.records, step.measured)
        state.version += 1
        state.applied[step.task] = step.end
        if self.meter is not None:
            self.meter.committed()

    def keep(self, step: Reduced) -> Reduced:
        """The same, untouched by the steps that follow."""
        step.gradients = [None if g is None else g.clone() for g in step.gradients]
        return step

    # -- what is done alone

    @torch.no_grad()
    def outputs(self, features: Any) -> Any:
        """The model's outputs in evaluation mode, on the CPU."""
        self.model.eval()
        return to_device(self.model(to_device(features, self._device)), torch.device("cpu"))

    def refresh(self) -> None:
        """The values are those of now already."""

    def state_dict(self) -> dict[str, Tensor]:
        """The model's values, on the CPU."""
        return {n: t.detach().cpu().clone() for n, t in self.model.state_dict().items()}
