"""What each member of an all-reduce group holds: parameters, buffers, optimizer, ledger, steps, batch.

It is the group's one shard (ps/books/ledger.py has the same books on a server): `applied` says how far it
has applied each task, and moves with the parameters. `pack` makes one blob of it, for a member that
lacks it; `write` and `read` are checkpoints, in the format of the servers' (ps/snapshots/cut.py), so that
a job may go on with another strategy.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ...common.errors import CheckpointError
from ...common.storage import FileRecord, load, read_checked, write_file
from ...nn.local import torch_optimizer
from ...nn.model_spec import CHUNK_ELEMENTS, ModelSpec, difference
from ...nn.optimizers import learning_rate
from ..servers.trainer import dense_tensors
from . import optimizer_state

if TYPE_CHECKING:
    from .adaptive_batch import AdaptiveBatch

_SHARD = "shard-00000-of-00001"
_BESIDE_SERVERS = "group"  # whose shards have their own files in the same folder
_STATE = "state."
# of a checkpoint: tensor, number, steps, value, optimizer state by torch's names
StoredChunk = tuple[str, int, int, Tensor, dict[str, Tensor]]


class GroupState:
    """See the module. `spec` is what the model and its optimizer are."""

    def __init__(
        self, model: nn.Module, spec: ModelSpec, batch: AdaptiveBatch | None = None
    ) -> None:
        self.model = model
        self.spec = spec
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch_optimizer(spec.optimizer, self.parameters)
        self.batch = batch
        self.version = -1  # it has none yet
        self.applied: dict[int, int] = {}  # by task
        self._factors = (1.0, 1.0, 0)  # of the learning rate: from, to, since which step

    def copy(self) -> GroupState:
        """The state of now, which training does not touch."""
        with torch.no_grad():
            twin = GroupState(copy.deepcopy(self.model), self.spec, copy.deepcopy(self.batch))
        ours = dict(zip(twin.parameters, self.parameters, strict=True))
        for theirs, mine in ours.items():
            steps, state = optimizer_state.get_state(self.optimizer, mine)
            clones = {name: value.clone() for name, value in state.items()}
            optimizer_state.set_state(twin.optimizer, theirs, steps, clones)
        twin.version, twin.applied = self.version, dict(self.applied)
        twin._factors = self._factors
        return twin

    def lr_factor(self, warmup_steps: int) -> float:
        """That of the next step."""
        old, new, since = self._factors
        done = min(1.0, (self.version - since + 1) / max(1, warmup_steps))
        return old + (new - old) * done

    def follow(self, factor: float, warmup_steps: int) -> None:
        """From now on the learning rate goes to so many times what the optimizer says."""
        if factor != self._factors[1]:
            old = self.lr_factor(warmup_steps) if self.version else factor
            self._factors = (old, factor, self.version)

    def learning_rate(self, records: int) -> float:
        """What the optimizer says for the next step, of so many records."""
        if self.batch is None:
            return learning_rate(self.spec.optimizer, self.version)
        scheduled = learning_rate(self.spec.optimizer, self.batch.schedule_step)
        return scheduled * self.batch.lr_factor(records)

    def begin(self) -> None:
        """Be the first of all states."""
        self.version, self.applied = 0, {}
        if self.batch is not None:
            self.batch.begin(0)

    def retire(self, low_water: int) -> None:
        """Tasks below it are asked for no more."""
        self.applied = {task: at for task, at in self.applied.items() if task >= low_water}

    # -- for a member that lacks it

    def pack(self) -> bytes:
        """All of it."""
        tensors = {f"model.{n}": t for n, t in portable(self.model.state_dict()).items()}
        steps = []
        for number, weight in enumerate(self.parameters):
            count, state = optimizer_state.get_state(self.optimizer, weight)
            steps.append(count)
            tensors |= {f"{_STATE}{number}.{n}": t.contiguous() for n, t in state.items()}
        applied = list(self.applied.items())
        books = json.dumps(
            {
                "version": self.version,
                "applied": applied,
                "steps": steps,
                "factors": self._factors,
                "batch": self._batch(),
            }
        )
        return safetensors.torch.save(tensors, {"edl": books})

    def unpack(self, blob: bytes) -> None:
        """Become what `pack` made a blob of. Raises CheckpointError where it is of another model."""
        try:
            header_nbytes = int.from_bytes(blob[:8], "little")
            books = json.loads(json.loads(blob[8 : 8 + header_nbytes])["__metadata__"]["edl"])
            tensors = safetensors.torch.load(blob)
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
            number, _, state = name.removeprefix(_STATE).partition(".")
            states[int(number)][state] = tensor
        for weight, steps, found in zip(self.parameters, books["steps"], states, strict=True):
            on_device = {name: tensor.to(weight.device) for name, tensor in found.items()}
            optimizer_state.set_state(self.optimizer, weight, steps, on_device)
        self.version = books["version"]
        self.applied = dict(books["applied"])
        self._factors = tuple(books["factors"])
        if self.batch is not None:
            self.batch.load(books["batch"], self.version)

    # -- checkpoints

    def write(self, directory: Path) -> list[FileRecord]:
        """Write it, as one shard. The files."""
        names = optimizer_state.state_names(self.spec.optimizer)
        by_weight = dict(self._weights())
        tensors: dict[str, Tensor] = {}
        about = []
        number = 0
        for name, (tensor, kind) in dense_tensors(self.model).items():
            steps, state = 0, dict[str, Tensor]()
            if kind == "parameter" and name in by_weight:
                steps, state = optimizer_state.get_state(self.optimizer, by_weight[name])
            for chunk, value in enumerate(_chunks(tensor)):
                tensors[f"{number}.value"] = value
                if kind == "parameter":
                    for theirs, ours in names.items():
                        there = state[ours] if ours in state else self._fresh(ours, tensor)
                        tensors[f"{number}.{_STATE}{theirs}"] = _chunks(there)[chunk]
                about.append([name, chunk, steps, self.version])
                number += 1
        shard = _BESIDE_SERVERS if self.spec.tables else _SHARD
        directory.mkdir(parents=True, exist_ok=True)
        return [
            write_chunks(directory / f"{shard}.dense-00000.safetensors", tensors, about),
            self.write_books(directory / f"{shard}.json"),
        ]

    def write_books(self, path: Path, low_water: int = 0) -> FileRecord:
        """What else is in a checkpoint, of each shard. Of tasks below `low_water` a shard may know
        what others have forgotten."""
        books = {
            "model": json.loads(self.spec.to_json()),
            "version": self.version,
            "low_water": low_water,
            "ledger": [[task, 0, position] for task, position in self.applied.items()],
            "pushes": 0,
            "batch": self._batch(),
        }
        return write_file(path, json.dumps(books).encode())

    def read(self, path: str, *, ledger: bool) -> None:
        """Become a checkpoint, of any strategy; with its ledger where the same job goes on.

        Raises CheckpointError where a file is damaged or it is another model's.
        """
        same, chunks = self._stored(path, ledger)
        tensors = {name: tensor for name, (tensor, _) in dense_tensors(self.model).items()}
        states: dict[str, dict[str, Tensor]] = {name: {} for name in tensors}
        steps = dict.fromkeys(tensors, 0)
        for name, chunk, count, value, state in chunks:
            _put(tensors[name], chunk, value)
            steps[name] = max(steps[name], count) if same else 0
            for ours, found in state.items():
                place = states[name].setdefault(ours, torch.empty_like(tensors[name]))
                _put(place, chunk, found)
        for name, weight in self._weights():
            optimizer_state.set_state(self.optimizer, weight, steps[name], states[name])

    def _stored(self, path: str, ledger: bool) -> tuple[bool, Iterator[StoredChunk]]:
        """The chunks of a checkpoint, and whether the optimizer's state is among them: it is of the
        same optimizer. The books are taken over on the way, with `ledger`."""
        manifest = load(path)
        try:
            theirs = ModelSpec.from_json(json.dumps(manifest.model))
        except ValueError as error:
            raise CheckpointError(f"{manifest.directory} has no model: {error}") from error
        if (theirs.dense, theirs.tables) != (self.spec.dense, self.spec.tables):
            raise CheckpointError(another_model(str(manifest.directory), self.spec, theirs))
        names = optimizer_state.state_names(self.spec.optimizer)
        if not (same := names == optimizer_state.state_names(theirs.optimizer)):  # as servers do
            names = {}

        def chunks() -> Iterator[StoredChunk]:
            for record in manifest.files:
                if not (".dense-" in record.name or record.name.endswith(".json")):
                    continue  # rows, which servers read
                data = read_checked(manifest, record)
                if record.name.endswith(".json"):
                    books = json.loads(data)
                    if ledger:
                        self.version = books["version"]
                        self.applied |= {task: position for task, _, position in books["ledger"]}
                        if self.batch is not None:
                            self.batch.load(books.get("batch"), self.version)
                    continue
                header_nbytes = int.from_bytes(data[:8], "little")
                header = json.loads(data[8 : 8 + header_nbytes])["__metadata__"]["edl"]
                parts = safetensors.torch.load(data)
                for number, (name, chunk, count, _) in enumerate(
                    json.loads(header).get("chunks", ())
                ):
                    told = ((ours, f"{number}.{_STATE}{each}") for each, ours in names.items())
                    state = {ours: parts[key] for ours, key in told if key in parts}
                    yield name, chunk, count, parts[f"{number}.value"], state

        return same, chunks()

    def _batch(self) -> dict[str, Any] | None:
        return self.batch.state_dict() if self.batch is not None else None

    def _weights(self) -> Sequence[tuple[str, Tensor]]:
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]

    def _fresh(self, state: str, weight: Tensor) -> Tensor:
        """The state of a weight that had no gradient yet."""
        initial = getattr(self.spec.optimizer, "initial_accumulator_value", 0.0)
        return torch.full_like(weight, initial if state == "sum" else 0.0)


def another_model(directory: str, mine: ModelSpec, theirs: ModelSpec) -> str:
    """What a user is told whose model is not the checkpoint's; whatever the optimizer is."""
    told = difference(
        dataclasses.replace(mine, optimizer=theirs.optimizer, seed=theirs.seed), theirs
    )
    theirs_dense = {tensor.name for tensor in theirs.dense}
    if any(f"{table.name}.weight" in theirs_dense for table in mine.tables):
        told += "; it was trained with --ps_embedding_threshold 0: say so here too"
    return (
        f"{directory} is a checkpoint of another model than the definition makes: {told} (here: the "
        "definition, there: the checkpoint); give it the model and the --model_params that it was "
        "trained with"
    )


def portable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors can hold them: complex numbers as pairs, and none in another one's memory."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        whole = real.contiguous()
        shared = whole.untyped_storage().data_ptr() in seen
        seen.add(whole.untyped_storage().data_ptr())
        found[name] = whole.clone() if shared else whole
    return found


def write_chunks(path: Path, tensors: dict[str, Tensor], about: list[Any]) -> FileRecord:
    """A file of chunks, as the servers write it: `about` tells of each its tensor's name, number,
    steps and version; `tensors` has `<place>.value` and `<place>.state.<name>`."""
    blob = safetensors.torch.save(tensors, {"edl": json.dumps({"chunks": about})})
    return write_file(path, blob)


def _chunks(tensor: Tensor) -> list[Tensor]:
    """The servers' chunks of a dense tensor: copies, float32, on the CPU."""
    flat = tensor.detach().to("cpu", torch.float32).reshape(-1)
    return [part.clone() for part in torch.split(flat, CHUNK_ELEMENTS)]


@torch.no_grad()
def _put(tensor: Tensor, chunk: int, values: Tensor) -> None:
    place = tensor.detach().reshape(-1)[chunk * CHUNK_ELEMENTS : (chunk + 1) * CHUNK_ELEMENTS]
    place.copy_(values)
