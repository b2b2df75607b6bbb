"""CSV, with a line index: the file is scanned once as a stream and never held in memory.

The index has the byte offset of every 256th record; a range is read by one seek and one read.
Newlines within quotes are text. The types of columns are declared, or found over all records of all
files in the pass that makes the index (`csv_scan.py`, `csv_types.py`). A value of another type than
its column's is a broken record. A missing float is NaN, a missing text "", and a missing whole
number is refused until `missing` says what stands for it (`missing.py`). A column of lists
(`split`) comes as a Ragged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common import spelled
from ..common.errors import DataError, RecordError, UsageError
from .csv_columns import Parser
from .csv_dialect import BROKEN, Dialect
from .csv_head import Heads, Options
from .csv_scan import STRIDE, indexed
from .csv_seen import Seen, Watch, first_missing, together, why
from .csv_signs import Signs
from .csv_types import MISSING, Column, flags_of, is_broken, is_missing, kind_of
from .declared import declared, fill_of
from .file_reader import FileReader, check_columns, flag_of, names_of, pairs_of
from .files import DataFile
from .missing import Missing, named, ways_out
from .reader import Columns, Source
from .schema import NO_SCHEMA, SEEN, Field, Schema, Type

_NONE = np.empty(0, np.int64)
_SPLITS = {
    "pipe": "|", "comma": ",", "tab": "\t", "\\t": "\t", "blank": " ", "colon": ":",
}  # fmt: skip


@dataclass(eq=False, repr=False)
class CsvReader(FileReader):
    """A reader of the columns of CSV files. Raises UsageError for a parameter that is none.

    The fields are the parameters that a user writes, and on the command line all are strings.
    `schema`: the columns whose types are known.
    """

    files: Sequence[DataFile]
    sep: str = ","  # "tab" is one
    columns: str | Sequence[str] | None = None  # those wanted, of all
    dtypes: str | Mapping[str, str] | None = None  # {column: type}
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
    split: str | Mapping[str, str] | None = None  # {column of lists: the sign between elements}
    schema: InitVar[Schema] = NO_SCHEMA

    def __post_init__(self, schema: Schema) -> None:
        types, missing = pairs_of(self.dtypes), Missing.parse(self.missing)
        known = declared(schema, types, missing)
        for name, word in types.items():
            if Type.parse(word).is_whole and not known[name].type.is_whole:
                raise UsageError(
                    f"dtypes={name}:{word} keeps whole numbers, and missing={name}:nan makes them "
                    "float64: leave out one of them."
                )
        self._heads = Heads(self.files, self._options(types, missing))
        openers = {file.name: partial(CsvFile, file, self._heads, known) for file in self.files}
        super().__init__(openers, known, missing)

    def _options(self, types: Mapping[str, str], missing: Missing) -> Options:
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
            dialect, header, tuple(names_of(self.names)), tuple(names_of(self.columns)), missing,
            Signs.parse(self.na_values), _splits(self.split, dialect), tuple(types),
        )  # fmt: skip

    def sources(self) -> Sequence[Source]:
        """Return all sources with records.

        Raises DataError where values are missing of which the type has none.
        """
        found = super().sources()
        for source in found:
            self._file(source.name).check_missing()
        return found

    def _agreed(self, stored: list[tuple[str, Schema]]) -> list[tuple[str, Schema]]:
        """Return the types that the values of all files have together."""
        names = [name for name, _ in stored]
        parts = [(name, self._file(name).seen) for name in names]
        fields = {}
        for _, schema in stored:
            for column in schema:
                if column.name not in fields:
                    known = self._declared.get(column.name)
                    fields[column.name] = known or self._found(column.name, parts)
        return [(names[0], Schema(tuple(fields.values())))] if names else []

    def _found(self, name: str, parts: Sequence[tuple[str, Seen]]) -> Field:
        options = self._heads.options
        flags = together((seen for _, seen in parts), name)
        kind, lists = kind_of(flags), name in options.splits
        chosen = options.missing.chosen(name)
        if not flags & ~MISSING and chosen:  # nothing else tells it
            kind = "float64" if is_missing(chosen) else kind_of(flags_of(chosen))
        return Field(name, Type(kind, lists=lists), found=SEEN, why=why(parts, name))

    def _file(self, name: str) -> CsvFile:
        opened = self._open(name)
        assert isinstance(opened, CsvFile)
        return opened


def _splits(said: str | Mapping[str, str] | None, dialect: Dialect) -> dict[str, str]:
    """Return {column: the sign between its elements}. Raises UsageError."""
    found = {name: _SPLITS.get(sign, sign) for name, sign in pairs_of(said).items()}
    for name, sign in found.items():
        if len(sign) != 1 or not sign.isascii() or sign in ("\r", "\n", "\0", dialect.quote):
            raise UsageError(
                f"The parameter split must say COLUMN:SIGN, one ASCII character that is no quote, "
                f"or {', '.join(each for each in _SPLITS if each.isalpha())}; for {name!r} it says "
                f"{sign!r}."
            )
    return found


@dataclass(eq=False, repr=False)
class TsvReader(CsvReader):
    """A reader of CSV with a tab between the fields."""

    sep: str = field(default="\t", init=False)


# What the dataclass keeps of the last parameter: a reader has the schema that `FileReader` finds.
del CsvReader.schema
csv_reader, tsv_reader = CsvReader, TsvReader  # as `open.maker` finds a format's reader


class CsvFile:
    """A CSV file with an index; it reads once it holds a schema.

    `seen`: what the values of the columns are whose types are not known.
    """

    def __init__(self, file: DataFile, heads: Heads, known: Schema) -> None:
        self._name, self._splits = file.name, heads.options.splits
        self.names, self._text = heads.columns, heads.text(file)
        head = heads.head(file, self._text)
        self._fields, self._spare = head.names, head.spare
        self._skipped, self._signs = heads.options.skipped, heads.options.signs
        watch = Watch(
            self._text.dialect, self._fields,
            {name: self._splits.get(name, "") for name in self.names if name not in known},
            self._spare, self._skipped, self._signs,
        )  # fmt: skip
        index, self.seen = indexed(self._text, watch if watch.splits else None)
        self._starts, self.records = index.starts, max(0, index.total - self._skipped)
        if self.records:
            check_columns(file.name, self.names, self._fields)
        self._columns: dict[str, Column] = {}
        self._parser: Parser | None = None

    @property
    def stored(self) -> Schema:
        """The columns; their types are those that all files have together (`CsvReader`)."""
        return Schema(tuple(Field(name, Type("text")) for name in self.names))

    def hold(self, schema: Schema) -> None:
        """Take the types of the columns. Raises DataError for one that no CSV has."""
        self._columns = {name: self._column(schema[name]) for name in self.names}
        self._parser = Parser(self._text.dialect, self._fields, self._columns, self._spare)

    def _column(self, column: Field) -> Column:
        name, type_, split = column.name, column.type, self._splits.get(column.name, "")
        remedy = f"say split={name}:SIGN, the sign between its elements"
        if type_.kind == "picture" or len(type_.shape) > 1:
            raise DataError(
                f"column {name!r} is {type_}, which {self._name} cannot have: it is CSV."
            )
        if type_.is_list and not split:
            raise DataError(
                f"column {name!r} is {type_}, and in {self._name} a single value: {remedy}."
            )
        if split and not type_.is_list:
            raise DataError(
                f"column {name!r} is {type_}, and split= makes it a list in {self._name}: leave "
                f"split={name} out, or declare it as list of {type_}."
            )
        return Column(name, type_, fill_of(column), self._signs, split, column.found)

    def check_missing(self) -> None:
        """Raise DataError where it misses whole numbers, and nothing stands for them."""
        columns = self._columns.values()
        gaps = [
            (each.name, record)
            for each in columns
            if each.fill is None and (record := first_missing(self.seen, each.name)) is not None
        ]
        if gaps:
            names = [name for name, _ in gaps]
            raise DataError(
                f"{self._name} misses whole numbers of {named(names)} (the first of them in record "
                f"{gaps[0][1]}): {ways_out(names)}."
            )

    def read(self, numbers: NDArray[np.int64]) -> Columns:
        data, begins, ends = self._bounds(numbers) if len(numbers) else (b"", _NONE, _NONE)
        assert self._parser is not None, "it holds no schema"
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
                return self._convert(rows, spelled.is_plain(text))
        except BROKEN:
            pass  # found again below, with the number of the record
        rows = [self._row(piece, int(n)) for piece, n in zip(pieces, numbers, strict=True)]
        return self._convert(rows, False)

    def _bounds(
        self, numbers: NDArray[np.int64]
    ) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
        """Return some bytes of the file, and where in them each record and the next one begin."""
        first, last = int(numbers[0]) + self._skipped, int(numbers[-1]) + self._skipped
        block = first // STRIDE
        low = int(self._starts[block])
        high = int(self._starts[min(last // STRIDE + 1, len(self._starts) - 1)])
        with self._text.file.reading() as read:
            data = read(low, high - low).tobytes()
        starts = self._text.dialect.records(data)
        places = numbers + (self._skipped - block * STRIDE)
        if places[-1] >= len(starts):
            raise DataError(f"{self._name} changed while it was read: start the job again.")
        return data, starts[places], np.append(starts, len(data))[places + 1]

    def _fit(self, rows: list[list[str]]) -> bool:
        """Tell whether each record has a field for each column, and no other but a spare one."""
        n = len(self._fields)
        widths = {len(row) for row in rows}
        if widths <= {n}:
            return True
        return self._spare and widths <= {n, n + 1} and not any("".join(row[n:]) for row in rows)

    def _convert(self, rows: list[list[str]], plain: bool) -> Columns:
        by_name = dict(zip(self._fields, zip(*rows, strict=False), strict=False))
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
                self._name, number, f"it has {width} fields, not {len(self._fields)}{hint}"
            )
        for name, value in zip(self._fields, rows[0], strict=False):
            if (column := self._columns.get(name)) is not None and is_broken(column, value):
                raise RecordError(self._name, number, column.fault(value))
        return rows[0]
