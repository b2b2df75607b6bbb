"""Tensors that are sharded over the ranks, as files of safetensors: each rank writes its parts.

torch.distributed.checkpoint does it, in Hugging Face's format: a part knows its place in the whole,
so that any number of ranks, in any arrangement, reads what it is to hold. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ..common.errors import CheckpointError, UsageError
from ..common.files import FileRecord, sync_directory
from .values import Like, Sharded

_FILES = "shard-{:05d}-*.safetensors"  # of a rank, counted from 1


def write(
    directory: Path, tensors: Mapping[str, Sharded], group: distributed.ProcessGroup | None
) -> list[FileRecord]:
    """Write this rank's parts of tensors; return its files. All ranks call it together.

    Raises CheckpointError on all of them where one could not, UsageError where torch is too old.
    """
    checkpoint = _torchs()
    writer = checkpoint.HuggingFaceStorageWriter(str(directory), save_distributed=True)
    _try(
        f"the ranks cannot save their parts in {directory}",
        checkpoint,
        lambda: checkpoint.save(dict(tensors), storage_writer=writer, process_group=group),
    )
    sync_directory(directory)
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    return [_record(path) for path in sorted(directory.glob(_FILES.format(rank + 1)))]


def read(
    directory: Path,
    wanted: Mapping[str, tuple[torch.Size, torch.dtype]],
    like: Like,
) -> dict[str, torch.Tensor]:
    """Return tensors of these shapes and dtypes as this rank is to hold them, else as a whole.

    Raises CheckpointError where the files do not have them, UsageError where torch is too old.
    """
    if not wanted:
        return {}
    checkpoint = _torchs()
    found: dict[str, Any] = {}
    for where, (shape, dtype) in wanted.items():
        part = like(where, shape)
        found[where] = (
            torch.empty(shape, dtype=dtype)
            if part is None
            else torch.empty_like(part.detach(), dtype=dtype)
        )
    reader = checkpoint.HuggingFaceStorageReader(str(directory))
    with warnings.catch_warnings():  # that each rank reads for itself, as it is meant to
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        _try(
            f"cannot load the parts in {directory}",
            checkpoint,
            lambda: checkpoint.load(found, storage_reader=reader, no_dist=True),
        )
    return found


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


def _record(path: Path) -> FileRecord:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(path.name, file.tell(), digest.hexdigest())
