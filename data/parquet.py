"""Parquet, by row group: each is decoded once, and what it becomes is kept for whoever reads next.

Tasks come in random order and are small beside a row group, so that a decoded one is written to
disk as it is in memory and mapped (`decoded.py`): by the processes of a job together, up to
`cache_gib`. A range converts the rows that it asks for, and no others. Where a row group cannot be
decoded, all of its records are broken. `arrow.py` says what each type becomes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from ..common.extras import install
from .arrow import Converter, Types
from .arrow_values import in_numpys_texts, joined, owned, ways_out_of
from .declared import declared
from .decoded import Batches, Decoded, Group
from .exact import Values
from .file_reader import FileReader, check_columns, names_of, pairs_of
from .files import DataFile
from .merge import merged
from .missing import Missing, named
from .reader import Columns
from .schema import NO_SCHEMA, STORED, Field, Schema

_BATCH_ROWS = 1 << 17  # decoded at once: of 32,768 rows 40 columns take a fifth longer


def parquet_reader(
    files: Sequence[DataFile],
    columns: str | Sequence[str] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    missing: str | Mapping[str, Any] | None = None,
    cache_gib: float | str = 16.0,
    schema: Schema = NO_SCHEMA,
) -> FileReader:
    """Read columns of Parquet files. `cache_gib`: so much of decoded row groups is kept on disk."""
    _pyarrow()
    types, chosen = pairs_of(dtypes), Missing.parse(missing)
    known = declared(schema, types, chosen)
    try:
        limit = float(cache_gib)
        if not 0 <= limit < float("inf"):
            raise ValueError
    except ValueError as error:
        raise UsageError(f"cache_gib must be a number of GiB, not {cache_gib!r}.") from error
    wanted, decoded = tuple(names_of(columns)), Decoded(int(limit * (1 << 30)))
    said = _Said(wanted, tuple(types), known, chosen)
    openers = {f.name: partial(ParquetFile, f, said, decoded) for f in files}
    return FileReader(openers, known, chosen)


@dataclass(frozen=True)
class _Said:
    """What a user says of the columns: those wanted, those of `dtypes=`, their types."""

    columns: tuple[str, ...]
    dtypes: tuple[str, ...]
    declared: Schema
    missing: Missing


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"Parquet is read with pyarrow, which is not installed: {install('parquet')}."
        ) from error
    return pyarrow, pyarrow.parquet


class ParquetFile:
    """A Parquet file; only its footer is read at first."""

    def __init__(self, file: DataFile, said: _Said, decoded: Decoded) -> None:
        file.nbytes()
        self._file, self._decoded = file, decoded
        self._arrow, self._parquet = _pyarrow()
        try:
            with file.open() as stream:
                footer = self._parquet.ParquetFile(stream)
                self._schema, self._metadata = footer.schema_arrow, footer.metadata
        except (self._arrow.ArrowException, OSError) as error:
            raise DataError(f"{file.name} is no Parquet file, or a torn one: {error}.") from error
        metadata = self._metadata
        self._groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._bounds = np.cumsum([0, *(group.num_rows for group in self._groups)], dtype=np.int64)
        self.records = int(self._bounds[-1])
        self._converters: dict[str, Converter] = {}
        self.names: list[str] = []
        self.stored = NO_SCHEMA
        if self.records:  # else its types say nothing: pandas has null of each column of objects
            self._find(said)

    def _find(self, said: _Said) -> None:
        """Find the wanted columns and their types. Raises DataError."""
        file, there = self._file, self._schema.names
        self.names = check_columns(file.name, said.columns, there)
        counts = Counter(there)
        if twice := [name for name in self.names if counts[name] > 1]:
            raise DataError(f"{file.name} has two columns of the name {twice[0]!r}: rename one.")
        said.missing.check(file.name, there)
        check_columns(file.name, said.dtypes, there)
        self._types = Types(self._arrow, file.name)
        self._kinds = {name: self._schema.field(name).type for name in self.names}
        stored = []
        for name, kind in self._kinds.items():
            own, known = self._types.stored(name, kind), said.declared.get(name)
            if known is not None and self._types.casts(known, kind):
                stored.append(known)
            elif own is not None:
                stored.append(Field(name, own, found=STORED))
        self.stored = Schema(tuple(stored))
        # Batches would have dictionaries of their own, for which a file of Arrow has no place.
        self._is_whole = any(_has_dictionary(self._arrow.types, k) for k in self._kinds.values())
        columns_key = hashlib.sha256(json.dumps(self.names).encode()).hexdigest()[:16]
        self._kind = f"{columns_key}.arrow"

    def hold(self, schema: Schema) -> None:
        """Take the types that columns are brought to. Raises DataError where one never fits."""
        merged([(self._file.name, self.stored)], schema)
        for name in self.names:
            column = schema.get(name)
            if column is None:
                raise self._types.unknown(name, self._kinds[name])
            self._converters[name] = self._types.converter(column, self._kinds[name])
        self._refuse_missing()

    def _refuse_missing(self) -> None:
        """Refuse missing values early.

        Raises DataError for all columns of which the statistics know that values are missing.
        """
        dtypes = {
            name: converter.dtype
            for name, converter in self._converters.items()
            if converter.fill is None and not self._arrow.types.is_nested(self._kinds[name])
        }
        counts = _null_counts(self._groups, set(dtypes))
        all_null = {n for n, kind in self._kinds.items() if self._arrow.types.is_null(kind)}
        lacking = {
            name: dtype
            for name, dtype in dtypes.items()
            if dtype is not None and (counts[name] or name in all_null)
        }
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
            try:
                parts.append(self._rows(self._group(group), mine - self._bounds[group], mine))
            except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
                reason = f"row group {group} cannot be decoded: {error}"
                raise RecordError(self._file.name, int(mine[0]), reason) from error
        if not parts:
            table = self._schema.empty_table().select(self.names)
            parts = [self._rows(Group(table), numbers, numbers)]
        return Columns({name: joined([part[name] for part in parts]) for name in self.names})

    def _rows(
        self, group: Group, rows: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> dict[str, Values]:
        """Return these rows of a group.

        Raises RecordError for the first of them that cannot be had.
        """
        low, high = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        whole = high - low == len(rows)
        arrays, faults = {}, dict[int, str]()
        for name in reversed(self.names):
            converter = self._converters[name]
            values, broken = group.column(name, converter, low, high)
            if not whole:
                values = values[rows - low]
            arrays[name] = in_numpys_texts(values) if converter.text else owned(values)
            faults.update(broken)
        if faults:
            places = np.isin(rows - low, np.fromiter(faults, np.int64, len(faults)))
            if places.any():
                place = int(np.flatnonzero(places)[0])
                fault = faults[int(rows[place]) - low]
                raise RecordError(self._file.name, int(numbers[place]), fault)
        return {name: arrays[name] for name in self.names}

    def _group(self, group: int) -> Group:
        def decode() -> Batches:
            with self._file.open(ahead=self._spans(group)) as stream:
                opened = self._parquet.ParquetFile(
                    stream, metadata=self._metadata, pre_buffer=False
                )
                # From afar the first columns are decoded while others come.
                chosen = {"columns": self.names, "use_threads": not self._file.is_local}
                if self._is_whole:
                    table = opened.read_row_group(group, **chosen)
                    yield from table.unify_dictionaries().combine_chunks().to_batches()
                else:
                    yield from opened.iter_batches(_BATCH_ROWS, row_groups=[group], **chosen)

        rows = int(self._bounds[group + 1] - self._bounds[group])
        return self._decoded.get(self._file, f"{group}-{self._kind}", rows, decode)

    def _spans(self, group: int) -> list[tuple[int, int]]:
        """Return where the chunks of the wanted columns lie in the file."""
        wanted, found = set(self.names), []
        chunks = self._metadata.row_group(group)
        for chunk in map(chunks.column, range(chunks.num_columns)):
            path = chunk.path_in_schema
            if path in wanted or any(path[:at] in wanted for at in _dots(path)):
                start = chunk.data_page_offset
                if chunk.has_dictionary_page:
                    start = min(start, chunk.dictionary_page_offset)
                found.append((start, start + chunk.total_compressed_size))
        return found


def _has_dictionary(is_: Any, kind: Any) -> bool:
    if is_.is_dictionary(kind):
        return True
    inner = getattr(kind, "value_type", None) or getattr(kind, "storage_type", None)
    return inner is not None and _has_dictionary(is_, inner)


def _dots(path: str) -> list[int]:
    return [at for at, sign in enumerate(path) if sign == "."]


def _null_counts(groups: Sequence[Any], names: set[str]) -> Counter[str]:
    """Return how many values are missing in these columns, as far as statistics tell."""
    found: Counter[str] = Counter()
    for group in groups if names else ():
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema in names:
                statistics = column.statistics
                if statistics is not None and statistics.has_null_count:
                    found[column.path_in_schema] += statistics.null_count
    return found
