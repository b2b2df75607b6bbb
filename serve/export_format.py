"""An exported model on disk: its manifest, its inputs, its tables.

    OUT/model.pt2           the dense part by torch.export: features, then rows, as `uses` says
    OUT/model.onnx          the same in ONNX
    OUT/ids.pt2, ids.onnx   where the model computes ids: features in, ids out
    OUT/embedding.pt2       the model with its tables inside: features in
    OUT/table-000.safetensors  rows by id (table_file.py), which model.pt2 and model.onnx get
    OUT/dense.safetensors, rows-TABLE.*   dense values and tables for others
    OUT/definition.py       the definition's own file, whose feed prepares records
    OUT/request.json, response.json   an example by the words of KServe's v2 protocol
    OUT/MANIFEST.json       all of this; the schema of the records that feed takes; sizes, sha256; a
                            checksum of itself; written last

A folder without a manifest that is whole is no exported model. It may be a stranger's: names lead
out of no folder, and what it says is looked at before it is used.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..common import copies, finite
from ..common.errors import CheckpointError, UsageError
from ..common.foreign import must_be, parse
from ..common.places import Place
from ..common.storage import MANIFEST, FileRecord, check_names
from ..kernels.ids import distinct
from .checkpoint import Ids, Values
from .columns import DTYPES
from .servable import Column

FORMAT = 1
KIND = "exported model"
_COLUMN = {"name": str, "datatype": str, "shape": list}
_VALUES = {
    "job": str,
    "cut": {"version": int},
    "definition": {"name": str, "params": dict, "fingerprint": str, "file": str},
    "forms": dict,
    "inputs": [{**_COLUMN, "path": str}],
    "outputs": [_COLUMN],
    "uses": [{"input": str, "table": str, "ids": str, "size": int}],
    "tables": [{"name": str, "dim": int, "file": str}],
    "files": [{"name": str, "nbytes": int, "sha256": str}],
    "created": str,
    "checksum": str,
}


class Input(NamedTuple):
    """A tensor that the model takes of a batch's features; `path`: where it is in them.

    `shape`: without the batch axis; -1 is any.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    path: str

    @property
    def column(self) -> Column:
        return Column(self.name, self.datatype, self.shape)


class Use(NamedTuple):
    """A place where the model asks a table for rows, which are an input of the dense part.

    `ids`: the name of the feature that has the ids, or of an output of the ids part. `size`: they
    are below it; 0: any. `nothing`: the id that is none, whose row is zeros.
    """

    input: str
    table: str
    ids: str
    size: int
    nothing: int


class Table(Protocol):
    """A table whose rows can be had by id: rows.Lookup, or table_file.TableFile."""

    def rows(self, ids_U: Ids) -> Values:
        """Return the rows of these ids: float32[U, D]."""
        ...


def rows_for(use: Use, table: Table, ids: NDArray[Any]) -> Values:
    """Return the rows of a use: float32 [..., D] of ids [...]. Raises UsageError out of range."""
    flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
    if use.size and flat.size and not 0 <= flat.min() <= flat.max() < use.size:
        raise UsageError(
            f"the table {use.table!r} has {use.size} rows; got ids from {flat.min()} to "
            f"{flat.max()}"
        )
    ids_U, places = distinct([flat], nothing=use.nothing)
    found = table.rows(ids_U)
    rows = np.zeros((len(flat), found.shape[1]), np.float32)
    there = places >= 0
    if there.all():
        rows = found[places]
    else:
        rows[there] = found[places[there]]
    return rows.reshape(*ids.shape, found.shape[1])


@dataclass(frozen=True)
class Exported:
    """An exported model as its manifest says it."""

    directory: Path
    values: dict[str, Any]
    files: tuple[FileRecord, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(
            Input(i["name"], i["datatype"], _sizes(i["shape"]), i["path"])
            for i in self.values["inputs"]
        )

    @property
    def outputs(self) -> tuple[Column, ...]:
        return tuple(
            Column(o["name"], o["datatype"], _sizes(o["shape"])) for o in self.values["outputs"]
        )

    @property
    def uses(self) -> tuple[Use, ...]:
        return tuple(
            Use(u["input"], u["table"], u["ids"], u["size"], u["nothing"])
            for u in self.values["uses"]
        )

    def form(self, name: str) -> dict[str, str]:
        """Return the files of a form by what they are; {} where there is none of it."""
        found: dict[str, str] = self.values["forms"].get(name, {})
        return found

    def path(self, name: str) -> Path:
        """Return where a file is. Raises CheckpointError for one that the manifest lacks."""
        if name not in {record.name for record in self.files}:
            raise CheckpointError(f"{self.directory / MANIFEST} does not name its file {name!r}")
        return self.directory / name


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= -1 for size in shape):
        raise ValueError(f"a shape is {list(shape)}")
    return tuple(shape)


def is_exported(where: str | Path) -> bool:
    """Tell whether a folder, here or at a store, says of itself that it is an exported model."""
    try:
        values = parse(Place(where).read(MANIFEST))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("kind") == KIND


def sealed(values: Mapping[str, Any], files: Sequence[FileRecord]) -> bytes:
    """Return a manifest of these values and files."""
    whole: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        **values,
        "files": [vars(record) for record in files],
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    whole = json.loads(finite.dumps(whole))
    whole["checksum"] = _checksum(whole)
    return json.dumps(whole, indent=1).encode()


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_exported(where: str | Path, *, checksums: bool = True) -> Exported:
    """Return the exported model in a folder: each file is there, of its size and checksum.

    `where`: a path, or a URL, whose files are copied here first. Raises CheckpointError with the
    file and what is wrong with it.
    """
    place = Place(where)
    path = place / MANIFEST
    try:
        values = parse(place.read(MANIFEST))
        must_be(values, dict)
        if values.get("kind") != KIND or values.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} is of {values.get('kind')!r}, format {values.get('format')}; this version "
                f"reads an {KIND} of format {FORMAT}"
            )
        must_be(values, _VALUES)
        if values.pop("checksum") != _checksum(values):
            raise CheckpointError(f"{path} is damaged: its checksum is another")
        values = finite.restored(values)
        files = tuple(FileRecord(f["name"], f["nbytes"], f["sha256"]) for f in values["files"])
        check_names([record.name for record in files], but=(MANIFEST,))
        folder = place.path if place.is_local else copies.folder(place, files)
        found = Exported(folder, values, files)
        _check_values(found)
    except OSError as error:
        raise CheckpointError(
            f"{place} is no exported model: cannot read {MANIFEST}: {error.strerror or error}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not place.is_local:
        copies.make_room(folder)
        for _ in place.each(lambda record: place.copy(record, folder), files):
            pass
    for record in files if place.is_local else ():
        _check(place, record, checksums)
    return found


def _check_values(found: Exported) -> None:
    """Look at what a manifest says. Raises KeyError, TypeError or ValueError."""
    for column in (*(each.column for each in found.inputs), *found.outputs):
        if column.datatype not in DTYPES:
            raise ValueError(f"{column.name!r} is {column.datatype}")
    for use in found.uses:
        if type(use.nothing) is not int or not -(1 << 63) <= use.nothing < 1 << 63:
            raise ValueError(f"the ids {use.ids!r} have {use.nothing!r} for nothing")
    for name, files in found.values["forms"].items():
        must_be(files, dict, name)
        for file in files.values():
            must_be(file, str, name)
        if name != "rows":
            must_be(files, {"program": str}, name)


def _check(place: Place, record: FileRecord, checksums: bool) -> None:
    """Compare a file with what the manifest says. Raises CheckpointError."""
    if checksums:
        place.check(record)
        return
    nbytes = place.size(record.name)
    if nbytes is None:
        raise CheckpointError(f"{place / record.name} is missing")
    if nbytes != record.nbytes:
        raise CheckpointError(
            f"{place / record.name} is torn: {nbytes} bytes instead of {record.nbytes}"
        )
