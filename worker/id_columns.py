"""Columns of the data that predictions carry beside the outputs, as they are there: --id_columns.

csv        a column each; no lists, no bytes
parquet    a column each, of its type; lists as lists
npy        ids-TASK.NAME.npy each; no lists, no bytes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, DefinitionError, UsageError
from ..common.ragged import Ragged
from ..data.exact import Values, type_of
from ..data.missing import named
from ..data.reader import Columns, Records
from ..data.schema import NO_SCHEMA, Schema, Type

OWN = ("source", "record")  # columns that predictions have themselves


@dataclass(frozen=True)
class Ids:
    """The columns of some records by name, and the job's schema, which may know more of them."""

    columns: Mapping[str, Values] = field(default_factory=dict)
    schema: Schema = NO_SCHEMA

    def check(self, outputs: Mapping[str, object]) -> None:
        """Raise DefinitionError where an output has the name of a column."""
        if both := [name for name in self.columns if name in outputs]:
            raise DefinitionError(
                f"model: an output and a column of --id_columns are both called {both[0]!r}: give "
                "the output another name"
            )

    def texts(self) -> dict[str, list[str]]:
        """Return the values of each column as CSV has them."""
        return {name: _texts(values, self._is_moment(name)) for name, values in self._arrays()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns as arrays that a file can hold."""
        return {
            name: np.array(values.tolist(), np.str_) if values.dtype.kind in "OT" else values
            for name, values in self._arrays()
        }

    def arrow(self) -> dict[str, Any]:
        """Return the columns as those of Arrow."""
        import pyarrow as pa

        found = {}
        for name, values in self.columns.items():
            flat = values.values if isinstance(values, Ragged) else np.ascontiguousarray(values)
            column = _flat(flat.reshape(-1), self._is_moment(name))
            if isinstance(values, Ragged):
                column = pa.ListArray.from_arrays(pa.array(values.offsets, pa.int32()), column)
            else:
                for size in reversed(flat.shape[1:]):
                    column = pa.FixedSizeListArray.from_arrays(column, size)
            found[name] = column
        return found

    def _arrays(self) -> list[tuple[str, NDArray[Any]]]:
        found = []
        for name, values in self.columns.items():
            _check_single(name, type_of(values, name))
            assert isinstance(values, np.ndarray)
            found.append((name, values))
        return found

    def _is_moment(self, name: str) -> bool:
        column = self.schema.get(name)
        return column is not None and column.type.zone


def of_records(records: Records, names: Sequence[str]) -> dict[str, Values]:
    """Return these columns of records. Raises DataError where records have none of a name."""
    if isinstance(records, Columns):
        if lacking := [name for name in names if name not in records]:
            raise DataError(_lacking(lacking, records.names))
        return {name: records[name] for name in names}
    found: dict[str, Values] = {}
    for name in names:
        values = [_value(record, name) for record in records]
        is_list = any(isinstance(each, list | tuple | np.ndarray) for each in values)
        found[name] = Ragged.rows_of(values) if is_list else _single(values)
    return found


def _value(record: object, name: str) -> Any:
    if not isinstance(record, Mapping):
        raise DataError(
            f"--id_columns {name}: the reader's records are {type(record).__name__}, which have no "
            "columns"
        )
    if name not in record:
        raise DataError(_lacking([name], [*map(str, record)]))
    return record[name]


def _single(values: Sequence[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind != "S":  # which would lose zeros at the end
        return array
    found = np.empty(len(values), object)
    found[:] = values
    return found


def joined(parts: Sequence[Mapping[str, Values]]) -> dict[str, Values]:
    """Return the columns of all parts, one after the other; {} of no part."""
    return {name: _joined([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _joined(parts: Sequence[Values]) -> Values:
    if all(isinstance(part, Ragged) for part in parts):
        return Ragged.concatenated(part for part in parts if isinstance(part, Ragged))
    return np.concatenate([np.asarray(part) for part in parts])


def check(names: Sequence[str], first: Records, schema: Schema, form: str) -> None:
    """Check the columns before a job begins, on its first records or on none. Raises UsageError."""
    if own := [name for name in names if name in OWN]:
        raise UsageError(f"--id_columns {own[0]}: predictions have a column of that name.")
    if not first and not isinstance(first, Columns):
        return  # the first record is broken: the job will say so
    try:
        found = of_records(first, names)
    except DataError as error:
        raise UsageError(f"{error}.") from error
    if form == "parquet":
        return
    for name, values in found.items():
        known = schema.get(name)
        if known is not None:
            _check_single(name, known.type)
        elif isinstance(values, Ragged) or values.ndim > 1:
            _check_single(name, Type("text", lists=True))


def _check_single(name: str, type_: Type) -> None:
    if type_.is_list or type_.kind in ("bytes", "picture"):
        raise UsageError(
            f"--id_columns {name}: it is {type_}, which neither CSV nor .npy can hold here: say "
            "--prediction_format parquet."
        )


def _lacking(names: Sequence[str], there: Sequence[str]) -> str:
    return (
        f"--id_columns {', '.join(names)}: the data have no such column; they have {named(there)}"
    )


def _texts(values: NDArray[Any], is_moment: bool) -> list[str]:
    if values.dtype.kind in "Mm":
        texts = values.astype(str).tolist()
        return ["" if text == "NaT" else text + "Z" * is_moment for text in texts]
    return list(values.tolist() if values.dtype.kind in "OTU" else values.astype(str).tolist())


def _flat(values: NDArray[Any], is_moment: bool) -> Any:
    import pyarrow as pa

    if is_moment:
        return pa.array(values, pa.timestamp("us", "UTC"))
    return pa.array(values.tolist()) if values.dtype.kind in "OT" else pa.array(values)
