"""The schema of a job's data: what each column is, decided once and held on every way.

A type is written as people say it, and read back by `Type.parse`:

    bool, int64, uint64, float32, float64, text, bytes, date, decimal, duration
    timestamp, timestamp in UTC     in microseconds, without and with a time zone
    list of text, list of 3 float32, list of 28 x 28 uint8
    picture RGB of 8 bits 32 x 32, picture L of 16 bits 28 x 28

Pure: `exact.py` brings values to a type, `merge.py` finds the types that several files share.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..common.errors import UsageError
from ..common.foreign import must_be

FORMAT = 1
DECLARED, STORED, SEEN = "declared", "stored in the file", "seen in all records"
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
_NUMPY = {
    "text": "U", "bytes": "O", "date": "M8[D]", "timestamp": "M8[us]", "duration": "m8[us]",
    "decimal": "f8",
}  # fmt: skip
KINDS = ("bool", *WHOLE, *FLOATS, *_NUMPY, "picture")
_SHORT = {"str": "text", "string": "text", "int": "int64", "float": "float64", "double": "float64"}
_LIST = re.compile(r"list of (?:(\d+(?: x \d+)*) )?(.+)")
_PICTURE = re.compile(r"picture (\w+) of (8|16) bits (\d+) x (\d+)")
_UTC = "timestamp in UTC"


@dataclass(frozen=True)
class Type:
    """The type of a column's values.

    `lists`: a list of any length in each record; `shape`: a list of so many (of lists of so many).
    `zone`: a timestamp is a moment, told in UTC, and no local time. A picture has a `mode` of
    Pillow's and 8 or 16 `bits`, and its pixels' rows and columns are its shape.
    """

    kind: str
    lists: bool = False
    shape: tuple[int, ...] = ()
    zone: bool = False
    mode: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no type: there are {', '.join(KINDS)}")

    @classmethod
    def parse(cls, text: str) -> Type:
        """Return the type that is written so. Raises ValueError."""
        text = " ".join(str(text).split())
        if found := _PICTURE.fullmatch(text):
            shape = int(found[3]), int(found[4])
            return cls("picture", shape=shape, mode=found[1], bits=int(found[2]))
        if found := _LIST.fullmatch(text):
            inner = cls.parse(found[2])
            if inner.is_list or inner.kind == "picture":
                raise ValueError(f"{text!r}: a list is of single values")
            if found[1] is None:
                return replace(inner, lists=True)
            return replace(inner, shape=tuple(int(n) for n in found[1].split(" x ")))
        if text == _UTC:
            return cls("timestamp", zone=True)
        return cls(_SHORT.get(text, text))

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        if self.kind == "picture":
            return f"picture {self.mode} of {self.bits} bits {sizes}"
        single = _UTC if self.zone else self.kind
        if self.lists:
            return f"list of {single}"
        return f"list of {sizes} {single}" if self.shape else single

    @property
    def is_list(self) -> bool:
        return self.lists or bool(self.shape)

    @property
    def is_whole(self) -> bool:
        return self.kind in WHOLE

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS or self.kind == "decimal"

    @property
    def single(self) -> Type:
        """The type of one value of the list."""
        return replace(self, lists=False, shape=())

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """What numpy has the values in; bytes are objects, since numpy's drop trailing zeros."""
        if self.kind == "picture":
            return np.dtype(np.uint16 if self.bits == 16 else np.uint8)
        return np.dtype(_NUMPY.get(self.kind, self.kind))


@dataclass(frozen=True)
class Field:
    """A column of a schema.

    `missing`: what stands for a missing value, as `missing=` says it; None: the default of its
    type, and whole numbers and bools are refused. `found`: DECLARED, STORED or SEEN. `why`: what
    decided against appearances, "" where nothing did.
    """

    name: str
    type: Type
    missing: str | None = None
    found: str = field(default=DECLARED, compare=False)
    why: str = field(default="", compare=False)


@dataclass(frozen=True)
class Schema:
    """The columns of a job's data, in the order of its files."""

    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        if len(self._by_name) < len(self.fields):
            raise ValueError("a column stands there twice")

    @functools.cached_property
    def _by_name(self) -> dict[str, Field]:
        return {each.name: each for each in self.fields}

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Field:
        return self._by_name[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def get(self, name: str) -> Field | None:
        return self._by_name.get(name)

    def over(self, found: Schema) -> Schema:
        """Return what was found, with this schema's fields in place of those of their names."""
        both = [self.get(each.name) or each for each in found]
        return Schema((*both, *(each for each in self if each.name not in found)))

    def joined(self, other: Schema) -> Schema:
        """Return this schema's columns, and after them those that only the other one has."""
        return Schema((*self, *(each for each in other if each.name not in self)))

    def only(self, names: Iterable[str]) -> Schema:
        """Return the fields of these names, as far as there are such."""
        wanted = set(names)
        return Schema(tuple(each for each in self if each.name in wanted))

    def difference(self, other: Schema) -> str:
        """Say in what the columns of both schemas differ; "" where in nothing."""
        for mine in self:
            theirs = other.get(mine.name)
            if theirs is not None and mine.type != theirs.type:
                return f"{mine.name!r} is {mine.type}, and was {theirs.type}"
            if theirs is not None and mine.missing != theirs.missing:
                now, then = (_said(each.missing) for each in (mine, theirs))
                return f"a missing value of {mine.name!r} {now}, and {then} before"
        return ""

    def notes(self) -> list[str]:
        """Return what was decided against appearances, a line for each such column."""
        return [f"{each.name}: {each.type}, since {each.why}" for each in self if each.why]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it, and as YAML shows it."""
        columns = {}
        for each in self:
            told: dict[str, Any] = {"type": str(each.type)}
            if each.missing is not None:
                told["missing"] = each.missing
            told["found"] = each.found
            if each.why:
                told["why"] = each.why
            columns[each.name] = told
        return {"format": FORMAT, "columns": columns}

    @classmethod
    def from_json(cls, told: object, where: str = "the schema") -> Schema:
        """Return the schema of `to_json`, or of {"columns": {name: type}}. Raises UsageError."""
        try:
            must_be(told, {"columns": dict})
            assert isinstance(told, Mapping)
            if int(told.get("format", FORMAT)) > FORMAT:
                raise ValueError(f"it has the format {told['format']}, of a later version of edl")
            if strange := sorted(set(map(str, told)) - {"format", "columns"}):
                raise ValueError(f"{strange[0]!r} is nothing that a schema has: columns is")
            return cls(tuple(_field(str(name), each) for name, each in told["columns"].items()))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{where} cannot be read: {error}. `edl data schema DATA` prints one."
            ) from error


NO_SCHEMA = Schema()


def _field(name: str, told: object) -> Field:
    if isinstance(told, str):
        told = {"type": told}
    if not isinstance(told, Mapping) or "type" not in told:
        raise ValueError(f"the column {name!r} has no type")
    if strange := sorted(set(told) - {"type", "missing", "found", "why"}):
        raise ValueError(f"the column {name!r} has no {strange[0]!r}: it has a type and missing")
    try:
        type_ = Type.parse(told["type"])
    except ValueError as error:
        raise ValueError(f"the column {name!r}: {error}") from error
    missing = told.get("missing")
    if isinstance(missing, float) and math.isnan(missing):
        missing = "nan"
    said = None if missing is None else str(missing)
    if isinstance(missing, bool):
        said = str(missing).lower()
    return Field(name, type_, said, str(told.get("found", DECLARED)), str(told.get("why", "")))


def _said(missing: str | None) -> str:
    return "is refused or the type's own" if missing is None else f"becomes {missing}"
