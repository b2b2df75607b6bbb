"""Models that are served straight from a checkpoint: the definition's own feed and model.

A request brings the columns of records that feed reads (columns.py), so that what prepares records
in training does so here: it is the same object. Outputs are those that `edl predict` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..common import iso
from ..common.errors import EdlError, UsageError
from ..common.ragged import Ragged
from ..data.exact import TIMES, Values
from ..data.reader import Records
from ..data.schema import Schema
from ..model_zoo.reading import open_data
from ..model_zoo.spec import Definition, load_definition
from ..nn.device import choose_device, to_device
from ..nn.outputs import arrays_of
from .checkpoint import open_checkpoint
from .columns import Asked, asked, brought_to, sample, told_of
from .kserve.taken import Inputs
from .kserve.tensors import Arrays, datatype_of
from .servable import Column, Typed
from .trained import Opened, load, schema_in


@dataclass(frozen=True)
class Options:
    """The options by which checkpoints are opened.

    `definition`, `model_zoo`: in place of those that they were trained with. `data`: a few records,
    where the job's own are not there any more. `checksums`: compare each file with its sha256.
    `sampled`: records that are read at most.
    """

    definition: str = ""
    model_zoo: str = ""
    data: str = ""
    device: str = "cpu"
    checksums: bool = True
    sampled: int = 32


class Sampled(NamedTuple):
    """A definition, and a few records of what it was trained on, as the schema has them.

    `schema`: of the job; NO_SCHEMA: it was trained before there were any.
    """

    definition: Definition
    records: Records
    schema: Schema


class DefinedServable:
    """A model behind its definition's feed."""

    def __init__(
        self,
        name: str,
        version: str,
        model: torch.nn.Module,
        sampled: Sampled,
        about: dict[str, Any],
    ) -> None:
        """Find the columns and outputs on the records. Raises EdlError.

        `model`: in evaluation mode, and nobody else's.
        """
        self.name, self.version, self.about = name, version, about
        self._model, self._definition = model, sampled.definition
        self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        self._asked = asked_by(sampled)
        self.inputs: tuple[Column, ...] = self._asked.columns
        self.example = example_of(self._asked, sampled.records)
        outputs = self.infer(self.example)
        self.outputs = tuple(
            Column(name, _datatype(name, array), array.shape[1:]) for name, array in outputs.items()
        )

    def infer(self, inputs: Mapping[str, Values]) -> Arrays:
        """Return the outputs of these columns. Raises UsageError where feed refuses them."""
        rows = len(next(iter(inputs.values())))
        # What feed raises is of these values: it takes those of the training data.
        with told_of(f"feed of {self._definition.name} does not take these records"):
            records = self._asked.records(inputs)
            features, _ = self._definition.feed(records, "predict")
        if self._device.type != "cpu":
            features = to_device(features, self._device)
        with torch.inference_mode():
            return arrays_of(self._model(features), rows)

    def close(self) -> None:
        """Let go of the model; its files are unmapped with its last array."""
        self._model = torch.nn.Identity()


def about_of(opened: Opened, version: int, created: str) -> dict[str, Any]:
    """Return what a model says of itself."""
    settings = opened.settings
    return {
        "job": settings.get("job_name", ""),
        "checkpoint": opened.where,
        "created": created,
        "strategy": settings.get("strategy", ""),
        "definition": settings.get("model_def", ""),
        "model_params": settings.get("model_params") or {},
        "cut": version,
    }


def version_of(directory: Path) -> str:
    """Return the version of a checkpoint's folder, as it is asked for: 1234, or 1234.1."""
    number, dot, later = directory.name.removeprefix("version-").partition(".")
    return f"{int(number)}{dot}{later}" if number.isdecimal() else directory.name


def _datatype(name: str, array: NDArray[Any]) -> str:
    if not (found := datatype_of(array)):
        raise UsageError(
            f"the output {name!r} is {array.dtype}, which the protocol has no word for"
        )
    return found


def asked_by(sampled: Sampled) -> Asked:
    """Return what a definition's feed asks for. Raises EdlError."""
    definition, records, schema = sampled
    with told_of(f"feed of {definition.name} fails on the records that its columns are found on"):
        return asked(definition.feed, records, schema)


def example_of(asked: Asked, records: Records) -> Inputs:
    """Return a request of these records, as it comes over the wire: texts as bytes."""
    found: Inputs = {}
    for column in asked.columns:
        if isinstance(records, Mapping):
            values: Any = records[column.name]
        elif asked.form == "values":
            values = records
        else:
            values = [record[column.name] for record in records]
        found[column.name] = _as_sent(column, values)
    return found


def _as_sent(column: Typed, values: Any) -> Values:
    """Return the values of a column as a request has them."""
    if column.is_lists:
        ragged = values if isinstance(values, Ragged) else Ragged.rows_of(map(_row, values))
        return ragged.replace(_single_as_sent(column, ragged.values))
    if isinstance(values, np.ndarray):
        return _single_as_sent(column, values)
    if column.shape:
        return _single_as_sent(column, np.stack([np.asarray(each) for each in values]))
    return _single_as_sent(column, _row(values))


def _row(values: Any) -> NDArray[Any]:
    """Return an array of values, of texts and bytes one of objects."""
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if not {str, bytes} & set(map(type, values)):
        return np.asarray(values)
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _single_as_sent(column: Typed, values: NDArray[Any]) -> NDArray[Any]:
    if column.datatype != "BYTES":
        return values
    type_ = column.field.type
    texts = np.empty(values.size, object)
    if type_.kind in TIMES:
        texts[:] = [iso.text_of(each, type_.zone).encode() for each in values.ravel()]
    else:
        listed = values.ravel().tolist()
        texts[:] = [each if isinstance(each, bytes) else str(each).encode() for each in listed]
    return texts.reshape(values.shape)


@dataclass
class CheckpointOpener:
    """Opens checkpoints of one model, one after the other.

    The definition and the records are read once, and again where the settings are others.
    """

    options: Options
    _read: dict[str, Sampled] = field(default_factory=dict)

    def open(self, name: str, where: str) -> DefinedServable:
        """Open a checkpoint, the newest of a folder, or that of a job. Raises EdlError."""
        found = open_checkpoint(where, checksums=self.options.checksums)
        sampled = self.read(found)
        # The definition's own, which makes the model: it is imported once for all versions.
        device = choose_device(self.options.device, 0)
        model = load(found.where, sampled.definition.model, device=device, checksums=False)
        about = about_of(found, found.manifest.version, found.manifest.created)
        version = version_of(Path(found.where))
        return DefinedServable(name, version, model, sampled, about)

    def read(self, found: Opened) -> Sampled:
        """Return the definition of a trained model, and a few records. Raises EdlError."""
        settings, options = found.settings, self.options
        named = options.definition or str(settings.get("model_def") or "")
        if not named:
            raise UsageError(
                f"{found.where} does not say by which definition it was trained: name it "
                "(--model_def)."
            )
        zoo = options.model_zoo or str(settings.get("model_zoo") or "")
        data = options.data or str(settings.get("training_data") or "")
        params = settings.get("model_params") or {}
        reader = settings.get("data_reader_params") or {}
        schema = schema_in(settings, found.where)
        key = json.dumps(
            [named, zoo, data, params, reader, schema.to_json()], sort_keys=True, default=str
        )
        if key not in self._read:
            definition = load_definition(named, zoo, params, training=False)
            records = _sample(found, definition, data, reader, schema, options.sampled)
            self._read = {key: Sampled(definition, records, schema)}
        return self._read[key]


def _sample(
    found: Opened,
    definition: Definition,
    data: str,
    params: Mapping[str, Any],
    schema: Schema,
    most: int,
) -> Records:
    why = "it does not say by which data it was trained"
    if data:
        try:
            reader = open_data(definition, data, params, schema)
            return brought_to(schema, sample(reader, most))
        except EdlError as error:
            why = str(error)
    raise UsageError(
        f"{found.where}: which columns a request must bring is found on a few records, and "
        f"there are none ({why}): name a file with some (--data)."
    )
