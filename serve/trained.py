"""`edl.load`: a trained model in plain torch, with its tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import CheckpointError, DefinitionError, UsageError
from ..data.schema import NO_SCHEMA, Schema
from ..model_zoo.spec import load_definition
from ..nn.dense import dense_tensors, model_spec
from ..nn.device import seed_step
from ..nn.embedding import Embedding, RowSource, attach
from ..nn.model_spec import ModelSpec, another_model
from ..nn.moved import take_first_rows
from ..nn.replace import prepare
from .checkpoint import Checkpoint, Values, open_checkpoint
from .rows import Lookup

Made = nn.Module | Callable[[], nn.Module]


class Opened(Protocol):
    """A trained model whose values are there: a checkpoint, or a generation (deltas.py)."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the job that wrote it; {} where it does not say."""
        ...

    @property
    def where(self) -> str:
        """The path or URL, for messages."""
        ...


class StoredRows:
    """A RowSource of a checkpoint's tables: what was trained, and first values of other ids.

    Copies of a model share it. Pickled, it is the place of the checkpoint, which is opened again.
    """

    lasting = True  # for Embedding.__getstate__

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Sort the ids of all tables. Raises CheckpointError where a file is not as it must be."""
        place = checkpoint.manifest.place
        self._where = str(place.path.resolve()) if place.is_local else str(place)
        self.tables = {
            spec.name: Lookup(spec, checkpoint.spec.seed, checkpoint.rows(spec.name))
            for spec in checkpoint.spec.tables
        }

    def __deepcopy__(self, _memo: object) -> StoredRows:
        return self

    def __reduce__(self) -> tuple[Callable[[str], StoredRows], tuple[str]]:
        return _reopened, (self._where,)

    def rows(self, table: Embedding, ids: Tensor) -> Tensor:
        unique, inverse = np.unique(ids.detach().cpu().numpy().reshape(-1), return_inverse=True)
        found = torch.from_numpy(self.tables[table.name].rows(unique)).to(ids.device)
        places = torch.from_numpy(inverse.reshape(-1)).to(ids.device)
        return functional.embedding(places, found).reshape(*ids.shape, table.dim)


def _reopened(where: str) -> StoredRows:
    return StoredRows(open_checkpoint(where, checksums=False))


def load(
    checkpoint: str | Path,
    definition: str | Path | Made | None = None,
    *,
    model_params: Mapping[str, Any] | None = None,
    model_zoo: str = "",
    device: str | torch.device = "cpu",
    checksums: bool = True,
) -> nn.Module:
    """Return the trained model in plain torch, in evaluation mode, with its tables.

    `checkpoint`: a checkpoint of any strategy and any number of shards, a folder of them, or a
    job's name or folder (the newest that is whole is taken). `definition`: as --model_def, or a
    model, or a function that makes one; None: the one that it was trained with, with its
    `model_params`.

    Rows are mapped, not read: they come into memory when they are asked for. An id that was never
    trained has the row that the job would answer.
    `checksums`: see open_checkpoint.

    Raises EdlError: no checkpoint that is whole, another model's, a definition that is not there.
    """
    found = open_checkpoint(checkpoint, checksums=checksums)
    model = unfilled(found, definition, model_params, model_zoo)
    return filled(model, found.dense(), StoredRows(found), device)


def schema(checkpoint: str | Path, *, checksums: bool = True) -> Schema:
    """Return the types of the columns that a model was trained on, for `open_reader(schema=...)`.

    `checkpoint`: as of `load`. A model that was trained before there were schemas has none: no
    columns. Raises EdlError.
    """
    found = open_checkpoint(checkpoint, checksums=checksums)
    return schema_in(found.settings, found.where)


def schema_in(settings: Mapping[str, Any], where: str) -> Schema:
    """Return the schema that a job's settings have; NO_SCHEMA where they have none.

    Raises UsageError where it cannot be read.
    """
    told = settings.get("schema")
    return Schema.from_json(told, f"the schema of {where}") if told else NO_SCHEMA


def unfilled(
    found: Opened,
    definition: str | Path | Made | None = None,
    model_params: Mapping[str, Any] | None = None,
    model_zoo: str = "",
) -> nn.Module:
    """Return the model of what was opened, with values of no meaning.

    Raises EdlError: it is another model's, or its definition is not there.
    """
    with torch.random.fork_rng(devices=[]):
        # What is in no checkpoint is as a worker has it.
        seed_step(found.spec.seed, torch.device("cpu"))
        model = _made(found, definition, model_params, model_zoo)
        # What has trained as a dense tensor is no table, however big; all else is one.
        prepare(model, 1, {tensor.name for tensor in found.spec.dense})
        take_first_rows(model)  # the checkpoint has them
    mine = model_spec(model, found.spec.optimizer, found.spec.seed)
    if (mine.dense, mine.tables) != (found.spec.dense, found.spec.tables):
        raise CheckpointError(another_model(found.where, mine, found.spec))
    return model


def filled(
    model: nn.Module,
    values: Mapping[str, Values],
    rows: RowSource,
    device: str | torch.device = "cpu",
) -> nn.Module:
    """Give a model these dense values, and its tables these rows; return it, to evaluate."""
    with torch.no_grad():
        for name, (tensor, _) in dense_tensors(model).items():
            tensor.copy_(torch.tensor(values[name]))
    model.to(_device(device))
    attach(model, rows)
    return model.eval()


def _device(wanted: str | torch.device) -> torch.device:
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UsageError(f"device={wanted!r} is none that torch knows: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={wanted!r}, but torch sees no CUDA device here: use 'cpu'")
    return device


def _made(
    checkpoint: Opened,
    definition: str | Path | Made | None,
    params: Mapping[str, Any] | None,
    model_zoo: str,
) -> nn.Module:
    """Make the model, with values of no meaning. Raises DefinitionError, UsageError."""
    if isinstance(definition, nn.Module) or callable(definition):
        if params is not None or model_zoo:
            raise UsageError("model_params and model_zoo are of a definition that is named")
        model = definition if isinstance(definition, nn.Module) else definition()
        if not isinstance(model, nn.Module):
            raise DefinitionError(f"the definition made a {type(model).__name__}, no nn.Module")
        return model
    settings = checkpoint.settings
    name = str(definition or settings.get("model_def") or "")
    if not name:
        raise UsageError(
            f"{checkpoint.where} does not say by which definition it was trained: give "
            "definition=, as --model_def was"
        )
    if params is None:  # those that the tensors have their shapes from
        params = settings.get("model_params") or {}
    zoo = model_zoo or str(settings.get("model_zoo") or "")
    try:
        return load_definition(name, zoo, params, training=False).model()
    except DefinitionError as error:
        if definition is not None:
            raise
        raise DefinitionError(
            f"{checkpoint.where} was trained by the definition {json.dumps(name)}: {error} "
            "(or name another by definition=)"
        ) from error
