"""Which columns a definition's feed reads, and records made of columns that a request brings.

A feed is run in the mode "predict" on a few records of the training data, through a mapping that
notes what is read of it. What is read is asked for at serving, but for two kinds of columns:

- without which the features are the same (`records["label"] if "label" in records else None`);
- the label of a feed that reads it in every mode: other values of it change the labels and no
  feature. Zeros, or empty texts, stand for it then.

Of which type a column is says the schema of the job; of a column that it does not name, those
records do. What a request brings is brought to that exactly (brought.py).

Records that are no table (dicts of a TFRecord, or bytes) are columns by their keys, or one column
"record".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError, UsageError
from ..common.foreign import must_be
from ..common.ragged import Ragged
from ..data.exact import TIMES, Unfit, Values, bring, type_of
from ..data.reader import Columns, Records
from ..data.schema import NO_SCHEMA, Field, Schema, Type
from ..distill.tree import parts_of
from .brought import SAMPLED, brought
from .forms import FORMS, RECORD, Kind, as_table, empty, formed, kind_of
from .others import told_as
from .servable import Column, Typed

Feed = Callable[[Any, str], tuple[Any, Any]]
_NUMBERS = {
    **{np.dtype(f"i{n}"): f"INT{8 * n}" for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): f"UINT{8 * n}" for n in (1, 2, 4, 8)},
    **{np.dtype(f"f{n}"): f"FP{8 * n}" for n in (2, 4, 8)},
    np.dtype(bool): "BOOL",
}
DTYPES = {name: dtype for dtype, name in _NUMBERS.items()}


def datatype(dtype: np.dtype[Any]) -> str:
    """Return what the v2 protocol calls values of a dtype; all that are no numbers are BYTES."""
    return _NUMBERS.get(dtype.newbyteorder("="), "BYTES")


def told_of(what: str) -> contextlib.AbstractContextManager[None]:
    """Let whatever the user's code raises be a UsageError that begins so."""
    return told_as(UsageError, what)


@dataclass(frozen=True)
class Asked:
    """The columns that a request must bring, and how feed's records are made of them."""

    columns: tuple[Typed, ...]
    form: str  # of FORMS
    kinds: Mapping[str, Kind]
    filled: Mapping[str, Typed]  # labels that feed reads and that nobody knows at serving

    @property
    def schema(self) -> Schema:
        """The types of these columns."""
        return Schema(tuple(each.field for each in (*self.columns, *self.filled.values())))

    def records(self, inputs: Mapping[str, Values]) -> Records:
        """Return what feed gets, of the columns of a request. Raises UsageError."""
        count = len(next(iter(inputs.values()), ()))
        made = {each.name: self._made(each, inputs[each.name]) for each in self.columns}
        for name, column in self.filled.items():
            made[name] = formed(empty(column, count), self.kinds[name])
        if self.form == "table":
            return Columns(made)
        if self.form == "values":
            return list(made[RECORD])
        return [{name: values[i] for name, values in made.items()} for i in range(count)]

    def _made(self, column: Typed, values: Values) -> Values:
        found = brought(column.field, values)
        if not column.is_lists and found.shape[1:] != column.shape:
            raise UsageError(
                f"the input {column.name!r} has the shape {[*found.shape]}, and the model takes "
                f"{[-1, *column.shape]}"
            )
        return formed(found, self.kinds[column.name])

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it, but for the types, which `schema` has."""
        return {
            "form": self.form,
            "columns": [_as_json(column) for column in self.columns],
            "filled": [_as_json(column) for column in self.filled.values()],
            "kinds": {name: [*kind] for name, kind in self.kinds.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], schema: Schema = NO_SCHEMA) -> Asked:
        """Return what `to_json` made. Raises KeyError, TypeError or ValueError for other values.

        `schema`: has the types of these columns; those of an earlier version say it by their kinds.
        """
        must_be(values, {"columns": [dict], "filled": [dict], "form": str, "kinds": dict})
        kinds = dict[str, Kind]()
        for name, kind in values["kinds"].items():
            must_be(kind, list, name)
            dtype, lists = kind
            lists = lists if isinstance(lists, str) else "arrays" if lists else ""
            if lists not in ("", "ragged", "arrays", "lists"):
                raise ValueError(f"the column {name!r} is of {lists}")
            kinds[name] = Kind(dtype if dtype == "T" else np.dtype(str(dtype)).str, lists)
        columns, filled = (
            tuple(_typed_column(column_of(each), kinds, schema) for each in values[name])
            for name in ("columns", "filled")
        )
        if values["form"] not in FORMS or {c.name for c in (*columns, *filled)} != set(kinds):
            raise ValueError(f"columns of the form {values['form']!r} are of other names")
        return cls(columns, values["form"], kinds, {column.name: column for column in filled})


def _typed_column(column: Column, kinds: Mapping[str, Kind], schema: Schema) -> Typed:
    """Return a column that a file names, with its type. Raises KeyError, ValueError."""
    field = schema.get(column.name)
    if field is None:
        kind = kinds[column.name]
        single = type_of(np.empty(0, "U1" if kind.dtype in ("T", "|O") else kind.dtype))
        type_ = Type(single.kind, bool(kind.lists), () if kind.lists else column.shape)
        field = Field(column.name, type_, found=SAMPLED)
    made = _column(field, column.shape)
    if made != column:
        raise ValueError(f"the column {column.name!r} is {field.type}, and {tuple(column)}")
    return made


def _as_json(column: Column) -> dict[str, Any]:
    return {**column._asdict(), "shape": [*column.shape]}


def column_of(values: Mapping[str, Any]) -> Column:
    """Return a column out of JSON. Raises KeyError, TypeError or ValueError."""
    must_be(values, {"name": str, "datatype": str, "shape": list}, "a column")
    shape = tuple(values["shape"])
    if values["datatype"] not in (*DTYPES, "BYTES") or not all(type(n) is int for n in shape):
        raise ValueError(f"the column {values['name']!r} is {values['datatype']} {list(shape)}")
    return Column(values["name"], values["datatype"], shape)


def asked(feed: Feed, records: Records, schema: Schema = NO_SCHEMA) -> Asked:
    """Return what feed must get to predict, found on a few records (at least one).

    `schema`: the types of the columns that are known.

    Raises UsageError where a column cannot be a tensor of a request, or these records are none of
    the schema's; what feed raises passes.
    """
    form, table = as_table(records)
    table = {name: _as_known(schema.get(name), each, form) for name, each in table.items()}
    read = _Reads(table)
    features, labels = feed(_as_form(read, form), "predict")
    names = [name for name in table if name in read.noted]
    needed, filled = list[str](), list[str]()
    for name in names:
        if not _does_without(feed, table, form, name, features):
            label = labels is not None and _is_label(feed, table, form, name, features, labels)
            (filled if label else needed).append(name)
    fields = {name: _field(schema, name, table[name]) for name in (*needed, *filled)}
    kinds = {name: kind_of(table[name]) for name in fields}
    found = {
        name: _column(field, () if field.type.lists else table[name].shape[1:])
        for name, field in fields.items()
    }
    return Asked(
        tuple(found[name] for name in needed), form, kinds, {name: found[name] for name in filled}
    )


def brought_to(schema: Schema, records: Records) -> Records:
    """Return records with their columns as a schema has them. Raises UsageError."""
    form, table = as_table(records)
    known = {name: _as_known(schema.get(name), each, form) for name, each in table.items()}
    if form == "table":
        return Columns(known)
    if form == "values":
        return list(known[RECORD])
    return [
        {name: known[name][row] if name in known else value for name, value in record.items()}
        for row, record in enumerate(records)
    ]


def _as_known(field: Field | None, values: Values, form: str) -> Values:
    """Return a column of records that were read, as its field has it. Raises UsageError."""
    if field is None:
        return values
    try:
        found = bring(field, values)
    except Unfit as error:
        raise UsageError(f"record {error.row} of the sample: {error.why}") from error
    as_lists = form == "dicts" and kind_of(values).lists == "lists"
    return formed(found, Kind("<U0", "lists")) if as_lists else found


def _field(schema: Schema, name: str, values: Values) -> Field:
    """Return the field of a column that feed needs. Raises UsageError where it has no type."""
    field = schema.get(name)
    if field is not None:
        return field
    try:
        return Field(name, type_of(values, name), found=SAMPLED)
    except ValueError as error:
        raise UsageError(
            f"{error}: feed reads it, and no request can bring it: read it with a type "
            "(--data_reader_params dtypes=COLUMN:TYPE)"
        ) from error


class _Reads(Columns):
    """Records that note the columns that are read of them."""

    def __init__(self, arrays: Mapping[str, Values], noted: set[str] | None = None) -> None:
        super().__init__(arrays)
        self.noted: set[str] = set() if noted is None else noted

    def __getitem__(self, name: str) -> Any:
        self.noted.add(name)
        return super().__getitem__(name)

    def take(self, indices: NDArray[np.int64] | slice) -> Columns:
        return _Reads(super().take(indices), self.noted)


class _Record(Mapping[str, Any]):
    """One record of a table whose reads it notes."""

    def __init__(self, table: Mapping[str, Values], number: int) -> None:
        self._table, self._number = table, number

    def __getitem__(self, name: str) -> Any:
        return self._table[name][self._number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _as_form(table: Mapping[str, Values], form: str) -> Any:
    if form == "table":
        return table
    if form == "values":
        return list(table[RECORD])
    return [_Record(table, number) for number in range(len(next(iter(table.values()), ())))]


def _does_without(
    feed: Feed, table: Mapping[str, Values], form: str, name: str, features: Any
) -> bool:
    """Tell whether feed makes the same features where a column is not there."""
    rest = {other: values for other, values in table.items() if other != name}
    if not rest:
        return False
    made = _tried(feed, rest, form)
    return made is not None and _same(made[0], features)


def _is_label(
    feed: Feed,
    table: Mapping[str, Values],
    form: str,
    name: str,
    features: Any,
    labels: Any,
) -> bool:
    """Tell whether other values of a column change the labels and no feature."""
    made = _tried(feed, {**table, name: _others(table[name])}, form)
    return made is not None and _same(made[0], features) and not _same(made[1], labels)


def _others(values: Values) -> Values:
    """Return values of the same type, each of them another."""
    if isinstance(values, Ragged):
        return values.replace(np.asarray(_others(values.values)))
    if values.dtype.kind == "b":
        return ~values
    if values.dtype.kind in "iuf":
        return np.where(values == 0, 1, 0).astype(values.dtype)
    return np.roll(values, 1)


def _tried(feed: Feed, table: Mapping[str, Values], form: str) -> tuple[Any, Any] | None:
    """Return what feed makes of other records; None where it cannot use them."""
    with contextlib.suppress(Exception):  # the user's code may raise anything at what it lacks
        return feed(_as_form(Columns(table), form), "predict")
    return None


def _same(one: Any, other: Any) -> bool:
    """Tell whether two trees of arrays are equal."""
    try:
        mine, theirs = (parts_of(each, "features") for each in (one, other))
    except TypeError:
        return False
    return len(mine) == len(theirs) and all(
        a.name == b.name
        and a.values.dtype == b.values.dtype
        and np.array_equal(a.values, b.values, equal_nan=a.values.dtype.kind == "f")
        for a, b in zip(mine, theirs, strict=True)
    )


def _column(field: Field, shape: tuple[int, ...]) -> Typed:
    """Return the input for the values of a field. Raises UsageError where there is none."""
    type_ = field.type
    word = "BYTES" if type_.kind in TIMES else datatype(type_.dtype)
    if word == "BYTES" and type_.kind not in (*TIMES, "text", "bytes"):
        raise UsageError(f"the column {field.name!r} is {type_}, which no request can bring")
    return Typed.of(field, word, (-1,) if type_.lists else shape)


def sample(reader: Any, count: int) -> Records:
    """Return the first records of what a reader reads, at most `count`. Raises EdlError."""
    source = next((each for each in reader.sources() if each.records), None)
    if source is None:
        raise EdlError("the data has no record")
    found: Records = reader.read(source.name, 0, min(count, source.records))
    return found
