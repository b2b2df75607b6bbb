"""The state that each member of a group has: parameters, optimizer, ledger, steps, batch.

It is the group's one shard (ps/books/ledger.py has the same account on a server): `applied` says
how far it has applied each task, and moves with the parameters. `pack` makes one blob of it, for a
member that lacks it; `write` and `read` are checkpoints (checkpoint.py).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ...common.errors import CheckpointError
from ...common.places import Place, Where
from ...common.storage import FileRecord
from ...nn.dense import dense_tensors, put_chunk
from ...nn.local import torch_optimizer
from ...nn.model_spec import ModelSpec
from ...nn.optimizers import learning_rate
from . import optimizer_state
from .checkpoint import (
    STATE,
    chunks_of,
    fresh_state,
    loaded,
    portable,
    stored,
    write_chunks,
    write_header,
)
from .ramp import Ramp

if TYPE_CHECKING:
    from .adaptive_batch import AdaptiveBatch  # which not every job imports

_SHARD = "shard-00000-of-00001"
_BESIDE_SERVERS = "group"  # whose shards have their own files in the same folder


class GroupState:
    """The whole state of a group, which each member has.

    `spec`: the model and its optimizer.
    """

    def __init__(
        self, model: nn.Module, spec: ModelSpec, batch: AdaptiveBatch | None = None
    ) -> None:
        self.model = model
        self.spec = spec
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch_optimizer(spec.dense_optimizer, self.parameters)
        self.batch = batch
        self.version = -1  # it has none yet
        self.applied: dict[int, int] = {}  # by task
        self.ramp = Ramp()

    def copy(self) -> GroupState:
        """Return the state of now as one that training does not touch."""
        with torch.no_grad():
            twin = GroupState(copy.deepcopy(self.model), self.spec, copy.deepcopy(self.batch))
        for theirs, mine in zip(twin.parameters, self.parameters, strict=True):
            steps, state = optimizer_state.get_state(self.optimizer, mine)
            clones = {name: value.clone() for name, value in state.items()}
            optimizer_state.set_state(twin.optimizer, theirs, steps, clones)
        twin.version, twin.applied = self.version, dict(self.applied)
        twin.ramp = copy.copy(self.ramp)
        return twin

    def lr_factor(self, warmup_steps: int) -> float:
        """Return the factor of the next step's learning rate."""
        return self.ramp.at(self.version, warmup_steps)

    def follow(self, factor: float, warmup_steps: int) -> None:
        """Let the learning rate go to so many times what the optimizer says, from now on."""
        self.ramp.follow(factor, self.version, warmup_steps)

    def learning_rate(self, records: int) -> float:
        """Return what the optimizer says for the next step, of so many records."""
        if self.batch is None:
            return learning_rate(self.spec.dense_optimizer, self.version)
        scheduled = learning_rate(self.spec.dense_optimizer, self.batch.schedule_step)
        return scheduled * self.batch.lr_factor(records)

    def begin(self) -> None:
        """Begin as the first of all states, with nothing applied."""
        self.version, self.applied = 0, {}
        if self.batch is not None:
            self.batch.begin(0)

    def retire(self, low_water: int) -> None:
        """Forget tasks below this one: they are asked for no more."""
        self.applied = {task: at for task, at in self.applied.items() if task >= low_water}

    # -- for a member that lacks it

    def pack(self) -> bytes:
        """Make one blob of the whole state."""
        tensors = {f"model.{n}": t for n, t in portable(self.model.state_dict()).items()}
        steps = []
        for number, weight in enumerate(self.parameters):
            count, state = optimizer_state.get_state(self.optimizer, weight)
            steps.append(count)
            tensors |= {f"{STATE}{number}.{n}": t.contiguous() for n, t in state.items()}
        header = {
            "version": self.version,
            "applied": list(self.applied.items()),
            "steps": steps,
            "factors": self.ramp.factors,
            "batch": self._batch(),
        }
        return safetensors.torch.save(tensors, {"edl": json.dumps(header)})

    def unpack(self, blob: bytes) -> None:
        """Take over the state that `pack` made a blob of.

        Raises CheckpointError for another model's.
        """
        try:
            header, tensors = loaded(blob)
            names = [name for name in tensors if name.startswith("model.")]
            values = {n.removeprefix("model."): tensors.pop(n) for n in names}
            for name, mine in self.model.state_dict().items():
                if mine.is_complex() and name in values:
                    values[name] = torch.view_as_complex(values[name])
            self.model.load_state_dict(values)
        except (ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"a member's state is not of this model: {error}") from error
        states: list[dict[str, Tensor]] = [{} for _ in self.parameters]
        for name, tensor in tensors.items():
            number, _, state = name.removeprefix(STATE).partition(".")
            states[int(number)][state] = tensor
        for weight, steps, found in zip(self.parameters, header["steps"], states, strict=True):
            on_device = {name: tensor.to(weight.device) for name, tensor in found.items()}
            optimizer_state.set_state(self.optimizer, weight, steps, on_device)
        self.version = header["version"]
        self.applied = dict(header["applied"])
        self.ramp.factors = tuple(header["factors"])
        if self.batch is not None:
            self.batch.load(header["batch"], self.version)

    # -- checkpoints

    def write(self, directory: Where) -> list[FileRecord]:
        """Write the state, as one shard of a checkpoint, and return the files."""
        names = optimizer_state.state_names(self.spec.dense_optimizer)
        by_weight = dict(self._weights())
        tensors: dict[str, Tensor] = {}
        about: list[list[Any]] = []
        for name, (tensor, kind) in dense_tensors(self.model).items():
            steps, state = 0, dict[str, Tensor]()
            if kind == "parameter" and name in by_weight:
                steps, state = optimizer_state.get_state(self.optimizer, by_weight[name])
            parts = {"value": chunks_of(tensor)}
            if kind == "parameter":
                for theirs, ours in names.items():
                    there = state[ours] if ours in state else fresh_state(self.spec, ours, tensor)
                    parts[f"{STATE}{theirs}"] = chunks_of(there)
            for chunk in range(len(parts["value"])):
                tensors |= {f"{len(about)}.{part}": each[chunk] for part, each in parts.items()}
                about.append([name, chunk, steps, self.version])
        shard = _BESIDE_SERVERS if self.spec.tables else _SHARD
        place = Place(directory)
        return [
            write_chunks(place, f"{shard}.dense-00000.safetensors", tensors, about),
            write_header(place, f"{shard}.json", self, self._batch()),
        ]

    def read(self, path: str, *, ledger: bool) -> None:
        """Take over a checkpoint of any strategy; with its ledger where the same job goes on.

        Raises CheckpointError where a file is damaged or it is another model's.
        """
        same, chunks = stored(path, self.spec, self._take_over if ledger else _ignore)
        tensors = {name: tensor for name, (tensor, _) in dense_tensors(self.model).items()}
        states: dict[str, dict[str, Tensor]] = {name: {} for name in tensors}
        steps = dict.fromkeys(tensors, 0)
        for name, chunk, count, value, state in chunks:
            put_chunk(tensors[name], chunk, value)
            steps[name] = max(steps[name], count) if same else 0
            for ours, found in state.items():
                place = states[name].setdefault(ours, torch.empty_like(tensors[name]))
                put_chunk(place, chunk, found)
        for name, weight in self._weights():
            optimizer_state.set_state(self.optimizer, weight, steps[name], states[name])

    def _take_over(self, header: dict[str, Any]) -> None:
        self.version = header["version"]
        self.applied |= {task: position for task, _, position in header["ledger"]}
        if self.batch is not None:
            self.batch.load(header.get("batch"), self.version)

    def _batch(self) -> dict[str, Any] | None:
        return self.batch.state_dict() if self.batch is not None else None

    def _weights(self) -> Sequence[tuple[str, Tensor]]:
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]


def _ignore(header: dict[str, Any]) -> None:
    """Take nothing over from another job's account."""
