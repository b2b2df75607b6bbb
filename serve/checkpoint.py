"""A checkpoint opened for reading, of any strategy and any number of shards.

Its files are mapped, not read: a shard's rows lie in them one after the other (common/pieces.py),
so opening costs their headers and the order of the ids, and a row is read when it is asked for. It
is looked at as a stranger's: each array has the type and the shape that the model says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import paths, pieces
from ..common.errors import CheckpointError
from ..common.resolve import newest_checkpoint
from ..common.storage import Manifest
from ..nn.by_name import to_dict
from ..nn.model_spec import CHUNK_ELEMENTS, DenseSpec, ModelSpec, TableSpec

Ids = NDArray[np.int64]
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: what it says of itself, and its files, mapped."""

    manifest: Manifest
    spec: ModelSpec
    files: tuple[pieces.Mapped, ...] = field(repr=False)

    @property
    def directory(self) -> Path:
        return self.manifest.directory

    @property
    def where(self) -> str:
        """The path or URL that it was opened by."""
        return str(self.manifest.place)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of the job that wrote it; {} where it does not say."""
        found = self.manifest.books.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def about(self) -> dict[str, Any]:
        """Return what it says of itself, as JSON can hold it."""
        settings, manifest = self.settings, self.manifest
        return {
            "checkpoint": self.where,
            "version": manifest.version,
            "created": manifest.created,
            "job": settings.get("job_name", ""),
            "strategy": settings.get("strategy", ""),
            "definition": settings.get("model_def", ""),
            "model_params": settings.get("model_params") or {},
            "shards": manifest.num_shards,
            "files": len(manifest.files),
            "nbytes": sum(record.nbytes for record in manifest.files),
            "optimizer": to_dict(self.spec.optimizer),
            "seed": self.spec.seed,
            "dense": [
                {"name": d.name, "shape": list(d.shape), "kind": d.kind} for d in self.spec.dense
            ],
            "tables": [self._about(table) for table in self.spec.tables],
        }

    def _about(self, table: TableSpec) -> dict[str, Any]:
        found = self._rows[table.name]
        values = [(rows.weight, *rows.state.values()) for rows in found]
        return {
            "name": table.name,
            "dim": table.dim,
            "dtype": table.dtype,
            "initializer": table.initializer,
            "rows": sum(len(rows.ids) for rows in found),
            "nbytes": sum(rows.weight.nbytes for rows in found),
            "nbytes_with_state": sum(array.nbytes for arrays in values for array in arrays),
            "state": list(found[0].state) if found else [],
        }

    def table(self, name: str) -> TableSpec:
        """Return a table's specification. Raises CheckpointError where there is none."""
        for spec in self.spec.tables:
            if spec.name == name:
                return spec
        there = ", ".join(repr(spec.name) for spec in self.spec.tables) or "none"
        raise CheckpointError(f"{self.where} has no table {name!r}: its tables are {there}")

    def rows(self, table: str) -> list[pieces.Rows]:
        """Return the rows of a table as they lie in the files, in no order.

        Raises CheckpointError.
        """
        self.table(table)
        return self._rows[table]

    @cached_property
    def _rows(self) -> dict[str, list[pieces.Rows]]:
        specs = {spec.name: spec for spec in self.spec.tables}
        found: dict[str, list[pieces.Rows]] = {name: [] for name in specs}
        for file in self.files:
            if (rows := file.rows()) is None:
                continue
            if (spec := specs.get(rows.table)) is None:
                raise CheckpointError(f"{file.path} has rows of {rows.table!r}, which is no table")
            wanted = np.float32 if spec.dtype == "float32" else np.uint16
            if rows.weight.dtype != wanted or rows.weight.shape[1] != spec.dim:
                raise CheckpointError(
                    f"{file.path} has rows of {rows.weight.shape[1]} {rows.weight.dtype}, and the "
                    f"table {spec.name!r} has rows of {spec.dim} {spec.dtype}"
                )
            found[rows.table].append(rows)
        return found

    def dense(self) -> dict[str, Values]:
        """Return copies of the dense values by name, in the model's shapes.

        Raises CheckpointError where one is not whole.
        """
        found = {spec.name: np.empty(spec.elements, np.float32) for spec in self.spec.dense}
        for place, chunk in self._chunks():
            found[chunk.tensor][place] = chunk.value
        return {spec.name: found[spec.name].reshape(spec.shape) for spec in self.spec.dense}

    def dense_state(self) -> dict[tuple[str, str], Values]:
        """Return copies of the optimizer's state by dense tensor and name, as `dense`."""
        specs = {spec.name: spec for spec in self.spec.dense}
        found: dict[tuple[str, str], Values] = {}
        for place, chunk in self._chunks():
            spec = specs[chunk.tensor]
            for name, values in chunk.state.items():
                key = chunk.tensor, name
                found.setdefault(key, np.zeros(spec.elements, np.float32))[place] = values
        return {(t, n): values.reshape(specs[t].shape) for (t, n), values in found.items()}

    def _chunks(self) -> Iterator[tuple[slice, pieces.Chunk]]:
        """Yield each chunk and its place. Raises CheckpointError unless each is there once."""
        specs = {spec.name: spec for spec in self.spec.dense}
        lacking = {(spec.name, n) for spec in self.spec.dense for n in range(spec.num_chunks)}
        for file in self.files:
            for chunk in file.chunks():
                key = chunk.tensor, chunk.number
                if key not in lacking:
                    raise CheckpointError(
                        f"{file.path} has the chunk {chunk.number} of {chunk.tensor!r}, which is "
                        "there already or is none of the model's"
                    )
                lacking.remove(key)
                place = _place(specs[chunk.tensor], chunk.number)
                if len(chunk.value) != place.stop - place.start:
                    raise CheckpointError(
                        f"{file.path} has {len(chunk.value)} values of the chunk {chunk.number} of "
                        f"{chunk.tensor!r} instead of {place.stop - place.start}"
                    )
                yield place, chunk
        if lacking:
            tensor, number = min(lacking)
            raise CheckpointError(f"{self.where} lacks the chunk {number} of {tensor!r}")


def _place(spec: DenseSpec, number: int) -> slice:
    start = number * CHUNK_ELEMENTS
    return slice(start, min(start + CHUNK_ELEMENTS, spec.elements))


def open_checkpoint(where: str | Path, *, checksums: bool = True) -> Checkpoint:
    """Open a checkpoint, the newest whole one of a folder of them, or that of a job.

    `where` is a path, a URL (its files are copied here first, common/copies.py), or a job's name
    (which goes before a path, as for --resume). `checksums`: each file is compared with its sha256
    first, which reads all of it once; without, their sizes.

    Raises UsageError where there is none that is whole, CheckpointError where it is none of `edl
    train`.
    """
    said = str(where)
    path = str(paths.named_job(said) or said) if isinstance(where, str) else said
    manifest = newest_checkpoint(path, said, checksums=checksums)
    spec = ModelSpec.of_checkpoint(manifest.model, manifest.place)
    names = [record.name for record in manifest.files if record.name.endswith(".safetensors")]
    files = tuple(map(pieces.mapped, manifest.fetch(names)))
    return Checkpoint(manifest, spec, files)
