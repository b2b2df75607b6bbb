"""A format whose files have types: JSON of columns, for definitions' own readers in tests."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edl.common.errors import RecordError
from edl.data.exact import Unfit, bring, type_of
from edl.data.file_reader import FileReader
from edl.data.reader import Columns
from edl.data.schema import NO_SCHEMA, STORED, Field, Schema


class TypedFile:
    """A source: `dtypes` of columns are those of their values."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._columns: dict[str, list[Any]] = json.loads(Path(path).read_text())
        self._schema = NO_SCHEMA
        self.names = tuple(self._columns)
        self.records = len(next(iter(self._columns.values())))

    @property
    def stored(self) -> Schema:
        return Schema(
            tuple(
                Field(name, type_of(_objects(values), name), found=STORED)
                for name, values in self._columns.items()
            )
        )

    def hold(self, schema: Schema) -> None:
        self._schema = schema

    def read(self, numbers: Any) -> Columns:
        found = {}
        for name, values in self._columns.items():
            try:
                found[name] = bring(self._schema[name], _objects([values[n] for n in numbers]))
            except Unfit as error:
                raise RecordError(self._path, int(numbers[error.row]), error.why) from error
        return Columns(found)


def _objects(values: list[Any]) -> Any:
    found = np.empty(len(values), object)
    for place, value in enumerate(values):
        found[place] = value
    return found


def reader(path: str, schema: Schema = NO_SCHEMA, **_params: Any) -> FileReader:
    """Return the reader of files with commas between."""
    return FileReader({each: partial(TypedFile, each) for each in path.split(",")}, schema)


def write(path: Path, **columns: list[Any]) -> str:
    """Write a file of these columns, and return its path."""
    path.write_text(json.dumps(columns))
    return str(path)
