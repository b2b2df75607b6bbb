"""What a member of a group holds of a state that no member holds whole: two parts of it.

torch's fully_shard cuts each parameter by its first dimension: of R ranks, rank r has the rows
[r * ceil(n / R), (r + 1) * ceil(n / R)). A `Part` is those rows of all parameters, with the
optimizer's state of them, and is named (R, r). A member holds its own and a mirror of the rank's
before it; both make every step, so whichever member dies, the next one has what it had. What is
not sharded (buffers, frozen parameters) and the books (steps, positions by task) every member has.

Parts of one version and name are equal, whoever has them. A state is put together by stretches:
[start, stop) of one parameter, flat. So a new round's parts are made of those of the round before,
in whatever number they were; and so are the chunks of a checkpoint (the servers' format, as of
group_state.py), of which each member writes its share.
"""

from __future__ import annotations

import copy
import json
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ...common.errors import DefinitionError
from ...common.storage import FileRecord
from ...nn.buffers import Buffers, add_changes, plain_buffers
from ...nn.local import torch_optimizer
from ...nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from ...nn.optimizers import learning_rate
from ..servers.trainer import dense_tensors
from . import optimizer_state
from .state import GroupState, portable, write_chunks

_STATE = "state."
_CHUNKS_OF_FILE = 16  # 64 MiB, and the optimizer's state
_ELEMENTS_OF_MESSAGE = 4 << 20

Span = tuple[int, int, int]  # number of a parameter; [start, stop) of it, flat
Read = Callable[[int, int, Sequence[Span]], "list[Stretch]"]  # those of the part (world, rank)


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
        """Take over what the two have in common."""
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
    """The rows that fully_shard gives a rank of so many: they are cut as torch.chunk does."""
    size = -(-count // world)
    return min(rank * size, count), min((rank + 1) * size, count)


def span_of(number: int, like: Tensor, world: int, rank: int) -> Span:
    """The same of a parameter, flat."""
    start, stop = rows_of(len(like), world, rank)
    width = math.prod(like.shape[1:])
    return number, start * width, stop * width


class Part:
    """The rows of rank `rank` of `world` of all parameters, and an optimizer that steps with them."""

    def __init__(
        self, spec: ModelSpec, like: Sequence[Tensor], world: int, rank: int, device: torch.device
    ) -> None:
        """`like`: the parameters' shapes and types. The values are still to come."""
        self.world, self.rank = world, rank
        self._spec, self._like = spec, like
        self._spans = [span_of(n, p, world, rank) for n, p in enumerate(like)]
        self.weights = []
        for parameter in like:
            start, stop = rows_of(len(parameter), world, rank)
            shape = (stop - start, *parameter.shape[1:])
            self.weights.append(nn.Parameter(parameter.new_empty(shape, device=device)))
        self.optimizer = torch_optimizer(spec.optimizer, self.weights)

    @property
    def name(self) -> tuple[int, int]:
        return self.world, self.rank

    @property
    def numel(self) -> int:
        """Values of parameters."""
        return sum(weight.numel() for weight in self.weights)

    def stretches(self) -> list[Stretch]:
        """All that it has, by parameter: views."""
        found = []
        for (number, start, _), weight in zip(self._spans, self.weights, strict=True):
            steps, state = optimizer_state.get_state(self.optimizer, weight)
            flat = {name: value.reshape(-1) for name, value in state.items()}
            found.append(Stretch(number, start, weight.detach().reshape(-1), steps, flat))
        return found

    def read(self, spans: Sequence[Span]) -> list[Stretch]:
        """Stretches of it: copies."""
        stretches = self.stretches()
        found = []
        for number, start, stop in spans:
            has = stretches[number]
            target = Stretch(number, start, has.value.new_empty(stop - start))
            target.put(has)
            found.append(target)
        return found

    def set_states(self, stretches: Sequence[Stretch]) -> None:
        """The optimizer's state is that of these, which are all of the part's parameters."""
        for weight, has in zip(self.weights, stretches, strict=True):
            state = {name: value.view_as(weight) for name, value in has.state.items()}
            optimizer_state.set_state(self.optimizer, weight, has.steps, state)

    @torch.no_grad()
    def adopt(self, tensors: Sequence[Tensor]) -> None:
        """Live in these from now on, which get the values."""
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
        """Its parameters' places, to put values in; then `set_states` of the same."""
        places = zip(self._spans, self.weights, strict=True)
        return [Stretch(n, start, w.detach().reshape(-1)) for (n, start, _), w in places]

    def copy(self, device: torch.device) -> Part:
        """The same, on a device, which the steps that follow do not touch."""
        twin = Part(self._spec, self._like, *self.name, device)
        targets = twin.blank()
        for target, has in zip(targets, self.stretches(), strict=True):
            target.put(has)
        twin.set_states(targets)
        return twin


@dataclass(frozen=True)
class _Chunk:
    """[start, stop) of a tensor of the model, flat: the `number`-th chunk of it."""

    name: str
    kind: str
    number: int
    start: int
    stop: int
    dtype: torch.dtype


@dataclass
class Step:
    """What a step of the group came to: by part, gradients by parameter; changes by buffer."""

    gradients: list[list[Tensor | None]]
    changes: list[Tensor | None]
    task: int
    end: int
    loss: float = 0.0
    ends_round: bool = False


class ShardedState(GroupState):
    """See the module. `current` are this member's parts in its round, its own first; `parts` are all
    that it holds: while a round begins, those of the one before as well.

    `pending`: the step that it can make, and does not know yet whether all can. `first`: the whole
    model with its first values, until there is a state.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        spec: ModelSpec,
        device: torch.device,
        warmup_steps: int = 0,
    ) -> None:
        """Raises DefinitionError for parameters that have no dimension to be cut by."""
        self.spec, self.batch = spec, None
        self.version = -1
        self.applied = {}
        self._low_water = 0
        self._factors = (1.0, 1.0, 0)
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
                f"{', '.join(scalars)}: a parameter without a dimension cannot be cut: give it the "
                "shape (1,), or leave --fully_shard out"
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
        """What every member has, of a model that is like this one: frozen parameters, buffers."""
        frozen = [p for p in model.parameters() if not p.requires_grad]
        return [*frozen, *plain_buffers(model)]

    def buffers(self) -> list[Tensor]:
        frozen = sum(not p.requires_grad for p in self.skeleton.parameters())
        return self.shared[frozen:]

    def begin(self) -> None:
        """Be the first of all states: the model's own first values."""
        whole, self.first = self.first or self._make_model(), None
        values = [p.detach().reshape(-1) for p in whole.parameters() if p.requires_grad]
        with self.lock:
            self.version, self.applied, self.pending = 0, {}, None
            self._factors = (1.0, 1.0, 0)
            self.shared = self._take_shared(whole)
            self.current = self._new_parts()
            for part in self.current:
                targets = part.blank()
                for target in targets:
                    target.put(Stretch(target.number, 0, values[target.number]))
                part.set_states(targets)
            self.parts = [*self.current]

    def assemble(self, world: int, read: Read) -> None:
        """Have the parts of `layout`, made of those of a state in `world` parts. What `read` raises."""
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
        self._low_water = max(self._low_water, low_water)
        super().retire(low_water)

    def settle(self) -> None:
        """All members have their parts: those of the round before are needed no more."""
        with self.lock:
            self.parts = [*self.current]

    def meet(self, version: int) -> None:
        """Be as the others are: make the step that was pending, or drop it; -1 where that is not enough."""
        with self.lock:
            if self.pending is not None and self.version + 1 == version:
                self.apply(self.pending)
            elif self.version != version:
                self.version, self.parts, self.current = -1, [], []
            self.pending = None

    def gather(self, targets: Sequence[Stretch], world: int, read: Read) -> None:
        """Fill them from a state in `world` parts."""
        for rank in range(world):
            spans = [span_of(n, like, world, rank) for n, like in enumerate(self.like)]
            asked: list[tuple[Stretch, Span]] = []
            size = 0
            for target in targets:
                start, stop = spans[target.number][1:]
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
        """Make a step, of all parts."""
        rate = learning_rate(self.spec.optimizer, self.version) * self.lr_factor(self.warmup_steps)
        with self.lock:
            for part, gradients in zip(self.current, step.gradients, strict=True):
                part.step(gradients, rate)
            add_changes(self.buffers(), step.changes)
            self.version += 1
            self.applied[step.task] = step.end
            self.pending = None

    def whole(self, world: int, read: Read) -> nn.Module:
        """A model with all the values of now, of a state in `world` parts."""
        model = self.new_model(self.device)
        weights = [p for p in model.parameters() if p.requires_grad]
        targets = [Stretch(n, 0, p.detach().reshape(-1)) for n, p in enumerate(weights)]
        self.gather(targets, world, read)
        for mine, theirs in zip(self.shared_of(model), self.shared, strict=True):
            mine.detach().copy_(theirs)
        return model

    def new_model(self, device: torch.device | None = None) -> nn.Module:
        """One like the definition's, but for the parameters' values: on `device`, or none ("meta")."""
        model = copy.deepcopy(self.skeleton)
        if device is not None:
            tied = _places(model)
            fill_meta(model, device)
            for (first, name), *others in tied:  # each got a place of its own
                for module, key in others:
                    module._parameters[key] = first._parameters[name]
        return model

    # -- for other members

    def pack_books(self) -> bytes:
        """What every member has."""
        tensors = portable({str(n): t.detach() for n, t in enumerate(self.shared)})
        books = {"applied": list(self.applied.items()), "factors": self._factors}
        return safetensors.torch.save(tensors, {"edl": json.dumps(books)})

    @torch.no_grad()
    def unpack_books(self, blob: bytes, version: int) -> None:
        books, tensors = _loaded(blob)
        with self.lock:
            self.version, self.applied = version, dict(books["applied"])
            self._factors = tuple(books["factors"])
            for number, mine in enumerate(self.shared):
                place = torch.view_as_real(mine) if mine.is_complex() else mine
                place.copy_(tensors[str(number)])

    # -- cuts and checkpoints

    def copy(self) -> ShardedState:
        """The state of now with this member's own part alone, on the CPU: training does not touch it."""
        twin = copy.copy(self)
        cpu = torch.device("cpu")
        twin.current = twin.parts = [self.own.copy(cpu)]
        twin.shared = [tensor.detach().cpu().clone() for tensor in self.shared]
        twin.applied = dict(self.applied)
        twin.device, twin.pending = cpu, None
        twin.lock = threading.RLock()
        return twin

    def write_share(
        self, directory: Path, rank: int, members: int, world: int, read: Read
    ) -> list[FileRecord]:
        """Write every `members`-th chunk of a state in `world` parts, from the `rank`-th on. The files."""
        directory.mkdir(parents=True, exist_ok=True)
        shard = f"shard-{rank:05d}-of-{members:05d}"
        mine = self._chunks()[rank::members]
        files = []
        for at in range(0, len(mine), _CHUNKS_OF_FILE):
            path = directory / f"{shard}.dense-{at // _CHUNKS_OF_FILE:05d}.safetensors"
            files.append(self._write_file(path, mine[at : at + _CHUNKS_OF_FILE], world, read))
        return [*files, self.write_books(directory / f"{shard}.json", self._low_water)]

    def _write_file(
        self, path: Path, chunks: Sequence[_Chunk], world: int, read: Read
    ) -> FileRecord:
        names = optimizer_state.state_names(self.spec.optimizer)
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
                    there = place.state[ours] if place.steps else self._fresh(ours, place.value)
                    tensors[f"{number}.{_STATE}{theirs}"] = there.cpu().float()
            about.append([chunk.name, chunk.number, place.steps, self.version])
        return write_chunks(path, tensors, about)

    def _chunks(self) -> list[_Chunk]:
        return [
            _Chunk(name, kind, number, start, min(start + CHUNK_ELEMENTS, like.numel()), like.dtype)
            for name, (like, kind) in dense_tensors(self.skeleton).items()
            for number, start in enumerate(range(0, like.numel(), CHUNK_ELEMENTS))
        ]

    @torch.no_grad()
    def read(self, path: str, *, ledger: bool) -> None:
        """After `begin`: become a checkpoint, of any strategy. See GroupState.read."""
        same, chunks = self._stored(path, ledger)
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


def pack(stretches: Iterable[Stretch]) -> bytes:
    tensors: dict[str, Tensor] = {}
    about = []
    for place, each in enumerate(stretches):
        tensors[f"{place}.value"] = each.value
        tensors |= {f"{place}.{_STATE}{name}": value for name, value in each.state.items()}
        about.append([each.number, each.start, each.steps])
    return safetensors.torch.save(tensors, {"edl": json.dumps(about)})


def unpack(blob: bytes, device: torch.device) -> list[Stretch]:
    about, tensors = _loaded(blob)
    found = [
        Stretch(number, start, tensors.pop(f"{place}.value").to(device), steps)
        for place, (number, start, steps) in enumerate(about)
    ]
    for key, value in tensors.items():
        place, _, name = key.partition(f".{_STATE}")
        found[int(place)].state[name] = value.to(device)
    return found


def fill_meta(model: nn.Module, device: torch.device) -> None:
    """Have all of it on the device: the parameters without values get places for them there."""
    model._apply(  # type: ignore[no-untyped-call]
        lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device)
    )


def _places(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """By parameter: where it stands."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, key))
    return list(places.values())


def _skeleton(model: nn.Module) -> nn.Module:
    """The model with parameters that have a shape and no values."""
    shapes = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"))
        for p in model.parameters()
        if p.requires_grad
    }
    return copy.deepcopy(model, dict(shapes))


def _put_all(asked: list[tuple[Stretch, Span]], world: int, rank: int, read: Read) -> None:
    if asked:
        found = read(world, rank, [span for _, span in asked])
        for (target, _), stretch in zip(asked, found, strict=True):
            target.put(stretch)
        asked.clear()


def _loaded(blob: bytes) -> tuple[Any, dict[str, Tensor]]:
    header_nbytes = int.from_bytes(blob[:8], "little")
    about = json.loads(json.loads(blob[8 : 8 + header_nbytes])["__metadata__"]["edl"])
    return about, safetensors.torch.load(blob)
