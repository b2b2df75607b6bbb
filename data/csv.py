"""CSV, with a line index: the file is scanned once as a stream and never held in memory.

The index has the byte offset of every 256th record; a range is read by one seek and one read.
Newlines within quotes are text. Types come from the head of the first file (int64, float64, str) or
from `dtypes`, and hold for all files. A value of another type is a broken record, in the head too as
long as nine of ten are numbers. A missing number ("" or NA) is NaN; where an int64 column of the
head misses one later, that is a broken record as well: say dtypes=name:float64.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from .file_reader import FileReader, check_columns, flag_of, names_of, pairs_of
from .files import DataFile, Seekable, cached
from .kernels import COUNT, csv_state, scan_csv
from .reader import Columns

_STRIDE = 256  # records between two offsets of the index: 8 bytes of memory per 256 records
_CHUNK_NBYTES = 1 << 22
_HEAD_NBYTES = 1 << 20
_HEAD_RECORDS = 10_000
_BROKEN_SHARE = 0.1  # a guess: of a numeric column's values, so many may be broken
_MISSING = frozenset(("", "NA", "N/A", "null", "NULL"))
_BOM = b"\xef\xbb\xbf"
_TYPES = ("int64", "float64", "str")
_BROKEN = (ValueError, OverflowError, csv.Error)  # UnicodeDecodeError is a ValueError


@dataclass(frozen=True)
class _Options:
    sep: str
    header: bool
    names: tuple[str, ...]
    columns: tuple[str, ...]
    dtypes: Mapping[str, str]
    encoding: str

    def parse(self, text: str) -> list[list[str]]:
        lines = io.StringIO(text, newline="\n")
        return [row for row in csv.reader(lines, delimiter=self.sep, strict=True) if row]


def csv_reader(
    files: Sequence[DataFile],
    sep: str = ",",
    columns: str | Sequence[str] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    header: bool | str = True,
    names: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
) -> FileReader:
    """Columns of CSV files.

    `columns`: those wanted, of all; `dtypes`: {column: int64 | float64 | str}; `header=False` with
    or without `names`: the first line is a record (the columns are c0, c1, ...).
    """
    sep = {"\\t": "\t", "tab": "\t"}.get(sep, sep)
    if len(sep) != 1 or not sep.isascii() or sep in '"\r\n':
        raise UsageError(f"The parameter sep must be one ASCII character, not {sep!r}.")
    types = pairs_of(dtypes)
    if bad := sorted(set(types.values()) - set(_TYPES)):
        raise UsageError(f"dtypes knows {', '.join(_TYPES)}, not {bad[0]!r}.")
    options = _Options(
        sep, flag_of(header, "header"), tuple(names_of(names)), tuple(names_of(columns)), types,
        encoding,
    )  # fmt: skip
    return FileReader({f.name: partial(CsvFile, f, files[0], options) for f in files})


def tsv_reader(
    files: Sequence[DataFile],
    columns: str | Sequence[str] | None = None,
    dtypes: str | Mapping[str, str] | None = None,
    header: bool | str = True,
    names: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
) -> FileReader:
    """CSV with a tab between the fields."""
    return csv_reader(files, "\t", columns, dtypes, header, names, encoding)


class CsvFile:
    """One file, indexed. `first` is the file whose head tells the types."""

    def __init__(self, file: DataFile, first: DataFile, options: _Options) -> None:
        file.nbytes()
        self._name = file.name
        self._options = options
        self._seekable = Seekable(file)
        self._file = self._seekable.file
        self.names = _head(self._file, options)[0]
        self._types = _types(first if file.name != first.name else self._file, options)
        self._wanted = check_columns(file.name, options.columns or tuple(self._types), self.names)
        self._starts, total = _index(self._file, options)
        self._skipped = 1 if options.header else 0
        self.records = total - self._skipped

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        pieces = self._pieces(numbers) if len(numbers) else []
        try:
            rows = self._options.parse(b"".join(pieces).decode(self._options.encoding))
            if len(rows) == len(numbers) and {len(row) for row in rows} <= {len(self.names)}:
                return self._columns(rows)
        except _BROKEN:
            pass  # found again below, with the number of the record
        return self._columns(
            [self._row(piece, int(number)) for piece, number in zip(pieces, numbers, strict=True)]
        )

    def _pieces(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """The bytes of each record."""
        first, last = int(numbers[0]) + self._skipped, int(numbers[-1]) + self._skipped
        block = first // _STRIDE
        low = int(self._starts[block])
        high = int(self._starts[min(last // _STRIDE + 1, len(self._starts) - 1)])
        with self._file.open() as stream:
            stream.seek(low)
            data = stream.read(high - low)
        starts = np.empty(len(data) + 1, dtype=np.int64)
        chunk = np.frombuffer(data, np.uint8)
        found = scan_csv(chunk, 0, ord(self._options.sep), 1, csv_state(), starts)
        starts[found] = len(data)
        places = numbers + (self._skipped - block * _STRIDE)
        if places[-1] >= found:
            raise DataError(f"{self._name} changed while it was read: start the job again.")
        bounds = starts[: found + 1].tolist()
        return [data[bounds[place] : bounds[place + 1]] for place in places.tolist()]

    def _columns(self, rows: list[list[str]]) -> Columns:
        by_name = dict(zip(self.names, zip(*rows, strict=True) if rows else (), strict=False))
        return Columns(
            {name: convert(by_name.get(name, ()), self._types[name]) for name in self._wanted}
        )

    def _row(self, piece: bytes, number: int) -> list[str]:
        """The fields of one record. Raises RecordError where it is broken."""
        try:
            rows = self._options.parse(piece.decode(self._options.encoding))
        except _BROKEN as error:
            raise RecordError(self._name, number, f"it cannot be parsed: {error}") from error
        row = rows[0] if len(rows) == 1 else []
        if len(row) != len(self.names):
            raise RecordError(
                self._name, number, f"it has {len(row)} fields, not {len(self.names)}"
            )
        for name, value in zip(self.names, row, strict=True):
            if name in self._wanted:
                try:
                    convert([value], self._types[name])
                except (ValueError, OverflowError) as error:
                    kind = self._types[name]
                    reason = f"column {name!r}: {value!r} is no {kind} (or say dtypes={name}:str)"
                    raise RecordError(self._name, number, reason) from error
        return row


def convert(values: Sequence[str], kind: str) -> NDArray[Any]:
    """A column of fields as numbers or strings. Raises ValueError or OverflowError."""
    if kind == "str":
        return np.array(values, dtype=np.str_)
    if kind == "int64":
        return np.fromiter(map(int, values), np.int64, len(values))
    try:
        return np.fromiter(map(float, values), np.float64, len(values))
    except ValueError:
        numbers = (np.nan if value.strip() in _MISSING else float(value) for value in values)
        return np.fromiter(numbers, np.float64, len(values))


def _head(file: DataFile, options: _Options) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the records of the file's head that can be parsed."""
    with file.open() as stream:
        data = stream.read(_HEAD_NBYTES).removeprefix(_BOM)
    starts = np.empty(len(data) + 1, dtype=np.int64)
    found = scan_csv(np.frombuffer(data, np.uint8), 0, ord(options.sep), 1, csv_state(), starts)
    # The last record of a longer file is cut off.
    ends = starts[:found].tolist() + ([len(data)] if len(data) < _HEAD_NBYTES or found == 1 else [])
    rows = []
    for low, high in list(pairwise(ends))[: _HEAD_RECORDS + 1]:
        try:
            rows += options.parse(data[low:high].decode(options.encoding))
        except _BROKEN as error:
            if not rows:
                raise DataError(f"The first line of {file.name} is no CSV: {error}.") from error
        except LookupError as error:
            raise UsageError(f"There is no encoding {options.encoding!r}.") from error
    if not rows:
        raise DataError(f"{file.name} has no records: remove it or put records into it.")
    if options.header:
        names, rows = rows[0], rows[1:]
    else:
        names = list(options.names) or [f"c{i}" for i in range(len(rows[0]))]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{file.name} names the column {twice[0]!r} twice in its header.")
    return names, [row for row in rows if len(row) == len(names)]


def _types(file: DataFile, options: _Options) -> dict[str, str]:
    """The type of each column, told by `dtypes` or by the head of the file."""
    names, rows = _head(Seekable(file).file, options)
    check_columns(file.name, list(options.dtypes), names)
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {
        name: options.dtypes.get(name) or _infer(column)
        for name, column in zip(names, columns, strict=True)
    }


def _infer(values: Sequence[str]) -> str:
    """The type that nearly all values have; the others are then broken records, not silent text."""
    there = [value for value in values if value.strip() not in _MISSING]
    kinds = Counter(map(_kind, there))
    if not there or kinds["str"] > _BROKEN_SHARE * len(there):
        return "str"
    return "float64" if kinds["float64"] or len(there) < len(values) else "int64"


def _kind(value: str) -> str:
    if "_" in value:  # Python reads 1_000 as a number
        return "str"
    try:
        # More digits than an int64 has: an id, not a quantity.
        return "int64" if -(2**63) <= int(value) < 2**63 else "str"
    except ValueError:
        pass
    try:
        float(value)
    except ValueError:
        return "str"
    return "float64"


def _index(file: DataFile, options: _Options) -> tuple[NDArray[np.int64], int]:
    """(offset of every 256th record and of the end, number of records, the header included)."""

    def save(to: Path) -> None:
        with to.open("wb") as stream:
            np.save(stream, _scan(file, options))

    path = cached(file, f"csv-{ord(options.sep)}.npy", save)
    table = _scan(file, options) if path is None else np.load(path, allow_pickle=False)
    return table[1:], int(table[0])


def _scan(file: DataFile, options: _Options) -> NDArray[np.int64]:
    """[records, offset of record 0, of record 256, ..., of the end of the file]."""
    state, parts = csv_state(), []
    starts = np.empty(_CHUNK_NBYTES // _STRIDE + 1, dtype=np.int64)
    with file.open() as stream:
        base = len(_BOM) if stream.read(len(_BOM)) == _BOM else 0
        stream.seek(base)
        while data := stream.read(_CHUNK_NBYTES):
            chunk = np.frombuffer(data, np.uint8)
            found = scan_csv(chunk, base, ord(options.sep), _STRIDE, state, starts)
            parts.append(starts[:found].copy())
            base += len(data)
    return np.concatenate([[state[COUNT]], *parts, [base]]).astype(np.int64)
