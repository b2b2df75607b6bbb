"""Which columns a definition's feed reads, and records made of columns that a request brings.

A feed is run in the mode "predict" on a few records of the training data, through a mapping that
notes what is read of it. What is read is asked for at serving, but for two kinds of columns:

- without which the features are the same (`records["label"] if "label" in records else None`);
- the label of a feed that reads it in every mode: other values of it change the labels and no
  feature. Zeros, or empty texts, stand for it then.

Records that are no table (dicts of a TFRecord, or bytes) are columns by their keys, or one column
"record".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError, UsageError
from ..common.foreign import must_be
from ..data.reader import Columns, Records
from ..distill.tree import parts_of
from .others import told_as
from .servable import Column

Feed = Callable[[Any, str], tuple[Any, Any]]
FORMS = ("table", "dicts", "values")
RECORD = "record"  # the one column of records that are bytes or texts
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


class _Kind(NamedTuple):
    """A column as feed is to get it: `dtype` by numpy's name; "lists" are of such values."""

    dtype: str
    lists: bool = False


def told_of(what: str) -> contextlib.AbstractContextManager[None]:
    """Let whatever the user's code raises be a UsageError that begins so."""
    return told_as(UsageError, what)


@dataclass(frozen=True)
class Asked:
    """The columns that a request must bring, and how feed's records are made of them."""

    columns: tuple[Column, ...]
    form: str  # of FORMS
    kinds: Mapping[str, _Kind]
    filled: Mapping[str, Column]  # labels that feed reads and that nobody knows at serving

    def records(self, inputs: Mapping[str, NDArray[Any]]) -> Records:
        """Return what feed gets, of the columns of a request, which are as `columns` says."""
        count = len(next(iter(inputs.values()), ()))
        whole = {column.name: inputs[column.name] for column in self.columns}
        for name, column in self.filled.items():
            empty: Any = b"" if column.datatype == "BYTES" else 0
            shape = count, *(max(size, 0) for size in column.shape)
            whole[name] = np.full(shape, empty, DTYPES.get(column.datatype, np.dtype(object)))
        made = {name: _typed(values, self.kinds[name]) for name, values in whole.items()}
        if self.form == "table":
            return Columns(made)
        if self.form == "values":
            return list(made[RECORD])
        return [{name: values[i] for name, values in made.items()} for i in range(count)]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "form": self.form,
            "columns": [_as_json(column) for column in self.columns],
            "filled": [_as_json(column) for column in self.filled.values()],
            "kinds": {name: [*kind] for name, kind in self.kinds.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Asked:
        """Return what `to_json` made. Raises KeyError, TypeError or ValueError for other values."""
        must_be(values, {"columns": [dict], "filled": [dict], "form": str, "kinds": dict})
        columns, filled = (
            tuple(column_of(each) for each in values[name]) for name in ("columns", "filled")
        )
        kinds = dict[str, _Kind]()
        for name, kind in values["kinds"].items():
            must_be(kind, list, name)
            dtype, lists = kind
            kinds[name] = _Kind(dtype if dtype == "T" else np.dtype(str(dtype)).str, bool(lists))
        if values["form"] not in FORMS or {c.name for c in (*columns, *filled)} != set(kinds):
            raise ValueError(f"columns of the form {values['form']!r} are of other names")
        return cls(columns, values["form"], kinds, {column.name: column for column in filled})


def _as_json(column: Column) -> dict[str, Any]:
    return {**column._asdict(), "shape": [*column.shape]}


def column_of(values: Mapping[str, Any]) -> Column:
    """Return a column out of JSON. Raises KeyError, TypeError or ValueError."""
    must_be(values, {"name": str, "datatype": str, "shape": list}, "a column")
    shape = tuple(values["shape"])
    if values["datatype"] not in (*DTYPES, "BYTES") or not all(type(n) is int for n in shape):
        raise ValueError(f"the column {values['name']!r} is {values['datatype']} {list(shape)}")
    return Column(values["name"], values["datatype"], shape)


def asked(feed: Feed, records: Records) -> Asked:
    """Return what feed must get to predict, found on a few records (at least one).

    Raises UsageError where a column cannot be a tensor of a request; what feed raises passes.
    """
    form, table = _as_table(records)
    read = _Reads(table)
    features, labels = feed(_as_form(read, form), "predict")
    names = [name for name in table if name in read.noted]
    needed, filled = list[str](), list[str]()
    for name in names:
        if not _does_without(feed, table, form, name, features):
            label = labels is not None and _is_label(feed, table, form, name, features, labels)
            (filled if label else needed).append(name)
    kinds = {name: _kind(name, table[name]) for name in (*needed, *filled)}
    found = {name: _column(name, table[name], kinds[name]) for name in kinds}
    return Asked(
        tuple(found[name] for name in needed), form, kinds, {name: found[name] for name in filled}
    )


class _Reads(Columns):
    """Records that note the columns that are read of them."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], noted: set[str] | None = None) -> None:
        super().__init__(arrays)
        self.noted: set[str] = set() if noted is None else noted

    def __getitem__(self, name: str) -> NDArray[Any]:
        self.noted.add(name)
        return super().__getitem__(name)

    def take(self, indices: NDArray[np.int64] | slice) -> Columns:
        return _Reads(super().take(indices), self.noted)


class _Record(Mapping[str, Any]):
    """One record of a table whose reads it notes."""

    def __init__(self, table: Mapping[str, NDArray[Any]], number: int) -> None:
        self._table, self._number = table, number

    def __getitem__(self, name: str) -> Any:
        return self._table[name][self._number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _as_table(records: Any) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the form of the records, and their columns."""
    if isinstance(records, Mapping):
        return "table", {str(name): np.asarray(records[name]) for name in records}
    if records and isinstance(records[0], Mapping):
        names = dict.fromkeys(name for record in records for name in record)
        return "dicts", {
            name: _stacked([record[name] for record in records if name in record])
            for name in names
            if all(name in record for record in records)
        }
    return "values", {RECORD: _stacked(list(records))}


def _stacked(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as a column: an array where they have one shape, else one of objects."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values) and len({(a.dtype, a.shape) for a in arrays}) == 1:
        return np.stack(arrays)
    if all(isinstance(value, bool | int | float | np.number) for value in values):
        return np.asarray(values)
    column = np.empty(len(values), object)
    column[:] = [np.asarray(v) if isinstance(v, list) else v for v in values]
    return column


def _as_form(table: Mapping[str, NDArray[Any]], form: str) -> Any:
    if form == "table":
        return table
    if form == "values":
        return list(table[RECORD])
    return [_Record(table, number) for number in range(len(next(iter(table.values()), ())))]


def _does_without(
    feed: Feed, table: Mapping[str, NDArray[Any]], form: str, name: str, features: Any
) -> bool:
    """Tell whether feed makes the same features where a column is not there."""
    rest = {other: values for other, values in table.items() if other != name}
    if not rest:
        return False
    made = _tried(feed, rest, form)
    return made is not None and _same(made[0], features)


def _is_label(
    feed: Feed,
    table: Mapping[str, NDArray[Any]],
    form: str,
    name: str,
    features: Any,
    labels: Any,
) -> bool:
    """Tell whether other values of a column change the labels and no feature."""
    made = _tried(feed, {**table, name: _others(table[name])}, form)
    return made is not None and _same(made[0], features) and not _same(made[1], labels)


def _others(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of the same type, each of them another."""
    if values.dtype.kind == "b":
        return ~values
    if values.dtype.kind in "iuf":
        return np.where(values == 0, 1, 0).astype(values.dtype)
    return np.roll(values, 1)


def _tried(feed: Feed, table: Mapping[str, NDArray[Any]], form: str) -> tuple[Any, Any] | None:
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


def _kind(name: str, values: NDArray[Any]) -> _Kind:
    if values.dtype.kind != "O":
        return _Kind("T" if values.dtype.kind == "T" else values.dtype.newbyteorder("=").str)
    elements = [value for value in values.ravel().tolist() if value is not None]
    if elements and all(isinstance(value, np.ndarray) for value in elements):
        inner = elements[0].dtype
        if inner.kind != "O" and all(value.ndim == 1 for value in elements):
            return _Kind("<U0" if inner.kind in "UT" else inner.newbyteorder("=").str, True)
    elif all(isinstance(value, str) for value in elements):
        return _Kind("|O")
    elif all(isinstance(value, bytes) for value in elements):
        return _Kind("|S0")
    raise UsageError(
        f"the column {name!r}, which feed reads, holds {type(elements[0]).__name__} objects, which "
        "no request can bring: read it with a type (--data_reader_params dtypes=COLUMN:TYPE)"
    )


def _column(name: str, values: NDArray[Any], kind: _Kind) -> Column:
    if kind.lists:
        return Column(name, datatype(np.dtype(kind.dtype)), (-1,))
    return Column(name, datatype(values.dtype), values.shape[1:])


def _typed(values: NDArray[Any], kind: _Kind) -> NDArray[Any]:
    """Return a column of a request as feed has it in training. Raises UsageError."""
    if kind.lists:
        flat = _typed(values.reshape(-1), _Kind(kind.dtype)).reshape(values.shape)
        column = np.empty(len(flat), object)
        column[:] = list(flat)
        return column
    wanted = np.dtype(np.dtypes.StringDType()) if kind.dtype == "T" else np.dtype(kind.dtype)
    if values.dtype.kind not in "OSUT":
        return values.astype(wanted, copy=False)
    if wanted.kind == "S":
        encoded = [v.encode() if isinstance(v, str) else bytes(v) for v in values.ravel().tolist()]
        made = np.empty(len(encoded), object)
        made[:] = encoded
        return made.reshape(values.shape)
    texts = [_text(value) for value in values.ravel().tolist()]
    try:
        if wanted.kind == "U":  # as wide as these are
            return np.array(texts, np.str_).reshape(values.shape)
        return np.array(texts, object).astype(wanted).reshape(values.shape)
    except ValueError as error:
        raise UsageError(f"a value is no {wanted}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the text {value!r} is not UTF-8: {error.reason}") from error


def sample(reader: Any, count: int) -> Records:
    """Return the first records of what a reader reads, at most `count`. Raises EdlError."""
    source = next((each for each in reader.sources() if each.records), None)
    if source is None:
        raise EdlError("the data has no record")
    found: Records = reader.read(source.name, 0, min(count, source.records))
    return found
