"""The data that a definition is given: by its own reader or one of ours, held to a schema."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..data.held import HeldReader
from ..data.open import open_reader
from ..data.reader import RecordReader
from ..data.schema import NO_SCHEMA, Schema
from .spec import Definition


def open_data(
    definition: Definition, path: str, params: Mapping[str, Any], schema: Schema = NO_SCHEMA
) -> RecordReader:
    """Return the reader of a path, whose columns have the types of the schema, as far as it goes.

    A definition's own reader that takes `schema` is given it, to open files with; what any of them
    gives is brought to it. Raises UsageError or DataError.
    """
    if definition.reader is None:
        return open_reader(path, schema=schema, **params)
    own = {"schema": schema} if "schema" in inspect.signature(definition.reader).parameters else {}
    reader: RecordReader = definition.reader(path, **own, **params)
    return HeldReader(reader, schema) if len(schema) else reader
