"""CSV, with a line index: the file is scanned once as a stream and never held in memory.

The index has the byte offset of every 256th record; a range is read by one seek and one read.
Newlines within quotes are text. Types come from the head of the first file with records (int64,
float64, str: `csv_types`) or from `dtypes`, and hold for all files. A value of another type is a
broken record, in the head too as long as nine of ten are numbers. A missing float is NaN, a
missing text "", and a missing whole number is refused until `missing` says what stands for it
(`missing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, RecordError, UsageError
from .csv_columns import Parser
from .csv_dialect import BROKEN, Dialect, Text
from .csv_head import Options, Schema
from .csv_signs import Signs
from .csv_types import TYPES, is_broken, is_plain
from .file_reader import FileReader, check_columns, flag_of, names_of, pairs_of
from .files import DataFile, cached
from .kernels import COUNT, csv_state, scan_csv
from .missing import Missing
from .reader import Columns

_STRIDE = 256  # records between two offsets of the index: 8 bytes of memory per 256 records
_CHUNK_NBYTES = 1 << 22
_NONE = np.empty(0, np.int64)


@dataclass(eq=False, repr=False)
class CsvReader(FileReader):
    """A reader of the columns of CSV files. Raises UsageError for a parameter that is none.

    The fields are the parameters that a user writes, and on the command line all are strings.
    """

    files: Sequence[DataFile]
    sep: str = ","  # "tab" is one
    columns: str | Sequence[str] | None = None  # those wanted, of all
    dtypes: str | Mapping[str, str] | None = None  # {column: int64 | float64 | str}
    missing: str | Mapping[str, Any] | None = None  # {column: what stands for a missing value}
    # False: the first line is a record (the columns are c0, c1, ... or `names`). True with `names`:
    # it is passed over.
    header: bool | str | None = None
    names: str | Sequence[str] | None = None
    encoding: str = "utf-8"
    quote: str = '"'  # or "none"
    escape: str = ""  # what follows this sign is text
    comment: str = ""  # a line that begins with this sign is none
    skip_blanks: bool | str = False  # those after a separator
    na_values: str | Sequence[str | float] | float | None = None  # more signs of a missing value

    def __post_init__(self) -> None:
        schema = Schema(self.files, self._options())
        super().__init__({file.name: partial(CsvFile, file, schema) for file in self.files})

    def _options(self) -> Options:
        types = pairs_of(self.dtypes)
        if bad := sorted(set(types.values()) - set(TYPES)):
            raise UsageError(f"dtypes knows {', '.join(TYPES)}, not {bad[0]!r}.")
        if self.names and self.header is None:
            raise UsageError(
                "names needs a word on the first line: header=true if it is a header, to be passed "
                "over, or header=false if it is a record."
            )
        signs = {"\\t": "\t", "tab": "\t", "none": ""}
        dialect = Dialect(
            signs.get(self.sep, self.sep), signs.get(self.quote, self.quote), self.escape,
            self.comment, flag_of(self.skip_blanks, "skip_blanks"), self.encoding,
        )  # fmt: skip
        header = None if self.header is None else flag_of(self.header, "header")
        return Options(
            dialect, header, tuple(names_of(self.names)), tuple(names_of(self.columns)), types,
            Missing.parse(self.missing), Signs.parse(self.na_values),
        )  # fmt: skip


@dataclass(eq=False, repr=False)
class TsvReader(CsvReader):
    """A reader of CSV with a tab between the fields."""

    sep: str = field(default="\t", init=False)


csv_reader, tsv_reader = CsvReader, TsvReader  # as `open.maker` finds a format's reader


class CsvFile:
    """A CSV file with an index."""

    def __init__(self, file: DataFile, schema: Schema) -> None:
        self._name = file.name
        self._columns = schema.columns
        self._text = schema.text(file)
        head = schema.head(file, self._text)
        self.names, self._spare = head.names, head.spare
        self._starts, total = _index(self._text)
        self._skipped = schema.options.skipped
        self.records = max(0, total - self._skipped)
        if self.records:
            check_columns(file.name, tuple(self._columns), self.names)
        self._parser = Parser(self._text.dialect, self.names, self._columns, self._spare)

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        data, begins, ends = self._bounds(numbers) if len(numbers) else (b"", _NONE, _NONE)
        plain = self._parser.parse(data, begins, ends)
        if plain is not None:
            return plain
        bounds = zip(begins.tolist(), ends.tolist(), strict=True)
        return self._read([data[begin:end] for begin, end in bounds], numbers)

    def _read(self, pieces: list[bytes], numbers: NDArray[np.int64]) -> Columns:
        """Read the records by Python, one by one where one is broken. Raises RecordError."""
        dialect = self._text.dialect
        try:
            text = b"".join(pieces).decode(dialect.encoding)
            rows = dialect.parse(text)
            if len(rows) == len(numbers) and self._fit(rows):
                return self._convert(rows, is_plain(text))
        except BROKEN:
            pass  # found again below, with the number of the record
        rows = [self._row(piece, int(n)) for piece, n in zip(pieces, numbers, strict=True)]
        return self._convert(rows, False)

    def _bounds(
        self, numbers: NDArray[np.int64]
    ) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """Return some bytes of the file, and where in them each record and the next one begin."""
        first, last = int(numbers[0]) + self._skipped, int(numbers[-1]) + self._skipped
        block = first // _STRIDE
        low = int(self._starts[block])
        high = int(self._starts[min(last // _STRIDE + 1, len(self._starts) - 1)])
        with self._text.file.reading() as read:
            data = read(low, high - low).tobytes()
        starts = self._text.dialect.records(data)
        places = numbers + (self._skipped - block * _STRIDE)
        if places[-1] >= len(starts):
            raise DataError(f"{self._name} changed while it was read: start the job again.")
        return data, starts[places], np.append(starts, len(data))[places + 1]

    def _fit(self, rows: list[list[str]]) -> bool:
        """Tell whether each record has a field for each column, and no other but a spare one."""
        n = len(self.names)
        widths = {len(row) for row in rows}
        if widths <= {n}:
            return True
        return self._spare and widths <= {n, n + 1} and not any("".join(row[n:]) for row in rows)

    def _convert(self, rows: list[list[str]], plain: bool) -> Columns:
        by_name = dict(zip(self.names, zip(*rows, strict=False), strict=False))
        return Columns(
            {
                name: column.convert(by_name.get(name, ()), plain)
                for name, column in self._columns.items()
            }
        )

    def _row(self, piece: bytes, number: int) -> list[str]:
        """Return the fields of one record. Raises RecordError where it is broken."""
        dialect = self._text.dialect
        try:
            rows = dialect.parse(piece.decode(dialect.encoding))
        except UnicodeDecodeError as error:
            reason = (
                f"it has bytes that are no {self._text.encoding}: say encoding= if it is another"
            )
            raise RecordError(self._name, number, reason) from error
        except BROKEN as error:
            raise RecordError(self._name, number, f"it cannot be parsed: {error}") from error
        if len(rows) != 1 or not self._fit(rows):
            width = len(rows[0]) if len(rows) == 1 else 0
            blanks = dialect.quote and f"{dialect.sep} {dialect.quote}".encode() in piece
            hint = "; say skip_blanks=true if quotes stand after a blank" if blanks else ""
            raise RecordError(
                self._name, number, f"it has {width} fields, not {len(self.names)}{hint}"
            )
        for name, value in zip(self.names, rows[0], strict=False):
            if (column := self._columns.get(name)) is not None and is_broken(column, value):
                raise RecordError(self._name, number, column.fault(value))
        return rows[0]


def _index(text: Text) -> tuple[NDArray[np.int64], int]:
    """Return (offset of every 256th record and of the end, number of records with the header)."""

    def save(to: Path) -> None:
        with to.open("wb") as stream:
            np.save(stream, _scan(text))

    path = cached(text.file, f"csv-{text.dialect.key()}.npy", save)
    table = _scan(text) if path is None else np.load(path, allow_pickle=False)
    return table[1:], int(table[0])


def _scan(text: Text) -> NDArray[np.int64]:
    """Return [records, offset of record 0, of record 256, ..., of the end of the file]."""
    state, signs, parts = csv_state(), text.dialect.signs, []
    nbytes = text.file.at_once(_CHUNK_NBYTES)
    starts = np.empty(nbytes // _STRIDE + 1, dtype=np.int64)
    base = text.first
    with text.file.open() as stream:
        stream.seek(base)
        while data := stream.read(nbytes):
            chunk = np.frombuffer(data, np.uint8)
            found = scan_csv(chunk, base, signs, _STRIDE, state, starts)
            parts.append(starts[:found].copy())
            base += len(data)
    return np.concatenate([[state[COUNT]], *parts, [base]]).astype(np.int64)
