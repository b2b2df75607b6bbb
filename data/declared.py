"""The types of columns that are known before files are read: by a schema, dtypes= and missing=.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..common.errors import UsageError
from .missing import Fill, Missing
from .schema import KINDS, Field, Schema, Type

_WORDS = ("text", "bool", "int64", "float64", "timestamp", "timestamp in UTC", "date", "duration")


def declared(schema: Schema, dtypes: Mapping[str, str], missing: Missing) -> Schema:
    """Return the schema, and the columns that `dtypes` declares beside it.

    Raises UsageError for a type that is none, and where the schema has another.
    """
    fields = [_of_schema(each, missing) for each in schema]
    for name, word in dtypes.items():
        try:
            type_ = Type.parse(word)
        except ValueError:
            raise UsageError(
                f"dtypes knows {', '.join(_WORDS)}, 'list of' these, and more "
                f"({', '.join(each for each in KINDS if each not in _WORDS)}), not {word!r}."
            ) from None
        column = with_missing(Field(name, type_), missing)
        known = schema.get(name)
        if known is None:
            fields.append(column)
        elif known.type != column.type:
            raise UsageError(
                f"dtypes says that {name!r} is {column.type}, and the schema {known.type}: "
                "leave one of them out."
            )
    return Schema(tuple(fields))


def _of_schema(column: Field, missing: Missing) -> Field:
    found = with_missing(column, missing)
    if found.type == column.type:
        return found
    if missing.chosen(column.name) is not None:
        raise UsageError(
            f"missing={column.name}:{found.missing} makes {column.name!r} {found.type}, and the "
            f"schema says {column.type}: leave one of them out."
        )
    return column


def with_missing(column: Field, missing: Missing) -> Field:
    """Return the column with what `missing=` says of it, unless it has that already.

    NaN for whole numbers or bools makes them float64. Raises UsageError where the value that is
    chosen for just this column cannot stand in it.
    """
    said = column.missing
    if said is None:
        said = missing.said(column.name, _dtype(column.type))
    if said is None:
        return column
    column = replace(column, missing=said)
    fill = fill_of(column)
    if fill is not None and fill.dtype.kind == "f" and column.type.dtype.kind in "iub":
        column = replace(column, type=replace(column.type, kind="float64"))
    return column


def fill_of(column: Field) -> Fill | None:
    """Return what stands for a missing value, or element; None where that is refused."""
    chosen = {} if column.missing is None else {column.name: column.missing}
    return Missing(chosen).fill(column.name, _dtype(column.type))


def _dtype(type_: Type) -> np.dtype[np.generic]:
    return np.dtype("S") if type_.kind == "bytes" else type_.dtype
