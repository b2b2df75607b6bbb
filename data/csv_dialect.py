"""The dialect of a CSV: how bytes become fields, for Python's csv module and for the scanner.

Both follow the same rules, so that a record which begins where the scanner says is parsed as the
module would within the whole file. The scanner reads bytes: a file whose encoding is no extension
of ASCII by bytes of their own (UTF-16, GBK) is first written anew as UTF-8 (`Text`).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, UsageError
from .files import DataFile, Derived, Seekable
from .kernels import NONE, csv_state, scan_csv

BOM = b"\xef\xbb\xbf"
BROKEN = (ValueError, OverflowError, csv.Error)  # UnicodeDecodeError is a ValueError
_FIELD_LETTERS = (1 << 31) - 1  # the most that the csv module can be told; its own is 131,072
_COPY_NBYTES = 1 << 20
_WIDE_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LONE_RETURN = re.compile(rb"\r(?!\n)")


@dataclass(frozen=True)
class Dialect:
    r"""The signs of a CSV, single characters, "" where there is none.

    `line_end` is "\n" (a "\r" before it counts) or "\r".
    """

    sep: str
    quote: str
    escape: str
    comment: str
    skip_blanks: bool
    encoding: str
    line_end: str = "\n"

    def __post_init__(self) -> None:
        for name in ("sep", "quote", "escape", "comment"):
            sign = getattr(self, name)
            if len(sign) > 1 or not sign.isascii() or sign in ("\r", "\n", "\0"):
                raise UsageError(
                    f"The parameter {name} must be one ASCII character"
                    f"{', none' if name == 'quote' else ''} or tab, not {sign!r}."
                )
        if not self.sep:
            raise UsageError("The parameter sep must be one ASCII character or tab, not ''.")
        signs = [sign for sign in (self.sep, self.quote, self.escape, self.comment) if sign]
        if len(set(signs)) < len(signs):
            raise UsageError("The parameters sep, quote, escape and comment must be unlike.")
        if self.skip_blanks and self.sep == " ":
            raise UsageError("skip_blanks cannot go with blanks as separators: leave one out.")
        try:
            codecs.lookup(self.encoding)
            "".encode(self.encoding)  # hex and such are codecs, but no encodings
        except LookupError as error:
            raise UsageError(f"There is no encoding {self.encoding!r}.") from error

    @cached_property
    def signs(self) -> NDArray[np.int64]:
        """The dialect's signs, as the scanner takes them (`kernels.scan_csv`)."""
        other = "\r" if self.line_end == "\n" else "\n"
        each = (self.sep, self.line_end, other, self.quote, self.escape, self.comment)
        signs = [ord(sign) if sign else NONE for sign in each]
        return np.array([*signs, ord(" ") if self.skip_blanks else NONE], dtype=np.int64)

    def key(self) -> str:
        """Return a name for files of all that the places of the records depend on."""
        return "-".join(str(sign) for sign in self.signs)

    def parse(self, text: str) -> list[list[str]]:
        """Return the records of a text; blank lines and comments are none. Raises csv.Error."""
        csv.field_size_limit(_FIELD_LETTERS)
        if self.line_end == "\n":
            lines: Iterable[str] = io.StringIO(text, newline="\n")
        else:
            lines = (line + "\r" for line in text.removesuffix("\r").split("\r"))
        if self.comment:
            return list(_without_comments(lines, self))
        return [row for row in self._reader(lines) if row]

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(
            lines, delimiter=self.sep, quotechar=self.quote or None, escapechar=self.escape or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            skipinitialspace=self.skip_blanks, strict=True,
        )  # fmt: skip

    def records(self, data: bytes) -> NDArray[np.int64]:
        """Return where each record of these bytes begins."""
        starts = np.empty(len(data) + 1, dtype=np.int64)
        chunk = np.frombuffer(data, np.uint8)
        return starts[: scan_csv(chunk, 0, self.signs, csv_state(), starts)]


def _without_comments(lines: Iterable[str], dialect: Dialect) -> Iterator[list[str]]:
    """Yield the lines of records; a line is a comment only where a record would begin."""
    at_start = True

    def kept() -> Iterator[str]:
        nonlocal at_start
        for line in lines:
            if not (at_start and line.startswith(dialect.comment)):
                at_start = False
                yield line

    for row in dialect._reader(kept()):
        at_start = True
        if row:
            yield row


class Text:
    """A CSV file as the scanner can read it.

    It is unpacked, in an encoding that the scanner knows, and has its dialect.

    `first` is where its text begins: after a byte order mark.
    """

    def __init__(self, file: DataFile, dialect: Dialect) -> None:
        self._holds: list[object] = [seekable := Seekable(file)]  # copies go with these objects
        self.file = seekable.file
        self.dialect = dialect
        self.encoding = dialect.encoding  # as the user says it
        if codecs.lookup(dialect.encoding).name == "utf-8-sig":
            self.dialect = replace(dialect, encoding="utf-8")  # no mark but the file's first
        elif not _bytewise(dialect.encoding):
            copy = Derived(
                self.file, f"utf8-{codecs.lookup(dialect.encoding).name}",
                lambda to: _transcode(self.file, dialect.encoding, to),
            )  # fmt: skip
            self._holds.append(copy)
            self.file = copy.file
            self.dialect = replace(dialect, encoding="utf-8")
        with self.file.open() as stream:
            head = stream.read(_COPY_NBYTES)
        for mark, name in _WIDE_BOMS.items():
            if head.startswith(mark):
                raise DataError(
                    f"{file.name} is {name.upper()}, by its byte order mark: say "
                    f"--data_reader_params encoding={name}."
                )
        self.first = len(BOM) if head.startswith(BOM) else 0
        head = head[self.first :]
        self.is_empty = not head
        if _LONE_RETURN.search(head):
            other = replace(self.dialect, line_end="\r")
            if _second(other, head) < _second(self.dialect, head):
                self.dialect = other


def _second(dialect: Dialect, head: bytes) -> int:
    """Return where the second record begins: the first end of a line tells how all lines end."""
    starts = dialect.records(head)
    return int(starts[1]) if len(starts) > 1 else len(head)


def _bytewise(encoding: str) -> bool:
    """Tell whether the bytes below 128 are ASCII and never a part of anything else."""
    name = codecs.lookup(encoding).name
    if name in ("utf-8", "ascii"):
        return True
    try:
        letters = bytes(range(256)).decode(encoding, "replace")
        return len(letters) == 256 and letters[:128] == bytes(range(128)).decode("ascii")
    except ValueError:  # UTF-16 and others that begin with a mark
        return False


def _transcode(file: DataFile, encoding: str, to: Path) -> None:
    """Write the file as UTF-8.

    What cannot be decoded becomes a byte that is no UTF-8 and breaks its record.
    """
    codecs.register_error("edl-broken", lambda error: ("\udcff", error.end))  # type: ignore[attr-defined]
    decoder = codecs.getincrementaldecoder(encoding)("edl-broken")
    with file.open() as source, to.open("wb") as target:
        while data := source.read(_COPY_NBYTES):
            target.write(decoder.decode(data).encode("utf-8", "surrogateescape"))
        target.write(decoder.decode(b"", final=True).encode("utf-8", "surrogateescape"))
