"""Tensors that are sharded over the ranks, as files of safetensors: each rank writes its parts.

torch.distributed.checkpoint does it, in Hugging Face's format, through files of ours (parts.py): a
part knows its place in the whole, so that any number of ranks, in any arrangement, reads what it is
to hold. Nothing is pickled.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ..common.errors import CheckpointError, UsageError
from ..common.files import FileRecord
from ..common.places import Place
from ..common.storage import Manifest
from .values import Like, Sharded

if TYPE_CHECKING:
    from .parts import Parts

# Of a file: a store is asked 30 s for one, and a rank has one in memory at a time. A tensor's part
# that is larger is a file of its own.
_FILE_NBYTES = 64 << 20


def write(
    place: Place, tensors: Mapping[str, Sharded], group: distributed.ProcessGroup | None
) -> tuple[list[FileRecord], Parts]:
    """Write this rank's parts of tensors; return its files, and which parts each has.

    All ranks call it together. Raises CheckpointError on all of them where one could not,
    UsageError where torch is too old.
    """
    checkpoint = _torchs()
    from .parts import Writer

    ranks = distributed.get_world_size() if distributed.is_initialized() else 1
    writer = Writer(place, _numbers(tensors, ranks))
    _try(
        f"the ranks cannot save their parts in {place}",
        checkpoint,
        lambda: checkpoint.save(dict(tensors), storage_writer=writer, process_group=group),
    )
    return writer.records, writer.parts


def read(
    manifest: Manifest,
    parts: Parts,
    wanted: Mapping[str, tuple[torch.Size, torch.dtype]],
    like: Like,
) -> dict[str, torch.Tensor]:
    """Return tensors of these shapes and dtypes as this rank is to hold them, else as a whole.

    `parts`: which parts each file of the checkpoint has. Raises CheckpointError where the files do
    not have them, UsageError where torch is too old.
    """
    if not wanted:
        return {}
    checkpoint = _torchs()
    from .parts import Reader

    parts = {file: [part for part in own if part[0] in wanted] for file, own in parts.items()}
    _check_whole(manifest.place, parts, wanted)
    found: dict[str, Any] = {}
    for where, (shape, dtype) in wanted.items():
        part = like(where, shape)
        found[where] = (
            torch.empty(shape, dtype=dtype)
            if part is None
            else torch.empty_like(part.detach(), dtype=dtype)
        )
    reader = Reader(manifest, parts, wanted)
    with warnings.catch_warnings():  # that each rank reads for itself, as it is meant to
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        _try(
            f"cannot load the parts in {manifest.place}",
            checkpoint,
            lambda: checkpoint.load(found, storage_reader=reader, no_dist=True),
        )
    return found


def _numbers(tensors: Mapping[str, Sharded], ranks: int) -> dict[str, int]:
    """Return into which file of its rank a part of each tensor goes, from 1, alike on all ranks."""
    numbers: dict[str, int] = {}
    number, filled = 1, 0
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.element_size() // ranks
        if filled and filled + nbytes > _FILE_NBYTES:
            number, filled = number + 1, 0
        numbers[name] = number
        filled += nbytes
    return numbers


def _check_whole(
    place: Place, parts: Parts, wanted: Mapping[str, tuple[torch.Size, torch.dtype]]
) -> None:
    """Check that the parts of each tensor make it up: what is missing would be read as anything."""
    there = dict.fromkeys(wanted, 0)
    for name, _, sizes in (part for of_file in parts.values() for part in of_file):
        there[name] += math.prod(sizes)
    for name, (shape, _) in wanted.items():
        if there[name] != shape.numel():
            raise CheckpointError(
                f"{place} has {there[name]} of the {shape.numel()} values of {name}: not all ranks "
                "have saved their parts. Load an earlier version."
            )


def _try(what: str, checkpoint: Any, do: Callable[[], object]) -> None:
    try:
        do()
    except checkpoint.CheckpointException as error:
        rank, (why, _) = next(iter(error.failures.items()))
        raise CheckpointError(f"{what}: rank {rank}: {type(why).__name__}: {why}") from error


def _torchs() -> Any:
    """Return torch.distributed.checkpoint. Raises UsageError where it has no such format."""
    from torch.distributed import checkpoint

    if not hasattr(checkpoint, "HuggingFaceStorageWriter"):
        raise UsageError(
            f"torch {torch.__version__} does not save the parts of each rank as safetensors: use "
            "2.9 or newer, or save what get_state_dict(..., options=StateDictOptions("
            "full_state_dict=True, cpu_offload=True)) of torch.distributed.checkpoint.state_dict "
            "gives."
        )
    return checkpoint
