"""Parquet, by row group: a range decodes the row groups that it touches, and no others.

The last row groups stay decoded (up to 1 GiB, of all files), since tasks come in random order; write
row groups of some 64 k rows to keep the cost of such a jump low. Where a row group cannot be
decoded, all of its records are broken. `arrow.py` says what each type becomes.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from .arrow import Column, Types, ways_out_of
from .file_reader import FileReader, check_columns, names_of, pairs_of
from .files import DataFile
from .missing import Missing, named
from .reader import Columns

_CACHE_NBYTES = 1 << 30
_DTYPES = ("int64", "float64", "str")
Group = Mapping[str, Column]


def parquet_reader(
    files: Sequence[DataFile],
    columns: str | Sequence[str] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    missing: str | Mapping[str, Any] | None = None,
) -> FileReader:
    """Columns of Parquet files."""
    _pyarrow()
    types, chosen = pairs_of(dtypes), Missing.parse(missing)
    if bad := sorted(set(types.values()) - set(_DTYPES)):
        raise UsageError(f"dtypes knows {', '.join(_DTYPES)}, not {bad[0]!r}.")
    wanted, decoded = tuple(names_of(columns)), Decoded()
    return FileReader(
        {f.name: partial(ParquetFile, f, wanted, types, chosen, decoded) for f in files}
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            "Parquet is read with pyarrow, which is not installed: run `pip install edl[parquet]`."
        ) from error
    return pyarrow, pyarrow.parquet


class Decoded:
    """The row groups that were used last, of all files of a reader."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[int, int], tuple[Group, int]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoded, ()

    def get(self, key: tuple[int, int], make: Callable[[], tuple[Group, int]]) -> Group:
        """The group, made where it is not there."""
        with self._lock:
            if key not in self._groups:
                self._groups[key] = make()
                self._nbytes += self._groups[key][1]
                while len(self._groups) > 1 and self._nbytes > _CACHE_NBYTES:
                    self._nbytes -= self._groups.popitem(last=False)[1][1]
            self._groups.move_to_end(key)
            return self._groups[key][0]


class ParquetFile:
    """One file; only its footer is read at first."""

    def __init__(
        self,
        file: DataFile,
        columns: tuple[str, ...],
        dtypes: Mapping[str, str],
        missing: Missing,
        decoded: Decoded,
    ) -> None:
        file.nbytes()
        self._file, self._decoded = file, decoded
        self._arrow, self._parquet = _pyarrow()
        try:
            with file.open() as stream:
                footer = self._parquet.ParquetFile(stream)
                self._schema, metadata = footer.schema_arrow, footer.metadata
        except (self._arrow.ArrowException, OSError) as error:
            raise DataError(f"{file.name} is no Parquet file, or a torn one: {error}.") from error
        there = self._schema.names
        self._wanted = check_columns(file.name, columns, there)
        counts = Counter(there)
        if twice := [name for name in self._wanted if counts[name] > 1]:
            raise DataError(f"{file.name} has two columns of the name {twice[0]!r}: rename one.")
        missing.check(file.name, there)
        check_columns(file.name, list(dtypes), there)
        types = Types(self._arrow, file.name, missing, dtypes)
        fields = {name: self._schema.field(name) for name in self._wanted}
        self._converters = {n: types.converter(n, field.type) for n, field in fields.items()}
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._bounds = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
        self.records = int(self._bounds[-1])
        self._refuse_missing(groups, fields)

    def _refuse_missing(self, groups: Sequence[Any], fields: Mapping[str, Any]) -> None:
        """Raises DataError for all columns of which the statistics know that values are missing."""
        dtypes = {
            name: converter.dtype
            for name, converter in self._converters.items()
            if converter.fill is None and not self._arrow.types.is_nested(fields[name].type)
        }
        counts = _null_counts(groups, set(dtypes))
        lacking = {n: dtype for n, dtype in dtypes.items() if counts[n] and dtype is not None}
        if lacking:
            raise DataError(
                f"{self._file.name} misses values in columns of whole numbers or bools, "
                f"{named(list(lacking))}: {ways_out_of(lacking)}."
            )

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        groups = np.searchsorted(self._bounds, numbers, side="right") - 1
        parts = []
        for group in np.unique(groups).tolist():
            mine = numbers[groups == group]
            rows = mine - self._bounds[group]
            decoded = self._group(group, int(mine[0]))
            self._refuse(decoded, rows, mine)
            parts.append({name: self._rows(name, decoded[name], rows) for name in self._wanted})
        if not parts:
            decoded = self._convert(self._schema.empty_table().select(self._wanted))
            none = np.arange(0)
            parts = [{name: self._rows(name, decoded[name], none) for name in self._wanted}]
        if len(parts) == 1:
            return Columns(parts[0])
        return Columns({n: np.concatenate([part[n] for part in parts]) for n in self._wanted})

    def _refuse(self, group: Group, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Raises RecordError for the first of these rows that cannot be had."""
        faults: dict[int, str] = {}
        for name in reversed(self._wanted):
            faults.update(group[name].faults)
        if faults:
            broken = np.flatnonzero(np.isin(rows, np.fromiter(faults, np.int64, len(faults))))
            if len(broken):
                place = int(broken[0])
                raise RecordError(self._file.name, int(numbers[place]), faults[int(rows[place])])

    def _rows(self, name: str, column: Column, rows: NDArray[np.int64]) -> NDArray[Any]:
        chosen = column.values[rows]
        if self._converters[name].text and chosen.dtype == object:
            return chosen.astype(np.str_)
        return chosen

    def _group(self, group: int, asked: int) -> Group:
        """A row group, decoded. Raises RecordError for the record that was asked for."""
        try:
            return self._decoded.get((id(self), group), partial(self._decode, group))
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = f"row group {group} cannot be decoded: {error}"
            raise RecordError(self._file.name, asked, reason) from error

    def _decode(self, group: int) -> tuple[Group, int]:
        with self._file.open() as stream:
            opened = self._parquet.ParquetFile(stream)
            table = opened.read_row_group(group, columns=self._wanted, use_threads=False)
        made = self._convert(table)
        return made, int(table.nbytes) + sum(each.values.nbytes for each in made.values())

    def _convert(self, table: Any) -> Group:
        return {name: self._converters[name].column(table.column(name)) for name in self._wanted}


def _null_counts(groups: Sequence[Any], names: set[str]) -> Counter[str]:
    """How many values are missing in these columns, as far as statistics tell."""
    found: Counter[str] = Counter()
    for group in groups if names else ():
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema in names:
                statistics = column.statistics
                if statistics is not None and statistics.has_null_count:
                    found[column.path_in_schema] += statistics.null_count
    return found
