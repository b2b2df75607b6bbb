"""Parquet, by row group: a range decodes the row groups that it touches, and no others.

The last row groups stay decoded (up to 256 MiB per file), since tasks come in random order; write
row groups of some 64 k rows to keep the cost of such a jump low. Where a row group cannot be
decoded, all of its records are broken. Whole numbers with nulls are float64 with NaN in the whole
file, strings with nulls have "".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError
from .file_reader import FileReader, check_columns, names_of
from .files import DataFile
from .reader import Columns

_CACHE_NBYTES = 256 << 20


def parquet_reader(
    files: Sequence[DataFile], columns: str | Sequence[str] | None = None
) -> FileReader:
    """Columns of Parquet files; `columns`: those wanted, of all."""
    _pyarrow()
    return FileReader({f.name: partial(ParquetFile, f, tuple(names_of(columns))) for f in files})


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            "Parquet is read with pyarrow, which is not installed: run `pip install edl[parquet]`."
        ) from error
    return pyarrow, pyarrow.parquet


class ParquetFile:
    """One file; only its footer is read at first."""

    def __init__(self, file: DataFile, columns: tuple[str, ...]) -> None:
        file.nbytes()
        self._file = file
        self._arrow, self._parquet = _pyarrow()
        try:
            with file.open() as stream:
                footer = self._parquet.ParquetFile(stream)
                self._schema, metadata = footer.schema_arrow, footer.metadata
        except (self._arrow.ArrowException, OSError) as error:
            raise DataError(f"{file.name} is no Parquet file, or a torn one: {error}.") from error
        self._wanted = check_columns(file.name, columns, self._schema.names)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._bounds = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
        self._may_be_null = _columns_with_nulls(groups)
        self.records = int(self._bounds[-1])
        self._decoded: OrderedDict[int, Columns] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        groups = np.searchsorted(self._bounds, numbers, side="right") - 1
        parts = []
        for group in np.unique(groups).tolist():
            mine = numbers[groups == group]
            decoded = self._group(group, int(mine[0]))
            parts.append({name: decoded[name][mine - self._bounds[group]] for name in decoded})
        if not parts:
            empty = self._schema.empty_table().select(self._wanted)
            return self._convert(empty)
        return Columns({n: np.concatenate([part[n] for part in parts]) for n in self._wanted})

    def _group(self, group: int, asked: int) -> Columns:
        """A row group, decoded. Raises RecordError for the record that was asked for."""
        with self._lock:
            if group in self._decoded:
                self._decoded.move_to_end(group)
                return self._decoded[group]
            try:
                with self._file.open() as stream:
                    opened = self._parquet.ParquetFile(stream)
                    table = opened.read_row_group(group, columns=self._wanted, use_threads=False)
            except (self._arrow.ArrowException, OSError) as error:
                reason = f"row group {group} cannot be decoded: {error}"
                raise RecordError(self._file.name, asked, reason) from error
            self._decoded[group] = self._convert(table)
            while len(self._decoded) > 1 and _nbytes(self._decoded.values()) > _CACHE_NBYTES:
                self._decoded.popitem(last=False)
            return self._decoded[group]

    def _convert(self, table: Any) -> Columns:
        return Columns({name: self._column(name, table.column(name)) for name in self._wanted})

    def _column(self, name: str, column: Any) -> NDArray[Any]:
        types = self._arrow.types
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type
        if types.is_string(kind) or types.is_large_string(kind):
            texts = column.fill_null("").to_numpy(zero_copy_only=False)
            return np.asarray(texts, dtype=np.str_)
        if types.is_fixed_size_list(kind):
            flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
            return np.asarray(flat).reshape(len(column), kind.list_size)
        if types.is_decimal(kind):
            column = column.cast(self._arrow.float64())
        if types.is_integer(kind) and name in self._may_be_null:
            column = column.cast(self._arrow.float64(), safe=False)
        return np.asarray(column.to_numpy(zero_copy_only=False))


def _columns_with_nulls(groups: Sequence[Any]) -> set[str]:
    """Columns with a null in any row group, or without statistics to tell."""
    found = set()
    for group in groups:
        for i in range(group.num_columns):
            column = group.column(i)
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                found.add(column.path_in_schema)
    return found


def _nbytes(decoded: Any) -> int:
    return sum(array.nbytes for columns in decoded for array in columns.values())
