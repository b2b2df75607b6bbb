"""Folders `key=value` above the files of a table are columns of it, as Hive and Spark write them.

Which folders: all below the path that was given, and those right above it, so that a table has the
same columns whether it is named whole, by a glob or by one of its folders. A column is int64 where
all of its values, of all files, are whole numbers as Python writes them (007 is a text), else text;
or what the schema of other data, `partitions=KEY:TYPE` or `dtypes=` say. The value
__HIVE_DEFAULT_PARTITION__ is a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError
from .csv_types import ZEROED, Column, flags_of
from .declared import declared, fill_of, with_missing
from .file_reader import flag_of, names_of, pairs_of
from .files import DataFile
from .missing import Missing, ways_out
from .reader import Columns, RecordReader, Records, Source, schema_of
from .schema import DECLARED, SEEN, Field, Schema, Type

_FOLDER = re.compile(r"([^=]+)=(.*)")
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_NULLS = ("__HIVE_DEFAULT_PARTITION__", "")


def partitioned(
    make: Callable[..., RecordReader],
    files: Sequence[DataFile],
    params: Mapping[str, Any],
    schema: Schema,
) -> RecordReader:
    """Return the reader that `make` makes of the files, with a column for each folder `key=value`.

    `schema`: the columns whose types are known. Raises UsageError for a wrong parameter, DataError
    where files differ in their keys or a value is missing or of another type.
    """
    params = dict(params)
    said = params.pop("partitions", True)
    types: dict[str, str] = {}
    if isinstance(said, Mapping) or ":" in str(said):
        types, said = pairs_of(said), True
    if not flag_of(said, "partitions"):
        return make(files, **params)
    values = _values(files)
    keys = list(values[files[0].name])
    if strange := [key for key in types if key not in keys]:
        raise DataError(
            f"partitions names {strange[0]!r}, but no folder of the data is such a key."
        )
    if not keys:
        return make(files, **params)
    chosen = Missing.parse(params.get("missing"))
    if "dtypes" in params:
        types |= {key: kind for key, kind in pairs_of(params["dtypes"]).items() if key in keys}
    known = declared(schema.only(keys), types, chosen)
    columns, fields = {}, []
    for key in keys:
        by_file = {name: each[key] for name, each in values.items()}
        field = known.get(key) or with_missing(_found(key, by_file), chosen)
        fields.append(field)
        columns[key] = _column(field, by_file)
    wanted = names_of(params.get("columns"))
    for name in {"columns", "missing", "dtypes"} & set(params):
        params[name] = _without(params[name], keys)
    return Partitioned(make(files, **params), columns, Schema(tuple(fields)), wanted)


def _values(files: Sequence[DataFile]) -> dict[str, dict[str, str]]:
    """Return {name of a file: {key: value}}.

    Raises DataError where the files differ in their keys.
    """
    values = {}
    for file in files:
        folders = file.path.split("/")[:-1]
        top = min(file.root.rstrip("/").count("/") + 1, len(folders))
        while top and _FOLDER.fullmatch(folders[top - 1]):
            top -= 1
        found = [match for each in folders[top:] if (match := _FOLDER.fullmatch(each))]
        values[file.name] = {unquote(match[1]): unquote(match[2]) for match in found}
        first = values[files[0].name]
        if sorted(values[file.name]) != sorted(first):
            there, here = (", ".join(each) or "none" for each in (first, values[file.name]))
            raise DataError(
                f"The key=value folders above {files[0].name} are {there}, above {file.name} "
                f"{here}: name data of one kind, or say --data_reader_params partitions=false."
            )
    return values


def _found(key: str, values: Mapping[str, str]) -> Field:
    """Return a key's column by all of its values."""
    there = {name: value for name, value in values.items() if value not in _NULLS}
    if there and all(
        _WHOLE.fullmatch(value) and -(2**63) <= int(value) < 2**63 for value in there.values()
    ):
        return Field(key, Type("int64"), found=SEEN)
    zeroed = next((value for value in there.values() if flags_of(value) & ZEROED), None)
    why = "" if zeroed is None else f"{zeroed} has a leading zero (the folder {key}={zeroed})"
    return Field(key, Type("text"), found=SEEN, why=why)


def _column(field: Field, values: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Return {name of a file: its value, as an array of one}. Raises DataError."""
    key, type_ = field.name, field.type
    if type_.is_list or type_.kind == "picture":
        raise DataError(f"The folders {key}= are single values, and {key!r} is {type_}.")
    fill = fill_of(field)
    column = Column(key, type_, fill, found=field.found)
    made = {}
    for name, value in values.items():
        if value in _NULLS:
            if fill is None:
                raise DataError(
                    f"{name} lies in a folder {key}= without a value: {ways_out([key])}."
                )
            made[name] = np.array([fill.value], fill.dtype)
            continue
        try:
            made[name] = np.asarray(column.convert([value]))
        except (ValueError, OverflowError) as error:
            whose = "as was declared" if field.found == DECLARED else "as in the training data"
            raise DataError(
                f"{name} lies in a folder {key}={value}, which is no {type_}, {whose}: say "
                f"--data_reader_params partitions={key}:text, in the training too."
            ) from error
    return made


def _without(said: Any, keys: Collection[str]) -> Any:
    """Return a parameter of columns, less what it says of these; None where that is all."""
    if isinstance(said, Mapping):
        return {name: value for name, value in said.items() if name not in keys} or None
    parts = said.split("|") if isinstance(said, str) else list(said or ())
    left = [part for part in parts if part not in keys and part.rpartition(":")[0] not in keys]
    return ("|".join(left) if isinstance(said, str) else left) or None


class Partitioned:
    """A reader of tables whose files have columns more: {key: {source: its value}}.

    `keys`: their types.
    """

    def __init__(
        self,
        inner: RecordReader,
        columns: Mapping[str, Mapping[str, NDArray[Any]]],
        keys: Schema,
        wanted: Sequence[str],
    ) -> None:
        self._inner, self._columns, self._keys, self._wanted = inner, columns, keys, wanted

    @property
    def schema(self) -> Schema:
        """The types of all columns, those of the folders last but for an order that was said."""
        own = [each for each in schema_of(self._inner) if each.name not in self._keys]
        found = Schema((*own, *self._keys))
        return found.only(self._wanted) if self._wanted else found

    def sources(self) -> Sequence[Source]:
        """Return the sources.

        Raises DataError where a file has a column of a folder's name, too.
        """
        sources = self._inner.sources()
        for source in sources:
            self.read(source.name, 0, 0)
        return sources

    def read(self, source: str, start: int, end: int, skip: Collection[int] = ()) -> Records:
        """Read as any RecordReader does."""
        records = self._inner.read(source, start, end, skip)
        assert isinstance(records, Columns), "only tables have columns"
        for key in self._columns:
            if key in records:
                raise DataError(
                    f"{source} has a column {key!r} and lies in a folder {key}=: take its own with "
                    "--data_reader_params partitions=false."
                )
        added = {key: np.repeat(by[source], len(records)) for key, by in self._columns.items()}
        arrays = {**records, **added}
        return Columns({name: arrays[name] for name in self._wanted or arrays})
