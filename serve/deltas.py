"""Generations of a model that is still trained: each is one cut of the job, and never changes.

The first is read from a base, the next by applying a delta to the one before it, which is possible
only where the delta begins at that very cut. Dense values and rows of a generation are of one cut
therefore, and whoever answers with one generation mixes nothing.

A generation shares with the one before what has not changed: dense tensors, and layers of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import deltas, pieces, storage
from ..common.deltas import About
from ..common.errors import CheckpointError
from ..common.places import Place
from ..common.storage import Manifest
from ..nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from .checkpoint import Checkpoint, Values
from .layers import Layer, Layers


class Gap(CheckpointError):
    """A delta does not begin where one is."""


@dataclass(frozen=True, eq=False)
class Generation:
    """A model at one cut of a job that runs."""

    about: About
    manifest: Manifest  # of what was read last
    spec: ModelSpec
    settings: Mapping[str, Any]  # of the job
    dense: Mapping[str, Values]  # in the model's shapes; nobody writes to them
    tables: Mapping[str, Layers]

    @property
    def where(self) -> str:
        """The path or URL of what was read last."""
        return str(self.manifest.place)

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def is_heavy(self) -> bool:
        """Tell whether so much lies above the base that a newer base is the lighter one to hold."""
        tables = self.tables.values()
        return 2 * sum(t.above for t in tables) > sum(len(t.layers[-1]) for t in tables)


def opened(manifest: Manifest) -> Generation:
    """Return the generation of a base, whose files are mapped.

    Raises CheckpointError where it is none, or damaged.
    """
    about, spec = deltas.about(manifest), ModelSpec.of_checkpoint(manifest.model, manifest.place)
    if about.since:
        raise Gap(f"{manifest.place} is a delta, and begins at a cut that is not here")
    files = _files(manifest)
    dense = Checkpoint(manifest, spec, files).dense()
    for values in dense.values():
        values.flags.writeable = False
    tables = {
        table.name: Layers.of(table, spec.seed, layer)
        for table, layer in zip(spec.tables, _layers(spec, files, {}), strict=True)
    }
    settings = manifest.books.get("settings")
    return Generation(
        about, manifest, spec, settings if isinstance(settings, dict) else {}, dense, tables
    )


@dataclass(frozen=True, eq=False)
class Parts:
    """The content of a base or a delta: rows by table, and runs of dense values."""

    about: About
    spec: ModelSpec
    layers: Mapping[str, Layer]
    chunks: tuple[tuple[str, slice, NDArray[np.float32]], ...]  # tensor, place in it, values


def parts(manifest: Manifest) -> Parts:
    """Return what lies in a base or a delta, mapped.

    Raises CheckpointError where it is neither, or its files are not of its model.
    """
    about, files = deltas.about(manifest), _files(manifest)
    spec = ModelSpec.of_checkpoint(manifest.model, manifest.place)
    layers = _layers(spec, files, about.deletions)
    names = [table.name for table in spec.tables]
    return Parts(about, spec, dict(zip(names, layers, strict=True)), tuple(_chunks(spec, files)))


def applied(generation: Generation, manifest: Manifest) -> Generation:
    """Return the generation that a delta leads to; the one before stays as it is.

    Raises Gap where the delta begins elsewhere, CheckpointError where it is damaged.
    """
    must_follow(deltas.about(manifest), generation.about)
    found = parts(manifest)
    if found.spec != generation.spec:
        raise CheckpointError(f"{manifest.place} is of another model than {generation.about.cut}")
    tables = {name: table.under(found.layers[name]) for name, table in generation.tables.items()}
    dense = dict(generation.dense)
    for tensor, place, values in found.chunks:
        if dense[tensor] is generation.dense[tensor]:
            dense[tensor] = dense[tensor].copy()
        dense[tensor].reshape(-1)[place] = values
    for mine in dense.values():
        mine.flags.writeable = False
    return Generation(found.about, manifest, found.spec, generation.settings, dense, tables)


def must_follow(about: About, here: About) -> None:
    """Raise Gap unless what is said to be a delta begins at the cut where one is."""
    if (about.job, about.since) != (here.job, here.cut):
        raise Gap(
            f"the delta to cut {about.number} of {about.job} begins at {about.since or 'nothing'}, "
            f"and what is here is {here.cut} of {here.job}"
        )


def _files(manifest: Manifest) -> tuple[pieces.Mapped, ...]:
    names = [record.name for record in manifest.files if record.name.endswith(".safetensors")]
    return tuple(map(pieces.mapped, manifest.fetch(names)))


def _layers(
    spec: ModelSpec, files: tuple[pieces.Mapped, ...], deletions: Mapping[str, list[int]]
) -> list[Layer]:
    found: dict[str, list[pieces.Rows]] = {table.name: [] for table in spec.tables}
    for file in files:
        if (rows := file.rows()) is not None:
            if rows.table not in found:
                raise CheckpointError(f"{file.path} has rows of {rows.table!r}, which is no table")
            found[rows.table].append(rows)
    return [Layer.of(t, found[t.name], deletions.get(t.name, ())) for t in spec.tables]


def _chunks(
    spec: ModelSpec, files: tuple[pieces.Mapped, ...]
) -> Iterator[tuple[str, slice, NDArray[np.float32]]]:
    tensors = {tensor.name: tensor for tensor in spec.dense}
    for file in files:
        for chunk in file.chunks():
            tensor = tensors.get(chunk.tensor)
            start = chunk.number * CHUNK_ELEMENTS
            if tensor is None or not 0 <= start < max(1, tensor.elements):
                raise CheckpointError(
                    f"{file.path} has the chunk {chunk.number} of {chunk.tensor!r}, which is none "
                    "of the model's"
                )
            stop = min(start + CHUNK_ELEMENTS, tensor.elements)
            if len(chunk.value) != stop - start:
                raise CheckpointError(
                    f"{file.path} has {len(chunk.value)} values of a chunk of {stop - start}"
                )
            yield chunk.tensor, slice(start, stop), chunk.value


def read(place: Place) -> Manifest:
    """Return the manifest of a base or a delta, all of whose files are as they were written.

    Raises CheckpointError.
    """
    # what lies at a store is compared as it is fetched
    return storage.read_manifest(place, checksums=place.is_local)
