"""Records as columns: in which form each is, and values of a schema's types in that form again.

Records are a table; or dicts, whose columns are their keys; or values, which are one column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import UsageError
from ..common.ragged import Ragged
from ..data.exact import TIMES, Values
from .servable import Typed

FORMS = ("table", "dicts", "values")
RECORD = "record"  # the one column of records that are bytes or texts


class Kind(NamedTuple):
    """A column as feed is to get it.

    `dtype`: by numpy's name. `lists`: of lists of any length, "ragged", "arrays" (objects, each an
    array) or "lists" (Python's).
    """

    dtype: str
    lists: str = ""


def as_table(records: Any) -> tuple[str, dict[str, Values]]:
    """Return the form of the records, and their columns."""
    if isinstance(records, Mapping):
        return "table", {str(name): _as_column(records[name]) for name in records}
    if records and isinstance(records[0], Mapping):
        names = dict.fromkeys(name for record in records for name in record)
        return "dicts", {
            name: _stacked([record[name] for record in records if name in record])
            for name in names
            if all(name in record for record in records)
        }
    return "values", {RECORD: _stacked(list(records))}


def _as_column(values: Any) -> Values:
    return values.own() if isinstance(values, Ragged) else np.asarray(values)


def _stacked(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as a column: an array where they have one shape, else one of objects."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values) and len({(a.dtype, a.shape) for a in arrays}) == 1:
        return np.stack(arrays)
    if all(isinstance(value, bool | int | float | np.number) for value in values):
        return np.asarray(values)
    column = np.empty(len(values), object)
    for place, each in enumerate(values):
        column[place] = each
    return column


def kind_of(values: Values) -> Kind:
    """Return the form in which records have a column, whatever its type."""
    if isinstance(values, Ragged):
        return Kind(kind_of(values.values).dtype, "ragged")
    if values.dtype.kind == "O":
        elements = [each for each in values.ravel().tolist() if each is not None]
        for python, lists in ((np.ndarray, "arrays"), (list, "lists")):
            if elements and all(isinstance(each, python) for each in elements):
                inner = next((each for each in elements if len(each)), elements[0])
                dtype = kind_of(inner).dtype if python is np.ndarray else "|O"
                return Kind("<U0" if dtype in ("T", "|O") else dtype, lists)
        texts = all(isinstance(each, str) for each in elements)
        return Kind("|O" if texts else "|S0")
    if values.dtype.kind in "UT":
        return Kind("<U0" if values.dtype.kind == "U" else "T")
    return Kind("|S0" if values.dtype.kind == "S" else values.dtype.newbyteorder("=").str)


def formed(values: Values, kind: Kind) -> Values:
    """Return values of a type of a schema in the form that feed has had. Raises UsageError."""
    if not isinstance(values, Ragged):
        return _cast(values, kind.dtype)
    ragged = values.replace(_cast(values.values, kind.dtype))
    if kind.lists == "arrays":
        return np.asarray(ragged)
    if kind.lists == "lists":
        rows = np.empty(len(ragged), object)
        for place, each in enumerate(ragged):
            rows[place] = each.tolist()
        return rows
    return ragged


def _cast(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    if values.dtype.kind == "O" or dtype in ("|S0", "<U0"):
        return values  # bytes, and texts too wide for numpy's own
    if dtype == "T":
        return values.astype(np.dtypes.StringDType())
    wanted = np.dtype(dtype)
    if values.dtype.kind in "Mm" and values.dtype != wanted:
        found = values.astype(wanted)
        changed = (found.astype(values.dtype) != values) & ~np.isnat(values)
        if changed.any():
            first = values[changed].ravel()[0]
            raise UsageError(f"a time has {first}, and in training they were of {wanted}")
        return found
    return values.astype(wanted, copy=False)


def empty(column: Typed, count: int) -> Values:
    """Return values that stand for those of a label."""
    type_ = column.field.type
    dtype = type_.dtype
    if type_.lists:
        return Ragged.of(np.empty(0, dtype), np.zeros(count, np.int64))
    value: Any = 0
    if type_.kind in TIMES:
        value = "NaT"
    elif dtype.kind in "UO":
        value = b"" if type_.kind == "bytes" else ""
    return np.full((count, *(max(size, 0) for size in column.shape)), value, dtype)
