"""The seam between data and everything else: a reader counts records and reads ranges of them.

A data set is a list of sources (files, row groups, folders); a record is (source, number). The
master splits sources into tasks and never reads a record; workers read ranges. Tabular records come
by column (`Columns`), so that a `feed` works on whole numpy arrays; anything else is a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..common.ragged import Ragged
from .schema import NO_SCHEMA, Schema


@dataclass(frozen=True)
class Source:
    """A named run of records: `name` is what `read` takes; `records` how many it has."""

    name: str
    records: int


class Columns(Mapping[str, Any]):
    """A batch of tabular records: `records["age"]` is a numpy array of shape [len(records)].

    A column of lists is a `Ragged` of as many rows. `len()` is the number of records, not of
    columns; `names` are the columns.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any] | Ragged]) -> None:
        self._arrays = dict(arrays)
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of unequal length: {lengths}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._arrays)

    def take(self, indices: NDArray[np.int64] | slice) -> Columns:
        """Return the records at `indices`, in that order; of a slice the same memory."""
        taken = Columns.__new__(Columns)  # of equal length as before: no need to look
        taken._arrays = {name: array[indices] for name, array in self._arrays.items()}
        return taken

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; there are {', '.join(self._arrays)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values()), ()))

    def __contains__(self, name: object) -> bool:
        return name in self._arrays


Records = Columns | list[Any]


def take(records: Records, indices: NDArray[np.int64] | slice) -> Records:
    """Return the records at `indices`, in that order."""
    if isinstance(records, Columns):
        return records.take(indices)
    if isinstance(indices, slice):
        return records[indices]
    return [records[i] for i in indices]


def about_text(records: object, error: Exception) -> str:
    """Return which column is of text where numbers were wanted; else "".

    That is said only where `error` may be of it.
    """
    if not isinstance(records, Columns):
        return ""
    said = str(error)
    typed = any(word in said for word in ("str_", "<U", "convert string", "object_", "ufunc"))
    mixed: list[str] = []
    texts: list[str] = []
    for name in records.names:
        column = records[name]
        values = column.values if isinstance(column, Ragged) else column
        if values.dtype.kind in "UO":
            strange = [value for value in values.ravel().tolist() if not _is_number(value)]
            if strange:
                some = len(strange) < values.size
                (mixed if some else texts).append(f"{name!r}, as {strange[0]!r} shows")
    found = mixed or (texts if typed else [])
    if not found:
        return ""
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        f"of text and no numbers: column {'; column '.join(found[:5])}{more}; where it should "
        "be of numbers, say dtypes=COLUMN:float64, and such a record is named as broken"
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def schema_of(reader: object) -> Schema:
    """Return the types of a reader's columns; none where it has no schema, as one of one's own.

    It may read all records to find them. Raises DataError.
    """
    found: Schema = getattr(reader, "schema", NO_SCHEMA)
    return found


class RecordReader(Protocol):
    """A reader of records, as `open_reader` returns it.

    A definition's own `reader(path, **params)` returns one, too.
    """

    def sources(self) -> Sequence[Source]:
        """Return all sources in a fixed order.

        Raises DataError where one cannot be opened or is empty.
        """
        ...

    def read(self, source: str, start: int, end: int, skip: Collection[int] = ()) -> Records:
        """Return records [start, end) of a source, in order, less the numbers in `skip`.

        Raises RecordError for the first broken record that is not in `skip`; the same call with
        that number in `skip` then succeeds or names the next one.
        """
        ...
