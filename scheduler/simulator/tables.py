"""Tables in CSV files: each field is read by its column, and a wrong one is named."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edl.common.errors import UsageError

Field = str | float
Parser = Callable[[str], Field]


def text(field: str) -> str:
    """Return a field that says something. Raises ValueError for one that does not."""
    if not field.strip():
        raise ValueError("a word")
    return field.strip()


def amount(field: str) -> float:
    """Return a number of at least 0, as seconds are. Raises ValueError for any other field."""
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("a number of at least 0")
    return value


def read_table(path: Path, columns: Mapping[str, Parser]) -> Iterator[tuple[int, dict[str, Field]]]:
    """Yield each row's line and its fields by column. Other columns are skipped.

    A parser raises ValueError with what would be right. Raises UsageError that names the file, the
    line and the column: where one is missing, where a parser refuses a field, for no file.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: line 1: there is no column {missing[0]!r}")
            for row in reader:
                yield (
                    reader.line_num,
                    {
                        name: _parsed(path, reader.line_num, name, row[name], parser)
                        for name, parser in columns.items()
                    },
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a table: {error}") from error


def _parsed(path: Path, line: int, name: str, field: str | None, parser: Parser) -> Field:
    if field is None:
        raise UsageError(f"{path}: line {line}: the field {name!r} is missing")
    try:
        return parser(field)
    except ValueError as error:
        raise UsageError(f"{path}: line {line}: {name} is {error}, not {field!r}") from error
