"""Forward, backward and step of one member whose group shards the model, by torch's fully_shard.

In a forward pass each unit's parameters are gathered, in the backward pass its gradients are
reduced and scattered: a member ends with the mean gradient of its own rows. It sends those to the
rank that mirrors them, gets those that it mirrors itself, and then all add up five numbers, which
is the vote: whoever gets the sum knows that everybody has all that the step needs, and makes it.
Whoever does not get it keeps the step (`ShardedState.pending`), and makes it if the next round
begins with it.

A round's model is a new one: what was under way when the one before broke is forgotten with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from ...common.errors import DefinitionError, UsageError
from ...nn.buffers import Buffers, mean_changes
from ...nn.device import outputs_of, seed_of, seed_step, to_device, values_of
from ...nn.embedding import tables
from ...nn.fitness import check_loss, loss_value, refuse_tables
from ...nn.model_spec import ModelSpec
from ...nn.modes import Modes
from ...nn.precision import Overflow
from ...nn.weights import weight_of
from ..model import PLAIN, Passes
from ..trainer import GroupTrainer
from .parts import Part, Read
from .sharded_state import ShardedState, Step, fill_meta
from .slices import Slice, passes_of, slice_of

ShardPlan = Callable[[nn.Module], Iterable[nn.Module]]


def units(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are sharded, and gathered, each as a whole.

    They are the children, of a list each entry. A module without parameters is none of them, nor
    one that shares a parameter with another: those are the model's own.
    """
    found: list[nn.Module] = []
    for child in model.children():
        found += child if isinstance(child, nn.ModuleList) else [child]
    owners: dict[Tensor, int] = {}
    for parameters in (*(set(unit.parameters()) for unit in found), set(model.parameters(False))):
        for parameter in parameters:
            owners[parameter] = owners.get(parameter, 0) + 1
    return [
        unit
        for unit in found
        if any(True for _ in unit.parameters()) and all(owners[p] == 1 for p in unit.parameters())
    ]


class ShardedTrainer(GroupTrainer[Step]):
    """One member's part of a model.

    `enter` before the steps of a round, `leave` after them.

    `model`: the whole one, before the first round and after `refresh`. `source` reads the parts of
    the round, and `is_over` tells whether that was given up; `takes` is how many cuts this member
    was told to take in it, `agreed` how many all were.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor],
        spec: ModelSpec,
        *,
        device: torch.device,
        plan: ShardPlan = units,
        most: int = 0,
        warmup_steps: int = 0,
        passes: Passes = PLAIN,
    ) -> None:
        """Make the model, which is in no round yet.

        `most`: records of one forward and backward pass; 0: all of the slice. `warmup_steps`: over
        which the learning rate goes where `follow` says.

        Raises DefinitionError for a model with tables, or with parameters that cannot be split.
        """
        self.state: ShardedState = ShardedState(make_model, spec, device, warmup_steps)
        if names := list(tables(self.state.skeleton)):
            raise DefinitionError(refuse_tables(names))
        assert self.state.first is not None
        self.model = self.state.first
        self.source: Read | None = None
        self.is_over: Callable[[], bool] = lambda: False
        self.takes = self.agreed = 0
        self._spec, self._loss, self._plan = spec, loss, plan
        self._device, self._most = device, most
        self._numbers = passes.numbers(device)
        self._sharded: nn.Module | None = None
        self._modes = Modes(nn.Module())
        self._weights: list[Any] = []  # torch's DTensors
        self._buffers = Buffers(nn.Module())
        self._world, self._rank = 1, 0
        self._factor = 1.0
        self._whole: tuple[int, nn.Module] | None = None

    def follow(self, factor: float | None = None) -> None:
        """Let the learning rate go to so many times the optimizer's; None: as told before."""
        self._factor = self._factor if factor is None else factor
        self.state.ramp.follow(self._factor, self.state.version, self.state.warmup_steps)

    def enter(self, world: int) -> None:
        """Train with so many members, in torch's default process group: when all are here."""
        self.model = nn.Module()  # the whole one is in nobody's way
        state = self.state
        self._world, self._rank = world, dist.get_rank()
        if self._device.type == "cuda" and dist.get_backend() == "gloo":
            raise UsageError(
                "--fully_shard on GPUs needs one for each worker, and here some share one or have "
                "none: lower --num_workers, or use --device cpu"
            )
        model = state.new_model()
        self._modes = Modes(model)
        group = dist.group.WORLD
        assert group is not None, "a round has a process group"
        mesh = DeviceMesh.from_group(group, self._device.type)
        frozen = {p for p in model.parameters() if not p.requires_grad}
        for unit in (*self._plan(model), model):
            fully_shard(unit, mesh=mesh, ignored_params=frozen)
        fill_meta(model, self._device)
        self._weights = [p for p in model.parameters() if p.requires_grad]
        self._buffers = Buffers(model)
        shared = state.shared_of(model)
        with state.lock, torch.no_grad():
            state.own.adopt([weight.to_local().detach() for weight in self._weights])
            for mine, theirs in zip(shared, state.shared, strict=True):
                mine.copy_(theirs)
            state.shared = [tensor.detach() for tensor in shared]
        self._sharded = model
        self._numbers.reset()
        self._sum([1.0])
        state.settle()

    def leave(self) -> None:
        """End the round."""
        self._sharded, self._weights, self._whole, self.source = None, [], None, None

    def reduce(self, piece: Slice, wish: bool) -> Step:
        """Compute a step that all can make.

        Raises NonFinite, torch's errors, or the user's.

        wish: the round shall end after this step.
        """
        return self._numbers.fit(lambda: self._pass(piece, wish))

    def _pass(self, piece: Slice, wish: bool) -> Step:
        """Compute the step once; all members raise Overflow, or none does."""
        assert self._sharded is not None, "a step needs its round"
        task = piece.lease.task
        seed_step(
            seed_of(self._spec.seed, task.epoch, task.id, piece.start, piece.used), self._device
        )
        self._whole = None
        self._modes.train()
        self._sharded.zero_grad(set_to_none=True)
        self._buffers.begin()
        told = [1.0, float(wish), float(self.takes), 0.0]
        try:
            share, *more = self._passes(piece)
            changes = self._mean_changes(share)
        finally:
            self._buffers.restore()
        mine = [None if w.grad is None else w.grad.to_local() for w in self._weights]
        there = [gradient for gradient in mine if gradient is not None]
        told[3] = float(bool(there) and not math.isfinite(float(nn.utils.get_total_norm(there))))
        self._numbers.unscale(mine)
        gradients = [mine, *(self._mirrored(mirror, mine) for mirror in self.state.current[1:])]
        step = Step(gradients, changes, task.id, piece.end)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if self.is_over():  # what nccl's operations left may be anything, without an error
            raise dist.DistError("the group was given up")
        self.state.pending = step
        _, wishes, takes, bad, step.loss, mass, weighted = self._sum([*told, *more])
        if bad:
            self.state.pending = None
            raise Overflow(
                f"the gradient of the minibatch is not finite (the loss is {step.loss:g})"
            )
        if weighted and mass:  # what was added up is a mean over the number of records
            step.loss /= mass
            for gradient in itertools.chain(*step.gradients):
                if gradient is not None:
                    gradient /= mass
        if takes == told[2] * self._world:  # all were told to take as many cuts
            self.agreed = round(told[2])
        step.ends_round = wishes > 0
        return step

    def commit(self, step: Step) -> None:
        """Make a step."""
        self.state.apply(step)

    def pass_over(self, piece: Slice) -> None:
        """Count a minibatch of which no record is used."""
        self.state.applied[piece.lease.task.id] = piece.end

    def _mean_changes(self, share: float) -> list[Tensor | None]:
        """Return the mean of the members' changes of the buffers by their forward passes."""
        if not self._buffers.names:
            return []
        changed = torch.tensor(self._buffers.changed(), dtype=torch.uint8, device=self._device)
        dist.all_reduce(changed, dist.ReduceOp.MAX)
        mine = self._buffers.changes() if share else [None] * len(changed)
        return mean_changes(self._buffers.before, mine, changed.bool().tolist(), share)

    def _passes(self, piece: Slice) -> tuple[float, float, float, float]:
        """Pass forward and backward, as often as the member with the most records.

        Returns the share of this member's records, what their mean loss adds to that of all, their
        weights' sum over the number of all records, and 1 where feed has given weights, else 0.
        """
        assert self._sharded is not None
        share = mean = mass = weighted = 0.0
        parts = list(piece.parts)
        slices = [slice_of(piece.total, rank, self._world) for rank in range(self._world)]
        passes = max(1, passes_of(max(map(len, slices)), self._most))
        stand_ins = [(*parts[0][:2], 0, None)] * (passes - len(parts))
        for number, (features, labels, count, _) in enumerate([*parts, *stand_ins]):
            given = weight_of(labels) if count else None
            weight = (count if given is None else float(given.sum())) / piece.total
            weighted = max(weighted, float(given is not None))
            before = self._buffers.snapshot() if number >= len(parts) else None
            inputs, wanted = to_device(features, self._device), to_device(labels, self._device)
            loss = self._loss(self._numbers.of(self._sharded)(inputs), wanted)
            check_loss(loss)
            value = loss_value(loss, wanted)
            torch.autograd.backward(loss * (weight * self._world * self._numbers.factor()))
            share, mean = share + count / piece.total, mean + value * weight
            mass += weight
            if before is not None:
                self._buffers.restore(before)
        return share, mean, mass, weighted

    def _mirrored(self, mirror: Part, mine: list[Tensor | None]) -> list[Tensor | None]:
        """Exchange gradients with others: those of the rows that this member mirrors, for its own.

        Returns them as their owner has sent them.
        """
        pairs = [(w, g) for w, g in zip(mirror.weights, mine, strict=True) if g is not None]
        if not pairs:
            return [None] * len(mine)
        there = torch.cat([gradient.reshape(-1) for _, gradient in pairs])
        theirs = there.new_empty(sum(weight.numel() for weight, _ in pairs))
        ops = []
        if there.numel():
            ops.append(dist.P2POp(dist.isend, there, (self._rank + 1) % self._world))
        if theirs.numel():
            ops.append(dist.P2POp(dist.irecv, theirs, mirror.rank))
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        parts = iter(torch.split(theirs, [weight.numel() for weight, _ in pairs]))
        return [
            None if gradient is None else next(parts).view_as(weight).to(weight.dtype)
            for weight, gradient in zip(mirror.weights, mine, strict=True)
        ]

    def _sum(self, told: list[float]) -> list[float]:
        """Add up the numbers of all members, each of which says 1 first.

        Raises DistError where some are missing: an operation that was given up may end without an
        error.
        """
        said = torch.tensor(told, dtype=torch.float64)  # the CPU's, which gloo adds up
        dist.all_reduce(said)
        found: list[float] = said.tolist()
        if found[0] != self._world:
            raise dist.DistError("the group was given up")
        return found

    # -- what needs the whole model

    def refresh(self) -> None:
        """Make `model` the whole one, with the values of now, out of the members' parts."""
        self.model = self._gathered()

    @torch.no_grad()
    def outputs(self, features: Any) -> Any:
        """Return the model's outputs in evaluation mode, on the CPU."""
        return outputs_of(self._gathered(), features, self._device, self._numbers)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole model's values, on the CPU."""
        return values_of(self._gathered())

    def _gathered(self) -> nn.Module:
        if self._whole is None or self._whole[0] != self.state.version:
            assert self.source is not None, "the whole model is put together in a round"
            self._whole = self.state.version, self.state.whole(self._world, self.source)
        return self._whole[1]
