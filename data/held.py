"""A reader of one's own held to a schema: what it gives is brought to the types, or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..common.errors import RecordError
from ..common.ragged import Ragged
from .exact import Unfit, bring
from .reader import Columns, RecordReader, Records, Source, schema_of
from .schema import Field, Schema


class HeldReader:
    """A RecordReader whose columns have the types of a schema, whatever its own reader makes.

    Records that are dicts are held to it by their keys; of others a schema says nothing.
    """

    def __init__(self, reader: RecordReader, schema: Schema) -> None:
        self._reader = reader
        self._schema = schema

    @property
    def schema(self) -> Schema:
        """The types that are held, and those that the reader itself knows of other columns."""
        return self._schema.joined(schema_of(self._reader))

    def sources(self) -> Sequence[Source]:
        return self._reader.sources()

    def read(self, source: str, start: int, end: int, skip: Collection[int] = ()) -> Records:
        records = self._reader.read(source, start, end, skip)
        try:
            return held(records, self._schema)
        except Unfit as error:
            left = set(skip)
            there = [number for number in range(start, end) if number not in left]
            raise RecordError(source, there[error.row], error.why) from error


def held(records: Records, schema: Schema) -> Records:
    """Return the records with each column as the schema has it. Raises Unfit."""
    if isinstance(records, Columns):
        return Columns({name: _brought(schema.get(name), records[name]) for name in records})
    if not records or not all(isinstance(each, Mapping) for each in records):
        return records
    made = [dict(each) for each in records]
    for column in schema:
        places = [place for place, each in enumerate(made) if column.name in each]
        if not places:
            continue
        try:
            values = bring(column, [made[place][column.name] for place in places])
        except Unfit as error:
            raise Unfit(places[error.row], error.why) from error
        for place, value in zip(places, values, strict=True):
            made[place][column.name] = value
    return made


def _brought(column: Field | None, values: Any) -> Any:
    if column is None:
        return values
    return bring(column, values if isinstance(values, Ragged) else np.asarray(values))
