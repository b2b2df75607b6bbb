"""One member's steps of an all-reduce group, by torch's DistributedDataParallel.

The gradient of a minibatch is the mean over its N records: each member weighs its slice's loss by n
/ N, and DDP adds up. Where feed gives weights, n is their sum, and once all members' sums are here,
what was added up is divided by the mean weight. Beside the gradients travel a few numbers, as those
of a parameter of DDP's own module: whether a member wants the round to end after this step, the
loss of the whole minibatch, which buffers the forward has changed, which parameters a gradient has
reached. So all members agree on them without another message. What a step changes of running
statistics is averaged by the number of records.

Which parameters a step uses may depend on its records. DDP waits for the gradient of each; those
that the backward pass did not reach get one of zeros after it, together with the numbers (`_tell`).
So DDP need not walk through the graph of each step, nor reduce a list of what it found there.

A step is applied by `commit`, once all of it is here; until then nothing of the state has changed.
A member whose state is still on its way keeps what was reduced (`Reduced`), and applies it later.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...common.errors import DefinitionError
from ...nn.buffers import Buffers, add_changes, mean_changes
from ...nn.device import outputs_of, seed_of, seed_step, to_device, values_of
from ...nn.embedding import tables
from ...nn.fitness import Weights, check_loss, loss_value, refuse_tables
from ...nn.model_spec import ModelSpec
from ...nn.modes import Modes
from ...nn.precision import Overflow
from ...nn.weights import weight_of
from ..model import PLAIN, Passes, compiled
from ..trainer import GroupTrainer
from .slices import Slice
from .state import GroupState

if TYPE_CHECKING:
    from .adaptive_batch import AdaptiveBatch, Measured  # which not every job imports

# Buffers are averaged here; torch calls that option by another name from 2.12 on.
_SYNCS = inspect.signature(DistributedDataParallel).parameters
_NO_BROADCAST: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in _SYNCS
    else {"broadcast_buffers": False}
)


@dataclass
class Reduced:
    """A step of the group: gradients by parameter, changes by buffer."""

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
        self, model: nn.Module, forward: Callable[..., Any], loss: Any, weights: Weights, words: int
    ) -> None:
        super().__init__()
        # First, so that DDP reduces it last: with the gradients that come last.
        self.said = nn.Parameter(torch.zeros(words, device=next(model.parameters()).device))
        self.model = model
        self._forward, self._loss, self._weights = forward, loss, weights

    def forward(self, features: Any, labels: Any, weight: float) -> tuple[Tensor, float]:
        """Return the loss by its weight, and the loss."""
        self._weights.begin()
        outputs = self._forward(features)
        self._weights.check()
        loss: Tensor = self._loss(outputs, labels)
        check_loss(loss)
        value = loss_value(loss, labels)
        return loss * weight, value


class StepHooks:
    """Calls within a step, for what travels beside the dense parameters.

    Here they do nothing. `tables`: names of those whose rows it brings.
    """

    tables: Collection[str] = ()

    def words(self) -> int:
        """Return how many numbers `tell` gives, in this round."""
        return 0

    def begin_part(self, prepared: Any) -> None:
        """Do what comes before a forward pass, with what `prepare` made of its features."""

    def before_all_reduce(self) -> None:
        """Do what comes before the backward pass that this member's part is reduced in."""

    def end_part(self) -> None:
        """Do what comes after the backward pass of a part."""

    def scale(self, factor: float) -> None:
        """Multiply by this what the step has added up, of all members."""

    def tell(self) -> Sequence[float]:
        """Return the numbers that all members are told too, once the last backward pass is over."""
        return ()

    def hear(self, words: Sequence[float]) -> None:
        """Hear the sums of what all members told."""


class StepMeter(Protocol):
    """A meter of the steps of a round (follower.py)."""

    @property
    def minibatch(self) -> int: ...

    def watch(
        self, piece: Slice, weight: float, last: bool
    ) -> contextlib.AbstractContextManager[None]: ...

    def exchange(self) -> Measured | None: ...

    def committed(self) -> None: ...


class AllReduceTrainer(GroupTrainer[Reduced]):
    """One member's model.

    `enter` before the steps of a round, `leave` after them.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor],
        spec: ModelSpec,
        *,
        device: torch.device,
        passes: Passes = PLAIN,
        warmup_steps: int = 0,
        batch: AdaptiveBatch | None = None,
        hooks: StepHooks | None = None,
    ) -> None:
        """Make the model, which is in no round yet.

        `warmup_steps`: over which the learning rate goes where `follow` says. `batch`: the
        minibatch, where it follows the goodput.

        Raises DefinitionError for a model with tables that `hooks` do not bring: servers hold them.
        """
        self.model = make_model().to(device)
        self._hooks = hooks or StepHooks()
        if names := [name for name in tables(self.model) if name not in self._hooks.tables]:
            raise DefinitionError(refuse_tables(names))
        self.state = GroupState(self.model, spec, batch)
        self.meter: StepMeter | None = None  # of a round whose steps are measured
        self._spec = spec
        self._device = device
        self._numbers = passes.numbers(device)
        self._forward = self._numbers.of(compiled(self.model) if passes.compile else self.model)
        self._loss = loss
        self._warmup_steps = warmup_steps
        self._buffers = Buffers(self.model)
        self._weights = Weights(self.model)
        self._modes = Modes(self.model)
        self._ddp: DistributedDataParallel | None = None
        self._world = 1

    def follow(self, factor: float) -> None:
        """Let the learning rate go to so many times what the optimizer says."""
        self.state.follow(factor, self._warmup_steps)

    def enter(self, world: int) -> None:
        """Train with so many members, in torch's default process group."""
        self._world = world
        self._numbers.reset()
        words = 4 + len(self._buffers.names) + len(self.state.parameters) + self._hooks.words()
        self._ddp = DistributedDataParallel(
            _Weighted(self.model, self._forward, self._loss, self._weights, words),
            **_NO_BROADCAST,
            init_sync=False,
            gradient_as_bucket_view=True,
        )

    def leave(self) -> None:
        """End the round: the model goes on by itself."""
        self._ddp = self.meter = None
        for parameter in self.model.parameters():
            parameter.grad = None

    def reduce(self, piece: Slice, wish: bool) -> Reduced:
        """Compute a step's gradients.

        Raises NonFinite, torch's errors, or the user's.

        wish: the round shall end after this step.
        """
        step = self._numbers.fit(lambda: self._pass(piece, wish))
        if self.meter is not None and (measured := self.meter.exchange()) is not None:
            step.measured = measured
            step.ends_round |= measured.chosen not in (0, self.meter.minibatch)
        return step

    def _pass(self, piece: Slice, wish: bool) -> Reduced:
        """Compute the gradients once.

        All members raise Overflow, or none does: they have the same ones.
        """
        assert self._ddp is not None, "a step needs its round"
        task = piece.lease.task
        seed_step(
            seed_of(self._spec.seed, task.epoch, task.id, piece.start, piece.used), self._device
        )
        self._modes.train()
        for parameter in self.state.parameters:
            parameter.grad = None
        self._buffers.begin()
        share = mean = mass = 0.0
        weighted = False
        try:
            for number, (features, labels, count, prepared) in enumerate(piece.parts):
                weight, given = self._weight(labels, count)
                weight, weighted = weight / piece.total, weighted or given
                share, mass = share + count / piece.total, mass + weight
                last = number + 1 == len(piece.parts)
                if self._ddp.require_backward_grad_sync is not last:  # Module.__setattr__ is slow
                    self._ddp.require_backward_grad_sync = last
                self._hooks.begin_part(prepared)
                inputs = to_device(features, self._device), to_device(labels, self._device)
                with self._watch(piece, weight, last):
                    loss, value = self._ddp(*inputs, weight * self._world * self._numbers.factor())
                    mean += value * weight
                    if last:
                        self._hooks.before_all_reduce()
                        earlier = [parameter.grad for parameter in self.state.parameters]
                    loss.backward()
                    if count:  # a stand-in has no gradient
                        self._hooks.end_part()
                    if last:
                        words = [wish, mean, mass, weighted, *self._buffers.changed()]
                        wishes, mean, mass, anybody, *flags = self._tell(words, earlier)
            changed = [flag > 0 for flag in flags]
            # What a member without a share computes on may be anything.
            mine = self._buffers.changes() if share else [None] * len(changed)
            changes = mean_changes(self._buffers.before, mine, changed, share)
        finally:
            self._buffers.restore()
        gradients = [parameter.grad for parameter in self.state.parameters]
        there = [gradient for gradient in gradients if gradient is not None]
        if anybody and mass:  # what was added up is a mean over the number of records
            mean /= mass
            self._hooks.scale(1 / mass)
            for gradient in there:
                gradient /= mass
        if there and not math.isfinite(float(nn.utils.get_total_norm(there))):
            raise Overflow(f"the gradient of the minibatch is not finite (the loss is {mean:g})")
        self._numbers.unscale(gradients)
        return Reduced(gradients, changes, task.id, piece.end, mean, wishes > 0, piece.total)

    def _weight(self, labels: Any, count: int) -> tuple[float, bool]:
        """Return what a part's records weigh in sum, and whether feed has said it."""
        given = weight_of(labels) if count else None
        if given is None:
            return float(count), False
        if self.meter is not None:
            raise DefinitionError(
                "feed gives weights, and --batch_rule adaptive measures gradients of records that "
                "count alike: leave out one of them"
            )
        return float(given.sum()), True

    def _tell(self, words: Sequence[float], earlier: Sequence[Tensor | None]) -> list[float]:
        """End DDP's reduction after the backward pass, and return the sums of all members' words.

        `earlier`: the gradients before that pass. DDP puts another tensor in the place of those
        that it has had.
        """
        assert self._ddp is not None
        parameters, said = self.state.parameters, self._ddp.module.said
        missing = [p for p, was in zip(parameters, earlier, strict=True) if p.grad is was]
        frozen = [p for p in missing if not p.requires_grad]  # since the round began
        told = [*words, *(p.grad is not None for p in parameters), *self._hooks.tell()]
        sent = torch.tensor(told, dtype=said.dtype, device=said.device)
        said.grad = None
        for parameter in frozen:
            parameter.requires_grad_(True)
        torch.autograd.backward([said, *missing], [sent, *map(torch.zeros_like, missing)])
        for parameter in frozen:
            parameter.requires_grad_(False)
        heard: list[float] = (said.grad * self._world).tolist()
        used = heard[len(words) : len(words) + len(parameters)]
        for parameter, members in zip(parameters, used, strict=True):
            if not members:
                parameter.grad = None
        self._hooks.hear(heard[len(words) + len(parameters) :])
        return heard[: len(words)]

    def _watch(
        self, piece: Slice, weight: float, last: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a pass forward and backward is measured, if it is."""
        if self.meter is None:
            return contextlib.nullcontext()
        return self.meter.watch(piece, weight, last)

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

    def pass_over(self, piece: Slice) -> None:
        """Count a minibatch of which no record is used."""
        self.state.applied[piece.lease.task.id] = piece.end

    def keep(self, step: Reduced) -> Reduced:
        """Return the step with copies, untouched by the steps that follow."""
        step.gradients = [None if g is None else g.clone() for g in step.gradients]
        return step

    # -- what is done alone

    def outputs(self, features: Any) -> Any:
        """Return the model's outputs in evaluation mode, on the CPU."""
        return outputs_of(self.model, features, self._device, self._numbers)

    def refresh(self) -> None:
        """Do nothing: the values are those of now already."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's values, on the CPU."""
        return values_of(self.model)
