"""An exported model that answers requests: its definition's feed, its tables, its program.

A request brings what the manifest says: the columns that feed reads, or, of an export without a
definition, the features. Rows are looked up in the table files as they lie, of ids that were never
trained as the job would answer them, and given to the program.

The definition's file in the folder is run, as --model_def is: serve no stranger's.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..common.errors import CheckpointError, UsageError
from ..common.extras import install
from ..data.exact import Values
from ..data.schema import NO_SCHEMA, Field, Schema, Type
from ..distill.tree import parts_of
from ..model_zoo.spec import Definition, load_definition
from .brought import brought
from .columns import DTYPES, Asked, told_of
from .export_format import Exported, Input, Use, read_exported, rows_for
from .others import quiet, told_as
from .servable import Column
from .table_file import TableFile

Arrays = dict[str, NDArray[Any]]
FORMS = ("onnx", "torch", "embedding")  # that can answer, the quickest first
_NO_ONNX = f"ONNX needs onnxruntime: {install('export')}"


class Program(Protocol):
    """A program out of a file. Threads may share it."""

    def __call__(self, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return its outputs, in order, of inputs by name."""
        ...


class TorchProgram:
    """A program that torch.export has saved."""

    def __init__(self, path: Path, inputs: tuple[str, ...]) -> None:
        """Load it. Raises CheckpointError where it is none."""
        self._inputs = inputs
        said = f"{path} is no program of torch.export that torch {torch.__version__} can load"
        with told_as(CheckpointError, said), quiet():
            self._run: Callable[..., tuple[Tensor, ...]] = torch.export.load(path).module()

    def __call__(self, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        tensors = [torch.from_numpy(_writable(given[name])) for name in self._inputs]
        with torch.inference_mode():
            found = self._run(*tensors)
        return [tensor.numpy() for tensor in found]


def import_onnxruntime() -> Any:
    """Return the module onnxruntime. Raises UsageError where it is not installed.

    Its wheels tell their maker of each session, and keep a file for that, unless this variable is
    set when they are imported.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(_NO_ONNX) from error
    return onnxruntime


class OnnxProgram:
    """An ONNX file, run by onnxruntime. It takes those inputs only that it uses."""

    def __init__(self, path: Path) -> None:
        """Load it. Raises CheckpointError where it is none, UsageError without onnxruntime."""
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        with told_as(CheckpointError, f"{path} is no program that onnxruntime can load"):
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        self._inputs = [each.name for each in self._session.get_inputs()]

    def __call__(self, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        found: list[NDArray[Any]] = self._session.run(
            None, {name: np.ascontiguousarray(given[name]) for name in self._inputs}
        )
        return found


def _writable(values: NDArray[Any]) -> NDArray[Any]:
    values = np.ascontiguousarray(values)
    return values if values.flags.writeable else values.copy()


def program(path: Path, inputs: tuple[str, ...]) -> Program:
    """Return the program in a file, by its suffix. Raises EdlError."""
    return OnnxProgram(path) if path.suffix == ".onnx" else TorchProgram(path, inputs)


class Answering:
    """The programs of one form, with what they need: features in, outputs out."""

    def __init__(
        self, found: Exported, form: str, tables: Mapping[str, TableFile] | None = None
    ) -> None:
        """Load the programs and map the tables. Raises EdlError."""
        files = found.form(form)
        inside = form == "embedding"
        self._uses = () if inside else found.uses
        features = tuple(each.name for each in found.inputs)
        self._features = set(features)
        names = (*features, *(use.input for use in self._uses))
        self._program = program(found.path(files["program"]), names)
        self._ids = program(found.path(files["ids"]), features) if "ids" in files else None
        self._computed = [use.ids for use in self._uses if use.ids not in self._features]
        self._tables = {} if inside else tables or tables_of(found)
        self._outputs = [column.name for column in found.outputs]

    def __call__(self, features: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the outputs by name. Raises UsageError for ids out of a table's range."""
        ids = dict(features)
        if self._ids is not None:
            ids |= zip(self._computed, self._ids(features), strict=True)
        rows = {use.input: self._rows(use, ids[use.ids]) for use in self._uses}
        return dict(zip(self._outputs, self._program({**features, **rows}), strict=True))

    def _rows(self, use: Use, ids: NDArray[Any]) -> NDArray[np.float32]:
        return rows_for(use, self._tables[use.table], ids)


def tables_of(found: Exported) -> dict[str, TableFile]:
    """Map the table files of an exported model. Raises CheckpointError."""
    tables = {}
    for told in found.values["tables"]:
        file = TableFile(found.path(told["file"]))
        if (file.spec.name, file.spec.dim) != (told["name"], told["dim"]):
            raise CheckpointError(f"{file.path} is no file of the table {told['name']!r}")
        tables[told["name"]] = file
    for use in found.uses:
        if use.table not in tables:
            raise CheckpointError(f"{found.directory} has no file of the table {use.table!r}")
    return tables


class ExportedServable:
    """An exported model behind its definition's feed; see servable.Servable."""

    def __init__(self, name: str, found: Exported, form: str) -> None:
        """Open the definition and the programs. Raises EdlError."""
        values = found.values
        self.name, self.version = name, str(values["cut"]["version"])
        self._features = found.inputs
        self.example: Mapping[str, Values] | None = (
            None  # whoever opens it may give it one, to warm it
        )
        self._definition, self._asked = _feed_of(found)
        self._answer: Answering | None = Answering(found, form)
        self.inputs: tuple[Column, ...] = (
            tuple(each.column for each in found.inputs)
            if self._asked is None
            else self._asked.columns
        )
        self.outputs: tuple[Column, ...] = found.outputs
        self.about: dict[str, Any] = {
            "job": values["job"],
            "cut": values["cut"]["version"],
            "created": values["created"],
            "definition": values["definition"],
            "form": form,
        }

    def infer(self, inputs: Mapping[str, Values]) -> Arrays:
        """Return the outputs of these columns, which may be as a reader has them.

        A column of lists is a Ragged, an array of arrays, or an array of lists of one length.
        Raises UsageError where a value is none of its column's type, or feed refuses it.
        """
        if lacking := [column.name for column in self.inputs if column.name not in inputs]:
            raise UsageError(
                f"{self.name} lacks {', '.join(map(repr, lacking))}: it takes "
                f"{', '.join(column.name for column in self.inputs)}"
            )
        answer = self._answer
        if answer is None:
            raise UsageError(f"{self.name} is closed")
        return answer(self._fed(inputs))

    def _fed(self, inputs: Mapping[str, Values]) -> Arrays:
        """Return the features of a request by name."""
        if self._asked is None or self._definition is None:
            return {each.name: _feature(each, inputs[each.name]) for each in self._features}
        records = self._asked.records(inputs)
        with told_of(f"feed of {self._definition.name} does not take these records"):
            features, _ = self._definition.feed(records, "predict")
        return features_of(features, self._features)

    def close(self) -> None:
        """Let go of the programs and the tables."""
        self._answer = None


def _feature(wanted: Input, values: Values) -> NDArray[Any]:
    """Return a feature that a request brings. Raises UsageError where it is of another type."""
    array = np.asarray(values)
    type_ = Type(DTYPES[wanted.datatype].name, shape=array.shape[1:])
    return np.asarray(brought(Field(wanted.name, type_), array))


def features_of(features: Any, wanted: tuple[Input, ...]) -> Arrays:
    """Return what feed has made by the names of the inputs. Raises UsageError for others."""
    parts = {part.name: part.values for part in parts_of(features, "what feed returns")}
    if set(parts) != {each.path for each in wanted}:
        raise UsageError(
            f"feed has made the features {', '.join(sorted(parts))} of these records, and the "
            f"model takes {', '.join(sorted(each.path for each in wanted))}"
        )
    return {each.name: parts[each.path] for each in wanted}


def _feed_of(found: Exported) -> tuple[Definition | None, Asked | None]:
    """Return the definition in an export and what its feed asks for. Raises EdlError."""
    told, feed = found.values["definition"], found.values.get("feed")
    if feed is None:
        return None, None
    path = found.path(told["file"])
    said = found.values.get("schema")  # an earlier version has written none
    schema = Schema.from_json(said, f"the schema of {found.directory}") if said else NO_SCHEMA
    try:
        asked = Asked.from_json(feed, schema)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{found.directory} is damaged: its feed is {feed}") from error
    return load_definition(str(path), "", told["params"], training=False), asked


def open_exported(
    where: str | Path, *, name: str = "", form: str = "", checksums: bool = True
) -> ExportedServable:
    """Open an exported model. Raises EdlError.

    `where`: a path or a URL. `form`: of FORMS; "": the quickest that is there. `checksums`: see
    read_exported.
    """
    found = read_exported(where, checksums=checksums)
    there = [each for each in FORMS if found.form(each)]
    if len(there) > 1 and not form and importlib.util.find_spec("onnxruntime") is None:
        there = [each for each in there if each != "onnx"]
    if not there or (form and form not in there):
        wanted = form or "any form that answers"
        raise UsageError(
            f"{where} is not exported to {wanted}: it has {', '.join(there) or 'none'}"
        )
    return ExportedServable(name or found.values["job"] or "model", found, form or there[0])
