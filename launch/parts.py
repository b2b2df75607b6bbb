"""The parts of sharded tensors as torch.distributed.checkpoint has them, at any place.

Each rank writes files of safetensors, whole or not at all, here or at a store (common/places.py),
and notes which parts each has: that goes into the state's JSON, so that no file is opened to find
out. A rank reads those files only that have something of what it is to hold, one at a time, and
compares each with what the manifest says of it.

Imported where torch has the format: shards.py.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ..common import storage
from ..common.errors import CheckpointError
from ..common.files import FileRecord
from ..common.places import Place

Parts = dict[str, list[tuple[str, list[int], list[int]]]]  # by file: tensor, offsets, sizes
Wanted = Mapping[str, tuple[torch.Size, torch.dtype]]


class Writer(HuggingFaceStorageWriter):
    """Writes this rank's parts of tensors, each into its rank's file of that tensor's number."""

    def __init__(self, place: Place, numbers: Mapping[str, int]) -> None:
        super().__init__(place.url, dict(numbers), save_distributed=True)
        files = _Files(place)
        self.fs = files  # type: ignore[assignment]
        self.sync_files = False  # a place does
        self.records = files.records
        self.parts: Parts = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = super().write_data(plan, planner)
        chunks = {item.index: item.tensor_data.chunk for item in plan.items if item.tensor_data}
        for each in written.value():
            chunk = chunks[each.index]
            part = each.index.fqn, list(chunk.offsets), list(chunk.sizes)
            self.parts.setdefault(each.storage_data.relative_path, []).append(part)
        return written


class Reader(FileSystemReader):
    """Reads what this rank is to hold of tensors of a checkpoint, whose parts these are."""

    def __init__(self, manifest: storage.Manifest, parts: Parts, wanted: Wanted) -> None:
        super().__init__(str(manifest.place))
        self._manifest = manifest
        self._parts = parts
        self._wanted = wanted

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        files: dict[MetadataIndex, str] = {}
        chunks: dict[str, list[ChunkStorageMetadata]] = {name: [] for name in self._wanted}
        for file, parts in self._parts.items():
            for name, offsets, sizes in parts:
                files[MetadataIndex(name, offsets)] = file
                chunks[name].append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
        tensors = {
            name: TensorStorageMetadata(TensorProperties(dtype=dtype), shape, chunks[name])
            for name, (shape, dtype) in self._wanted.items()
        }
        return Metadata({**tensors}, storage_data=files)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index], []).append(item)
        records = [record for record in self._manifest.files if record.name in by_file]
        for record, data in storage.read_all(self._manifest, records):
            tensors = from_bytes(data)
            for item in by_file[record.name]:
                bounds = zip(item.storage_offsets, item.lengths, strict=True)
                part = tensors[item.storage_index.fqn][tuple(slice(a, a + n) for a, n in bounds)]
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class _Files(FileSystemBase):
    """A place as torch.distributed.checkpoint writes to one: files by their names in it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.records: list[FileRecord] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", mode
        stream = _Whole()
        yield stream
        try:
            self.records.append(self._place.write(str(path), stream.getbuffer()))
        except OSError as error:  # which travels to the other ranks, as not all of these can
            raise CheckpointError(str(error)) from error

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        del path  # that of the place
        return suffix

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        return path

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        del path
        self._place.make()

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._place.has(str(path))

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        raise NotImplementedError  # nothing is written under another name first

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._place.remove([str(path)])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        del checkpoint_id
        return True


class _Whole(io.BytesIO):
    """The bytes of a file, which are there after it was closed, too."""

    def close(self) -> None:
        """Do nothing: they are written by whoever made it."""
