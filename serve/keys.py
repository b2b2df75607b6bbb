"""The ids of raw keys: what a table knows as an id, found from what stands in the data.

A feed makes ids of a column's values, by `hash64` or by a layer. Which column and how is said by
whoever asks, or by the definition's `raw_keys()`; else the column has the table's name.

    def raw_keys():
        return {
            "user": "user_id",                     # hash64("user_id", value)
            "item": ("item_id", "item"),           # hash64("item", value of item_id)
            "city": ("city", CITIES),              # a layer or function: values -> ids
        }
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DefinitionError, UsageError
from ..common.hashing import hash64
from ..data.exact import Unfit, bring
from ..data.schema import NO_SCHEMA, Field, Schema, Type
from .checkpoint import Checkpoint, Ids

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_BOOLS = {"true": True, "false": False}
_SAY = (
    "say which column they are of (--key_column), and as which field hash64 takes it (--key_field)"
)


@dataclass(frozen=True)
class Way:
    """How the ids of a table are made: of which column's values, and by what.

    `is_known`: somebody said so; else the table has the name of its column.
    """

    column: str
    make: Callable[[Any], Any]
    is_known: bool = True


def ids_of(
    checkpoint: Checkpoint, table: str, keys: Sequence[Any], column: str = "", field: str = ""
) -> tuple[Ids, Way]:
    """Return the id of each key, and how it was made.

    `column`, `field`: hash64(field, values of the column); each is the other one where it is not
    given. Raises UsageError, and DefinitionError where the definition says nothing that works.
    """
    checkpoint.table(table)
    way = _way(checkpoint, table, column, field)
    values = as_values(_schema(checkpoint), way.column, keys)
    try:
        ids = np.asarray(way.make(values))
    except Exception as error:  # the user's code may raise anything
        raise DefinitionError(f"raw_keys: what it says of {table!r} fails: {error!r}") from error
    if ids.shape != (len(keys),) or ids.dtype.kind not in "iu":
        raise DefinitionError(
            f"raw_keys: what it says of {table!r} makes {ids.dtype}{list(ids.shape)} of "
            f"{len(keys)} values, and no id of each"
        )
    return ids.astype(np.int64), way


def as_values(schema: Schema, column: str, keys: Sequence[Any]) -> NDArray[Any]:
    """Return keys as the column has its values: of a column of numbers, "7" is a number.

    Raises UsageError for what can be no value of it.
    """
    there = schema.get(column)
    if there is None:
        return objects(keys)
    single = replace(there, type=there.type.single)
    if single.type.kind == "picture":
        raise UsageError(f"The column {column!r} is of pictures, of which no id is made.")
    try:
        parsed = [_parsed(single, key) for key in keys]
        return np.asarray(bring(single, objects(parsed)))
    except Unfit as error:
        raise UsageError(f"The key {keys[error.row]!r} is no value of it: {error.why}.") from error


def _parsed(column: Field, key: Any) -> Any:
    """Return a key that is a text as the value that it spells. Raises UsageError."""
    type_: Type = column.type
    if not isinstance(key, str) or type_.kind in ("text", "bytes"):
        return key
    try:
        if type_.is_whole and _WHOLE.fullmatch(key):
            return int(key)
        if type_.kind == "bool":
            return _BOOLS[key.lower()]
        if type_.is_float:
            return float(key)
        if type_.kind in ("date", "timestamp") and key[:1].isdigit():  # numpy knows "today"
            return np.datetime64(key.removesuffix("Z"))
    except (ValueError, KeyError):
        pass
    raise UsageError(f"The column {column.name!r} is {type_}, and the key {key!r} is none.")


def _way(checkpoint: Checkpoint, table: str, column: str, field: str) -> Way:
    if column or field:
        return _hashed(column or field, field or column)
    said = _said(checkpoint)
    if table not in said:
        return replace(_hashed(table, table), is_known=False)
    match said[table]:
        case str(name):
            return _hashed(name, name)
        case (str(name), str(field)):
            return _hashed(name, field)
        case (str(name), make) if callable(make):
            return Way(name, make)
    raise DefinitionError(
        f"raw_keys: it says {said[table]!r} of {table!r}, and neither COLUMN, (COLUMN, FIELD of "
        "hash64) nor (COLUMN, layer or function)"
    )


def _hashed(column: str, field: str) -> Way:
    return Way(column, partial(hash64, field))


def _said(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the raw_keys of the definition that the checkpoint was trained by."""
    from ..model_zoo.spec import load_definition

    settings = checkpoint.settings
    if not (named := str(settings.get("model_def") or "")):
        return {}
    zoo, params = str(settings.get("model_zoo") or ""), settings.get("model_params") or {}
    try:
        return load_definition(named, zoo, params, training=False).raw_keys()
    except DefinitionError as error:
        raise UsageError(
            f"How ids are made of keys the definition says, but {error}: {_SAY}."
        ) from error


def _schema(checkpoint: Checkpoint) -> Schema:
    told = checkpoint.settings.get("schema")
    return Schema.from_json(told, f"the schema in {checkpoint.where}") if told else NO_SCHEMA


def unknown(table: str, way: Way) -> UsageError:
    """Return the error of keys of which none has a row, where nobody said how ids are made."""
    return UsageError(
        f"The table {table!r} has no row of these keys, if ids are hash64({way.column!r}, key), "
        f"which is a guess: {_SAY}, or let the definition's raw_keys() say it (docs/using.md)."
    )


def objects(keys: Sequence[Any]) -> NDArray[Any]:
    """Return an array of these values as they are."""
    found = np.empty(len(keys), object)
    for place, key in enumerate(keys):
        found[place] = key
    return found
