"""The files of a group's checkpoint, in the format of the servers' (ps/snapshots/cut.py).

So a job may go on with another strategy. A dense tensor is stored in chunks, each with the
optimizer's state of it; a header of JSON has what else there is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from ...common.errors import CheckpointError, DefinitionError
from ...common.pieces import encode
from ...common.places import Place
from ...common.storage import FileRecord, load, read_all
from ...nn.model_spec import CHUNK_ELEMENTS, ModelSpec, another_model
from . import optimizer_state
from .cuts import Held

STATE = "state."  # before the name of a part of the optimizer's state
# of a checkpoint: tensor, number, steps, value, optimizer state by torch's names
StoredChunk = tuple[str, int, int, Tensor, dict[str, Tensor]]


def stored(
    path: str, spec: ModelSpec, on_header: Callable[[dict[str, Any]], None]
) -> tuple[bool, Iterator[StoredChunk]]:
    """Read the chunks of a checkpoint.

    `on_header` gets each shard's header on the way.

    Also returns whether the optimizer's state is among them: it is of the same optimizer. Raises
    CheckpointError where a file is damaged or it is another model's.
    """
    manifest = load(path)
    theirs = ModelSpec.of_checkpoint(manifest.model, manifest.place)
    if (theirs.dense, theirs.tables) != (spec.dense, spec.tables):
        raise CheckpointError(another_model(str(manifest.place), spec, theirs))
    names = optimizer_state.state_names(spec.dense_optimizer)
    if not (same := names == _state_names(theirs)):  # as servers do
        names = {}

    def chunks() -> Iterator[StoredChunk]:
        wanted = [
            record
            for record in manifest.files
            if ".dense-" in record.name or record.name.endswith(".json")  # rows are servers'
        ]
        for record, data in read_all(manifest, wanted):
            if record.name.endswith(".json"):
                on_header(json.loads(data))
                continue
            about, parts = loaded(data)
            for number, (name, chunk, count, _) in enumerate(about.get("chunks", ())):
                told = ((ours, f"{number}.{STATE}{each}") for each, ours in names.items())
                state = {ours: parts[key] for ours, key in told if key in parts}
                yield name, chunk, count, parts[f"{number}.value"], state

    return same, chunks()


def _state_names(spec: ModelSpec) -> dict[str, str]:
    """Return the names of the dense tensors' state; none where they are not alike."""
    try:
        return optimizer_state.state_names(spec.dense_optimizer)
    except DefinitionError:  # servers took several optimizers
        return {"": ""}


def write_header(
    place: Place, name: str, state: Held, batch: dict[str, Any] | None = None, low_water: int = 0
) -> FileRecord:
    """Write a shard's header in a checkpoint, the file of this name: all of it but the chunks.

    Of tasks below `low_water` a shard may know what others have forgotten.
    """
    header = {
        "model": json.loads(state.spec.to_json()),
        "version": state.version,
        "low_water": low_water,
        "ledger": [[task, 0, position] for task, position in state.applied.items()],
        "pushes": 0,
        "batch": batch,
    }
    return place.write(name, json.dumps(header).encode())


def loaded(blob: bytes) -> tuple[Any, dict[str, Tensor]]:
    """Return JSON and tensors of a blob: `safetensors.torch.save(tensors, {"edl": json})`."""
    header_nbytes = int.from_bytes(blob[:8], "little")
    about = json.loads(json.loads(blob[8 : 8 + header_nbytes])["__metadata__"]["edl"])
    return about, safetensors.torch.load(blob)


def fresh_state(spec: ModelSpec, state: str, weight: Tensor) -> Tensor:
    """Return the state of a weight that had no gradient yet."""
    initial = getattr(spec.dense_optimizer, "initial_accumulator_value", 0.0)
    return torch.full_like(weight, initial if state in ("sum", "row_sum", "n") else 0.0)


def portable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what safetensors can hold: complex numbers as pairs, none in another's memory."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        whole = real.contiguous()
        shared = whole.untyped_storage().data_ptr() in seen
        seen.add(whole.untyped_storage().data_ptr())
        found[name] = whole.clone() if shared else whole
    return found


def write_chunks(
    place: Place, name: str, tensors: dict[str, Tensor], about: list[Any]
) -> FileRecord:
    """Write a file of chunks of this name, as the servers do.

    `about` tells of each its tensor's name, number, steps and version; `tensors` has
    `<place>.value` and `<place>.state.<name>`.
    """
    # Other than safetensors' own `save`, this lets other threads go on: training does.
    arrays = {each: tensor.numpy() for each, tensor in tensors.items()}
    return place.write(name, *encode(arrays, {"chunks": about}))


def chunks_of(tensor: Tensor) -> list[Tensor]:
    """Return the servers' chunks of a dense tensor: copies, float32, on the CPU."""
    flat = tensor.detach().to("cpu", torch.float32).reshape(-1)
    return [part.clone() for part in torch.split(flat, CHUNK_ELEMENTS)]
