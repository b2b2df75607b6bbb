"""The state of a member where no member has all of it: two parts, and what is shared.

A member holds its own part and a mirror of the rank's before it (parts.py); both make every step,
so whichever member dies, the next one has what it had. What is not sharded (buffers, frozen
parameters) and the account (steps, positions by task) every member has.

A state is put together by stretches. So a new round's parts are made of those of the round before,
in whatever number they were; and so are the chunks of a checkpoint (checkpoint.py), of which each
member writes its share.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ...common.errors import DefinitionError
from ...common.places import Place, Where
from ...common.storage import FileRecord
from ...nn.buffers import Buffers, add_changes, plain_buffers
from ...nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from ...nn.optimizers import LAMB, learning_rate
from ..model import dense_tensors
from . import optimizer_state
from .checkpoint import STATE, fresh_state, loaded, portable, stored, write_chunks, write_header
from .parts import Part, Range, Read, Stretch, range_of
from .ramp import Ramp

_CHUNKS_OF_FILE = 16  # 64 MiB, and the optimizer's state
_ELEMENTS_OF_MESSAGE = 4 << 20


@dataclass(frozen=True)
class _Chunk:
    """A chunk of a tensor of the model: its `number`-th, the values [start, stop), flat."""

    name: str
    kind: str
    number: int
    start: int
    stop: int
    dtype: torch.dtype


@dataclass
class Step:
    """A step of the group: by part, gradients by parameter; changes by buffer."""

    gradients: list[list[Tensor | None]]
    changes: list[Tensor | None]
    task: int
    end: int
    loss: float = 0.0
    ends_round: bool = False


class ShardedState:
    """A member's parts of a sharded state, and what all members have of it.

    `current` are this member's parts in its round, its own first; `parts` are all that it holds:
    while a round begins, those of the one before as well. `pending`: the step that it can make, and
    does not know yet whether all can. `first`: the whole model with its first values, until there
    is a state.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        spec: ModelSpec,
        device: torch.device,
        warmup_steps: int = 0,
    ) -> None:
        """Make the model, of which no state is there yet.

        Raises DefinitionError for parameters that have no dimension to be split by.
        """
        self.spec = spec
        self.version = -1  # there is none yet
        self.applied: dict[int, int] = {}  # by task
        self.ramp = Ramp()
        self._low_water = 0
        self.warmup_steps = warmup_steps
        self.lock = threading.RLock()  # whoever asks for a part is answered between two steps
        self.layout = (1, 0)
        self.current: list[Part] = []
        self.parts: list[Part] = []
        self.pending: Step | None = None
        self._make_model, self.device = make_model, device
        self.first: nn.Module | None = make_model()
        self.skeleton = _skeleton(self.first)
        named = {n: p for n, p in self.skeleton.named_parameters() if p.requires_grad}
        if scalars := [name for name, p in named.items() if not p.dim()]:
            raise DefinitionError(
                f"{', '.join(scalars)}: a parameter without a dimension cannot be split: give it "
                "the shape (1,), or leave --fully_shard out"
            )
        if isinstance(spec.dense_optimizer, LAMB):
            raise DefinitionError(
                "LAMB looks at the norm of a whole parameter, of which no worker has more than a "
                "part: take another optimizer, or leave --fully_shard out"
            )
        self.like = list(named.values())
        self._numbers = {name: number for number, name in enumerate(named)}
        self.shared = self._take_shared(self.first)

    # -- what it holds

    @property
    def own(self) -> Part:
        return self.current[0]

    def held(self) -> list[tuple[int, int]]:
        return [part.name for part in self.parts]

    def shared_of(self, model: nn.Module) -> list[Tensor]:
        """Return what every member has of a model like this one: frozen parameters, buffers."""
        frozen = [p for p in model.parameters() if not p.requires_grad]
        return [*frozen, *plain_buffers(model)]

    def buffers(self) -> list[Tensor]:
        frozen = sum(not p.requires_grad for p in self.skeleton.parameters())
        return self.shared[frozen:]

    def begin(self) -> None:
        """Take the first of all states: the model's own first values."""
        whole, self.first = self.first or self._make_model(), None
        values = [p.detach().reshape(-1) for p in whole.parameters() if p.requires_grad]
        with self.lock:
            self.version, self.applied, self.pending = 0, {}, None
            self.ramp = Ramp()
            self.shared = self._take_shared(whole)
            self.current = self._new_parts()
            for part in self.current:
                targets = part.blank()
                for target in targets:
                    target.put(Stretch(target.number, 0, values[target.number]))
                part.set_states(targets)
            self.parts = [*self.current]

    def assemble(self, world: int, read: Read) -> None:
        """Have the parts of `layout`, made of a state in `world` parts.

        Raises what `read` does.
        """
        self.first = None
        there = {part.name: part for part in self.parts}
        current = []
        for part in self._new_parts():
            if (kept := there.get(part.name)) is None:
                targets = part.blank()
                self.gather(targets, world, read)
                part.set_states(targets)
            current.append(kept or part)
        with self.lock:
            self.current = current
            self.parts = list({id(part): part for part in (*self.parts, *current)}.values())

    def retire(self, low_water: int) -> None:
        """Forget tasks below this one: they are asked for no more."""
        self._low_water = max(self._low_water, low_water)
        self.applied = {task: at for task, at in self.applied.items() if task >= low_water}

    def settle(self) -> None:
        """Forget the parts of the round before: all members have theirs."""
        with self.lock:
            self.parts = [*self.current]

    def meet(self, version: int) -> None:
        """Become as the others are: make the pending step, or drop it.

        Where that is not enough, nothing is held any more, and `version` is -1.
        """
        with self.lock:
            if self.pending is not None and self.version + 1 == version:
                self.apply(self.pending)
            elif self.version != version:
                self.version, self.parts, self.current = -1, [], []
            self.pending = None

    def gather(self, targets: Sequence[Stretch], world: int, read: Read) -> None:
        """Fill the targets from a state in `world` parts."""
        for rank in range(world):
            ranges = [range_of(n, like, world, rank) for n, like in enumerate(self.like)]
            asked: list[tuple[Stretch, Range]] = []
            size = 0
            for target in targets:
                start, stop = ranges[target.number][1:]
                start, stop = max(start, target.start), min(stop, target.stop)
                for at in range(start, stop, _ELEMENTS_OF_MESSAGE):
                    end = min(at + _ELEMENTS_OF_MESSAGE, stop)
                    if size + end - at > _ELEMENTS_OF_MESSAGE:
                        _put_all(asked, world, rank, read)
                        size = 0
                    asked.append((target, (target.number, at, end)))
                    size += end - at
            _put_all(asked, world, rank, read)

    @torch.no_grad()
    def apply(self, step: Step) -> None:
        """Apply a step to all parts."""
        factor = self.ramp.at(self.version, self.warmup_steps)
        rate = learning_rate(self.spec.dense_optimizer, self.version) * factor
        with self.lock:
            for part, gradients in zip(self.current, step.gradients, strict=True):
                part.step(gradients, rate)
            add_changes(self.buffers(), step.changes)
            self.version += 1
            self.applied[step.task] = step.end
            self.pending = None

    def whole(self, world: int, read: Read) -> nn.Module:
        """Return a model with all the values of now, of a state in `world` parts."""
        model = self.new_model(self.device)
        weights = [p for p in model.parameters() if p.requires_grad]
        targets = [Stretch(n, 0, p.detach().reshape(-1)) for n, p in enumerate(weights)]
        self.gather(targets, world, read)
        for mine, theirs in zip(self.shared_of(model), self.shared, strict=True):
            mine.detach().copy_(theirs)
        return model

    def new_model(self, device: torch.device | None = None) -> nn.Module:
        """Return a model like the definition's, without values; on `device`, or on "meta"."""
        model = copy.deepcopy(self.skeleton)
        if device is not None:
            tied = _places(model)
            fill_meta(model, device)
            for (first, name), *others in tied:  # each got a place of its own
                for module, key in others:
                    module._parameters[key] = first._parameters[name]
        return model

    # -- for other members

    def pack_shared(self) -> bytes:
        """Make one blob of what every member has."""
        tensors = portable({str(n): t.detach() for n, t in enumerate(self.shared)})
        header = {"applied": list(self.applied.items()), "factors": self.ramp.factors}
        return safetensors.torch.save(tensors, {"edl": json.dumps(header)})

    @torch.no_grad()
    def unpack_shared(self, blob: bytes, version: int) -> None:
        """Take over what `pack_shared` made a blob of, of a state of that version."""
        header, tensors = loaded(blob)
        with self.lock:
            self.version, self.applied = version, dict(header["applied"])
            self.ramp.factors = tuple(header["factors"])
            for number, mine in enumerate(self.shared):
                place = torch.view_as_real(mine) if mine.is_complex() else mine
                place.copy_(tensors[str(number)])

    # -- cuts and checkpoints

    def copy(self) -> ShardedState:
        """Return a copy of this member's own part, on the CPU: training does not touch it."""
        twin = copy.copy(self)
        cpu = torch.device("cpu")
        twin.current = twin.parts = [self.own.copy(cpu)]
        twin.shared = [tensor.detach().cpu().clone() for tensor in self.shared]
        twin.applied, twin.ramp = dict(self.applied), copy.copy(self.ramp)
        twin.device, twin.pending = cpu, None
        twin.lock = threading.RLock()
        return twin

    def write_share(
        self, directory: Where, rank: int, members: int, world: int, read: Read
    ) -> list[FileRecord]:
        """Write the chunks `rank`, `rank + members`, ... of a state in `world` parts.

        Returns the files.
        """
        place = Place(directory)
        shard = f"shard-{rank:05d}-of-{members:05d}"
        mine = self._chunks()[rank::members]
        files = []
        for at in range(0, len(mine), _CHUNKS_OF_FILE):
            name = f"{shard}.dense-{at // _CHUNKS_OF_FILE:05d}.safetensors"
            found = self._gathered(mine[at : at + _CHUNKS_OF_FILE], world, read)
            files.append(write_chunks(place, name, *found))
        return [*files, write_header(place, f"{shard}.json", self, low_water=self._low_water)]

    def _gathered(
        self, chunks: Sequence[_Chunk], world: int, read: Read
    ) -> tuple[dict[str, Tensor], list[Any]]:
        """Return the tensors of these chunks, and what they are, as `write_chunks` takes them."""
        names = optimizer_state.state_names(self.spec.dense_optimizer)
        shared = self._shared_by_name()
        places = []
        for chunk in chunks:
            value = torch.empty(chunk.stop - chunk.start, dtype=chunk.dtype, device=self.device)
            if chunk.name in shared:
                value.copy_(shared[chunk.name].detach().reshape(-1)[chunk.start : chunk.stop])
            places.append(Stretch(self._numbers.get(chunk.name, -1), chunk.start, value))
        self.gather([place for place in places if place.number >= 0], world, read)
        tensors: dict[str, Tensor] = {}
        about = []
        for number, (chunk, place) in enumerate(zip(chunks, places, strict=True)):
            tensors[f"{number}.value"] = place.value.cpu().float()
            if chunk.kind == "parameter":
                for theirs, ours in names.items():
                    there = (
                        place.state[ours]
                        if place.steps
                        else fresh_state(self.spec, ours, place.value)
                    )
                    tensors[f"{number}.{STATE}{theirs}"] = there.cpu().float()
            about.append([chunk.name, chunk.number, place.steps, self.version])
        return tensors, about

    def _chunks(self) -> list[_Chunk]:
        return [
            _Chunk(name, kind, number, start, min(start + CHUNK_ELEMENTS, like.numel()), like.dtype)
            for name, (like, kind) in dense_tensors(self.skeleton).items()
            for number, start in enumerate(range(0, like.numel(), CHUNK_ELEMENTS))
        ]

    @torch.no_grad()
    def read(self, path: str, *, ledger: bool) -> None:
        """Take over the state of a checkpoint, of any strategy, after `begin`.

        See GroupState.read.
        """
        same, chunks = stored(path, self.spec, self._take_over if ledger else lambda _header: None)
        shared = self._shared_by_name()
        targets = [part.blank() for part in self.current]
        for name, number, steps, value, state in chunks:
            start = number * CHUNK_ELEMENTS
            if name not in self._numbers:
                shared[name].detach().reshape(-1)[start : start + value.numel()].copy_(value)
                continue
            found = Stretch(self._numbers[name], start, value, steps if same else 0, state)
            for stretches in targets:
                stretches[found.number].put(found)
        for part, stretches in zip(self.current, targets, strict=True):
            part.set_states(stretches)

    def _take_over(self, header: dict[str, Any]) -> None:
        self.version = header["version"]
        self.applied |= {task: position for task, _, position in header["ledger"]}

    # -- small things

    def _new_parts(self) -> list[Part]:
        world, rank = self.layout
        ranks = [rank] if world == 1 else [rank, (rank - 1) % world]
        return [Part(self.spec, self.like, world, each, self.device) for each in ranks]

    def _take_shared(self, model: nn.Module) -> list[Tensor]:
        return [t.detach().to(self.device, copy=True) for t in self.shared_of(model)]

    def _shared_by_name(self) -> dict[str, Tensor]:
        frozen = [name for name, p in self.skeleton.named_parameters() if not p.requires_grad]
        names = [*frozen, *Buffers(self.skeleton).names]
        return dict(zip(names, self.shared, strict=True))


def fill_meta(model: nn.Module, device: torch.device) -> None:
    """Have all of it on the device: the parameters without values get places for them there."""
    model._apply(  # type: ignore[no-untyped-call]
        lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device)
    )


def _places(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return the place of each parameter, by parameter."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, key))
    return list(places.values())


def _skeleton(model: nn.Module) -> nn.Module:
    """Return the model with parameters that have a shape and no values."""
    shapes = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"))
        for p in model.parameters()
        if p.requires_grad
    }
    return copy.deepcopy(model, dict(shapes))


def _put_all(asked: list[tuple[Stretch, Range]], world: int, rank: int, read: Read) -> None:
    if asked:
        found = read(world, rank, [range_ for _, range_ in asked])
        for (target, _), stretch in zip(asked, found, strict=True):
            target.put(stretch)
        asked.clear()
