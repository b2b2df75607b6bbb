"""A schema of what is kept on disk: dataclasses as JSON values and back, by their declared types.

`dump(kind, value)` gives JSON values and `load(kind, values)` gives the value again, where `kind`
is a dataclass, an enum, a container of such, or a plain type. On disk stand the names of the
declared fields, and nothing of how the code stores them. A field whose value is its default is left
out, and so is one that does not count for equality: it is for the eye. `dump_all` leaves nothing
out.

`load` takes nothing on trust: a field that is missing, one that is not known, and a value of
another type raise a ValueError that names them. A mapping is a list of pairs, so data are never
names.
"""

from __future__ import annotations

import base64
import binascii
import collections
import collections.abc
import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

Json = Any  # what the json module reads and writes; nothing here looks into it
Value = TypeVar("Value")
_Convert = Callable[[Any], Any]

_PLAIN = (int, str, float, bool, type(None))
_MAPPINGS: dict[object, Callable[[Any], Any]] = {
    dict: dict,
    collections.abc.Mapping: dict,
    collections.OrderedDict: collections.OrderedDict,
    collections.Counter: collections.Counter,
}
_LISTS: dict[object, Callable[[Any], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: tuple,
}
_FLAT = (list, tuple)  # which the json module writes as they are


def dump(kind: type[Value], value: Value) -> Json:
    """Return the value as JSON values. Raises TypeError where its type has no place on disk."""
    write = _codec(kind).dump
    return value if write is None else write(value)


def load(kind: type[Value], values: Json) -> Value:
    """Return what `dump` was given. Raises ValueError where these values are no such thing."""
    return typing.cast(Value, _codec(kind).load(values))


def dump_all(record: object) -> dict[str, Json]:
    """Return the values of all fields of a dataclass, by name."""
    return _fields(type(record)).dump_all(record)


def load_all(kind: type[Value], values: Json) -> Value:
    """Return what `dump_all` was given. Raises ValueError where a field is missing or not known."""
    fields = _fields(kind)
    missing = [name for name in fields.names if name not in values]
    if missing:
        raise ValueError(f"{kind.__name__} has no field {missing[0]!r}")
    return typing.cast(Value, fields.load(values))


@dataclasses.dataclass(frozen=True)
class _Codec:
    """The way in which values of one type are written and read.

    `dump` None: as they are, which costs nothing.
    """

    dump: _Convert | None
    load: _Convert


_CODECS: dict[Any, _Codec] = {}
_FIELDS: dict[Any, _Fields] = {}


def _codec(kind: Any) -> _Codec:
    """Return how a type is written and read, which is found out once."""
    found = _CODECS.get(kind)
    if found is None:
        found = _CODECS[kind] = _find_codec(kind)
    return found


def _find_codec(kind: Any) -> _Codec:
    """Return how a type is written and read. Raises TypeError where it cannot be."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _Codec(None, lambda values: values)
    if kind in _PLAIN:
        return _Codec(None, functools.partial(_load_plain, (kind, int) if kind is float else kind))
    if kind is bytes:
        return _Codec(lambda value: base64.b64encode(value).decode(), _load_bytes)
    if origin in (types.UnionType, typing.Union):
        (of,) = [each for each in arguments if each is not type(None)]
        return _optional(_codec(of))
    if origin in _MAPPINGS:
        pair = arguments if len(arguments) > 1 else (*arguments, int)  # a Counter's
        return _mapping(_MAPPINGS[origin], _row(pair))
    if origin is tuple and arguments[-1] is not ...:
        return _row(arguments)
    if origin in _LISTS:
        return _list(_LISTS[origin], _codec(arguments[0]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Codec(operator.attrgetter("_value_"), kind)
    if dataclasses.is_dataclass(kind):
        fields = _fields(kind)
        return _Codec(fields.dump, fields.load)
    raise TypeError(f"{getattr(kind, '__name__', kind)} cannot stand in what is kept on disk")


def _unlike(value: Json, what: str) -> ValueError:
    return ValueError(f"{value!r} is no {what}")


def _load_plain(kind: Any, value: Json) -> Json:
    if type(value) is not kind and not isinstance(value, kind):
        raise _unlike(value, getattr(kind, "__name__", "number"))
    return value


def _load_bytes(text: Json) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error) as error:
        raise _unlike(text, "base64") from error


def _as_list(values: Json) -> list[Json]:
    if not isinstance(values, list | tuple):
        raise _unlike(values, "list")
    return values  # type: ignore[return-value]  # a tuple is as good here


def _optional(of: _Codec) -> _Codec:
    write, read = of.dump, of.load
    return _Codec(
        None if write is None else lambda value: None if value is None else write(value),
        lambda values: None if values is None else read(values),
    )


def _list(make: _Convert, of: _Codec) -> _Codec:
    write, read = of.dump, of.load
    whole = (None if make in _FLAT else list) if write is None else None
    return _Codec(
        whole if write is None else lambda values: [write(each) for each in values],
        lambda values: make(map(read, _as_list(values))),
    )


def _row(places: tuple[Any, ...]) -> _Codec:
    codecs = [_codec(each) for each in places]
    writes, reads = [each.dump for each in codecs], [each.load for each in codecs]

    def dump_row(values: tuple[Any, ...]) -> Json:
        pairs = zip(writes, values, strict=True)
        return [value if write is None else write(value) for write, value in pairs]

    def load_row(values: Json) -> tuple[Any, ...]:
        if tuple(map(type, _as_list(values))) == places:  # plain values, as nearly all are
            return tuple(values)
        if len(values) != len(reads):
            raise ValueError(f"{values!r} has {len(values)} values instead of {len(reads)}")
        return tuple(read(value) for read, value in zip(reads, values, strict=True))

    return _Codec(None if not any(writes) else dump_row, load_row)


def _mapping(make: _Convert, pair: _Codec) -> _Codec:
    write, read = pair.dump, pair.load

    def dump_pairs(values: Any) -> Json:
        pairs: Iterable[tuple[Any, Any]] = values.items()
        return list(pairs) if write is None else [write(each) for each in pairs]

    return _Codec(dump_pairs, lambda values: make(dict(map(read, _as_list(values)))))


class _Fields:
    """The fields of one dataclass that are kept: those that take part in its comparison."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        declared = [each for each in dataclasses.fields(kind) if each.compare]
        types_of = typing.get_type_hints(kind)
        self.names = [each.name for each in declared]
        self._defaults: list[Any] = []
        for each in declared:
            made = each.default_factory
            self._defaults.append(each.default if made is dataclasses.MISSING else made())
        codecs = [_codec(types_of[name]) for name in self.names]
        self._dumps = [codec.dump for codec in codecs]
        self._loads = {name: codec.load for name, codec in zip(self.names, codecs, strict=True)}
        missing = dataclasses.MISSING
        self._needed = [n for n, d in zip(self.names, self._defaults, strict=True) if d is missing]
        get = operator.attrgetter(*self.names) if self.names else lambda _: ()
        self._values = (lambda record: (get(record),)) if len(self.names) == 1 else get

    def dump(self, record: Any) -> dict[str, Json]:
        """Return a record's values but for those that are the default: there are many tasks."""
        told = zip(self.names, self._values(record), self._defaults, self._dumps, strict=True)
        return {
            name: value if write is None else write(value)
            for name, value, default, write in told
            if value is not default and value != default
        }

    def dump_all(self, record: Any) -> dict[str, Json]:
        told = zip(self.names, self._values(record), self._dumps, strict=True)
        return {name: value if write is None else write(value) for name, value, write in told}

    def load(self, values: Json) -> Any:
        name = self._kind.__name__
        if not isinstance(values, dict):
            raise _unlike(values, name)
        if missing := [needed for needed in self._needed if needed not in values]:
            raise ValueError(f"{name} has no field {missing[0]!r}")
        loaded = {}
        field = ""
        try:
            for field, value in values.items():
                loaded[field] = self._loads[field](value)
        except (ValueError, TypeError, KeyError) as error:
            if field not in self._loads:
                raise ValueError(f"{name} has a field {field!r}, which is not known") from None
            raise ValueError(f"{name}.{field}: {error}") from error
        return self._kind(**loaded)


def _fields(kind: Any) -> _Fields:
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = _Fields(kind)
    return found
