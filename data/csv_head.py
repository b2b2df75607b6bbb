"""The head of a CSV file, which tells the names of its columns and whether it has a header.

The columns are those of the first file with records, whose head is read once for all. What the
columns' types are, all records tell (`csv_seen.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from ..common.errors import DataError, UsageError
from .csv_dialect import BROKEN, Dialect, Text
from .csv_signs import Signs
from .csv_types import NUMBER, flags_of
from .file_reader import check_columns
from .files import DataFile
from .missing import Missing

_HEAD = (1 << 16, 20, 200)  # about so many bytes, least and most records
_LIMIT_NBYTES = 1 << 28  # where no record ends before, this is no CSV


@dataclass(frozen=True)
class Options:
    """The parameters of a CSV reader.

    `header` None: the first line is one, if it looks like it.
    """

    dialect: Dialect
    header: bool | None
    names: tuple[str, ...]
    columns: tuple[str, ...]
    missing: Missing
    signs: Signs
    splits: Mapping[str, str]
    dtypes: tuple[str, ...]

    @property
    def skipped(self) -> int:
        """The number of records that the header takes."""
        return 0 if self.header is False else 1


@dataclass(frozen=True)
class Head:
    """The columns' names, and the records of the head that have as many fields, by their numbers.

    `spare`: each record may end in one more separator, with nothing after it.
    """

    names: Sequence[str]
    rows: Mapping[int, Sequence[str]]
    spare: bool


class Heads:
    """The heads of all files, and the columns that are wanted of each."""

    def __init__(self, files: Sequence[DataFile], options: Options) -> None:
        self._files = list(files)
        self.options = options

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "options": self.options}  # the head is read anew

    def text(self, file: DataFile) -> Text:
        """Return the file as text; the first one's copies are made once."""
        name, text = self._first[:2]
        return text if file.name == name else Text(file, self.options.dialect)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that are wanted. Raises DataError where parameters name others."""
        name, _, head = self._first
        options = self.options
        if not head.names:  # nothing in any file
            return ()
        check_columns(name, options.dtypes, head.names)
        check_columns(name, list(options.splits), head.names)
        options.missing.check(name, head.names)
        return tuple(dict.fromkeys(check_columns(name, options.columns, head.names)))

    @cached_property
    def _first(self) -> tuple[str, Text, Head]:
        for file in self._files:
            text = Text(file, self.options.dialect)
            head = read_head(file.name, text, self.options)
            if head.rows:
                return file.name, text, head
        return file.name, text, head

    def head(self, file: DataFile, text: Text) -> Head:
        """Return a file's own head.

        Raises DataError where it lacks columns of the first.
        """
        name, _, first = self._first
        if file.name == name:
            return first
        head = read_head(file.name, text, self.options)
        if head.rows:
            check_columns(file.name, self.columns, head.names)
        return head


def read_head(name: str, text: Text, options: Options) -> Head:
    """Read the head of a file. Raises DataError where its first line cannot be one."""
    rows = _rows(name, text)
    if not rows:
        return Head((), {}, False)
    first = rows[0]
    if options.header is not False:
        rows = rows[1:]
        names = _header(name, first, options)
        if options.header is None:
            _check_header(name, first)
    else:
        ((width, _),) = Counter(map(len, rows)).most_common(1)
        names = list(options.names) or [f"c{i}" for i in range(width)]
    return _fit(name, names, rows, options)


def _header(name: str, first: list[str], options: Options) -> list[str]:
    if any("\0" in each for each in first):
        raise DataError(
            f"The header of {name} has NULs: if it is UTF-16 without a byte order mark, say "
            "--data_reader_params encoding=utf-16-le (or -be)."
        )
    if not options.names:
        return first
    if len(options.names) == len(first) - 1 and not first[-1].strip():
        return [*options.names, ""]
    if len(options.names) != len(first):
        raise UsageError(
            f"names has {len(options.names)} names, and the header of {name} {len(first)} fields."
        )
    return list(options.names)


def _fit(name: str, names: list[str], rows: list[list[str]], options: Options) -> Head:
    """Return names and records of the same width; a nameless last column of nothing is none."""
    n = len(names)
    nameless = not names[-1].strip()
    spare = False
    if n > 1 and nameless and any(rows) and not any("".join(row[n - 1 :]) for row in rows):
        names, n, spare = names[:-1], n - 1, True
    elif any(rows) and all(len(row) == n + 1 and not row[n] for row in rows if row):
        spare = True
    fitting = {
        number: row[:n]
        for number, row in enumerate(rows)
        if len(row) == n or (spare and len(row) == n + 1)
    }
    widths = {len(row) for row in rows if row}
    if len(rows) > 1 and not fitting and len(widths) == 1:
        over = ",header=true (true: its first line is passed over)"
        first = "" if options.header is False else over
        raise DataError(
            f"{name} has {n} names and records of {widths.pop()} fields: name them all with "
            f"--data_reader_params names=a|b|c{first}, or check sep."
        )
    names = [each if each.strip() else f"c{i}" for i, each in enumerate(names)]
    wanted = options.columns or names
    if twice := [each for each, n in Counter(names).items() if n > 1 and each in wanted]:
        how = "" if options.header is False else (
            ": if its first line is a record and no header, say --data_reader_params header=false; "
            "else name the columns with names=a|b|c,header=true"
        )  # fmt: skip
        raise DataError(f"{name} names the column {twice[0]!r} twice{how}.")
    return Head(names, fitting, spare)


def _check_header(name: str, first: list[str]) -> None:
    """Check that the first line is no record, which must not be lost in silence.

    Raises DataError where it is one.

    Numbers may be names: whole ones that rise beside words (years), or 0, 1, 2, ... alone.
    """
    digits = [each for each in first if each.lstrip(" +-.")[:1].isdigit()]  # few of very many
    numbers = [each for each in digits if flags_of(each) & NUMBER]
    whole = [int(each) for each in numbers if each.isdecimal()]
    rising = len(numbers) == len(whole) > 1 and sorted(set(whole)) == whole
    beside_words = rising and len(whole) < len(first)
    counted = len(whole) > 2 and whole == list(range(len(first)))
    if numbers and not beside_words and not counted:
        raise DataError(
            f"The first line of {name} reads as a record, with {numbers[0]!r} for a name: say "
            "--data_reader_params header=false if it is one, or header=true if these are the names."
        )


def _rows(name: str, text: Text) -> list[list[str]]:
    """Return the records of the head, the header's line first; [] where one cannot be parsed."""
    data, ends = _bytes(name, text)
    dialect = text.dialect
    try:
        rows = dialect.parse(data[: ends[-1]].decode(dialect.encoding))
        if len(rows) == len(ends) - 1:
            return rows
    except BROKEN:
        pass  # one by one, to keep the sound ones
    rows = []
    for low, high in pairwise(ends):
        try:
            rows += dialect.parse(data[low:high].decode(dialect.encoding)) or [[]]
        except BROKEN as error:
            if rows:
                rows.append([])
            else:
                raise DataError(
                    f"The first line of {name} is no CSV: {error}. Say sep, quote or encoding with "
                    "--data_reader_params if they are others."
                ) from error
    return rows


def _bytes(name: str, text: Text) -> tuple[bytes, list[int]]:
    """Return (the file's head, where each whole record in it begins and the last one ends)."""
    nbytes, least, most = _HEAD
    data = b""
    with text.file.open() as stream:
        stream.seek(text.first)
        while True:
            more = stream.read(max(nbytes, len(data)))  # twice as much each time: linear
            data += more
            starts = text.dialect.records(data)
            at_end = len(more) < max(nbytes, len(data) - len(more))
            whole = len(starts) - (not at_end)
            if at_end or whole > least:
                break
            if len(data) > _LIMIT_NBYTES and whole < 1:
                raise DataError(
                    f"No line of {name} ends within {len(data) >> 20} MiB: it is no CSV, or a "
                    "quote is not closed; say sep or quote with --data_reader_params if they are "
                    "others."
                )
            if len(data) > _LIMIT_NBYTES:
                break
    whole = min(whole, most + 1)
    ends = [*starts.tolist(), len(data)][: whole + 1]
    return data, ends or [0]
