"""The sorts of values that all records of CSV files have, by column, and the types by them.

A file is looked at in pieces of whole records, each by itself, so that several threads may; what
is seen of two pieces or two files is or-ed. Of each sort of values the first is an example.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..common.spelled import MISSING_WORDS
from . import csv_sort_texts as texts
from . import csv_sorts as sorts
from .csv_dialect import BROKEN, Dialect
from .csv_signs import BLANKS, Signs
from .csv_types import (
    FLAGS,
    FRACTION,
    INEXACT,
    MISSING,
    NUMBER,
    TEXT,
    ZEROED,
    flags_of,
    kind_of,
)

_FORMAT = 1
_KEPT_LETTERS = 80  # of an example
_KNOWN = 1 << 16  # texts in doubt whose sort is remembered
_FEW = 100  # values before the first fraction, all whole: it is against appearances


@dataclass(frozen=True)
class First:
    """The first value of a sort: its record, and its text."""

    record: int
    text: str


@dataclass
class Sorts:
    """The sorts of a column's values, as `csv_types.flags_of` says them, and the first of each."""

    flags: int = 0
    firsts: dict[int, First] = field(default_factory=dict)

    def add(self, flags: int, record: int, text: str) -> None:
        """Add one value."""
        self.flags |= flags
        for flag in FLAGS:
            if flags & flag and (flag not in self.firsts or record < self.firsts[flag].record):
                self.firsts[flag] = First(record, text)

    def merge(self, other: Sorts, offset: int) -> None:
        """Add what was seen of later records, whose numbers begin at `offset`."""
        self.flags |= other.flags
        for flag, first in other.firsts.items():
            if flag not in self.firsts:
                self.firsts[flag] = First(first.record + offset, first.text)


Seen = dict[str, Sorts]


def to_json(seen: Mapping[str, Sorts]) -> str:
    """Return it for a file beside the index."""
    return json.dumps(
        {
            name: [each.flags, [[flag, f.record, f.text] for flag, f in each.firsts.items()]]
            for name, each in seen.items()
        }
    )


def from_json(text: str) -> Seen:
    """Return what `to_json` has written."""
    return {
        name: Sorts(flags, {flag: First(record, text) for flag, record, text in firsts})
        for name, (flags, firsts) in json.loads(text).items()
    }


@dataclass(frozen=True)
class Watch:
    """The columns to be looked at in a file, whose fields are `names`.

    `splits`: {column to look at: the sign between its elements, or ""}. `skipped`: records of the
    header. `spare`: as `csv_head.Head` has it.
    """

    dialect: Dialect
    names: Sequence[str]
    splits: Mapping[str, str]
    spare: bool
    skipped: int
    signs: Signs
    _known: dict[str, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    def key(self) -> str:
        """Return a name for files of all that what is seen depends on."""
        said = (
            _FORMAT, self.dialect.key(), self.dialect.encoding, list(self.names),
            sorted(self.splits.items()), self.spare, self.skipped, sorted(self.signs.texts),
        )  # fmt: skip
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]

    @cached_property
    def _columns(self) -> list[str]:
        return [name for name in self.names if name in self.splits]

    @cached_property
    def _rules(self) -> sorts.Rules:
        kinds = np.zeros(len(self.names), np.int8)
        splits = np.zeros(len(self.names), np.int64)
        for place, name in enumerate(self.names):
            if (sign := self.splits.get(name)) is not None:
                kinds[place] = sorts.LIST if sign else sorts.SINGLE
                splits[place] = ord(sign) if sign else 0
        first = np.zeros(256, np.uint8)
        first[list(b"0123456789+-.")] = texts.NUMERIC
        first[list(BLANKS.encode())] = texts.BLANK
        words = []
        for word in sorted({*MISSING_WORDS, *self.signs.texts, "nan", "NaN", "inf", "Inf"}):
            try:
                data = word.encode(self.dialect.encoding)
            except UnicodeEncodeError:  # then no field is that
                continue
            if not data:
                continue
            if len(data) <= 8 and word not in ("inf", "Inf"):
                words.append(int.from_bytes(data, "little"))
            first[data[0]] |= texts.WORDY | (texts.LONG if len(data) > 8 else 0)
        if escape := self.dialect.escape:
            first[ord(escape)] |= texts.WORDY
        return sorts.Rules(
            self.dialect.signs.copy(), kinds, splits, first, np.array(words, np.uint64),
            np.array([float(n) for n in self.signs.numbers if abs(n) < 2**1000]), self.spare,
            bool(self.signs.texts) or self.dialect.quote not in ('"', "'"),
        )  # fmt: skip

    def look(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Seen:
        """Return what is seen of the records data[begins[i]:ends[i]], numbered from 0.

        Eight ends of a line stand behind the last record.
        """
        encoding = self.dialect.encoding
        mine = data[begins[0] : ends[-1]]
        if mine.max() < 128 or _decodes(mine, encoding):
            return self._looked(data, begins, ends)
        sound = [i for i in range(len(begins)) if _decodes(data[begins[i] : ends[i]], encoding)]
        seen = self._looked(data, begins[sound], ends[sound])
        for each in seen.values():
            for flag, first in each.firsts.items():
                each.firsts[flag] = replace(first, record=sound[first.record])
        return seen

    def _looked(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Seen:
        found = sorts.Found.empty(len(self._columns))
        seen = {name: Sorts() for name in self._columns}
        at = 0
        while at < len(begins):
            at, count = sorts.sort_fields(data, begins, ends, at, self._rules, found)
            for column, record, start, end, raw in found.doubts[:count].tolist():
                self._decide(seen, column, record, data[start:end].tobytes(), bool(raw))
        for column, name in enumerate(self._columns):
            mine = seen[name]
            mine.flags |= int(found.flags[column])
            for flag, (record, start, end) in zip(
                FLAGS, found.firsts[column].tolist(), strict=True
            ):
                if record >= 0 and (flag not in mine.firsts or record < mine.firsts[flag].record):
                    text = data[start:end].tobytes().decode(self.dialect.encoding, "replace")
                    mine.firsts[flag] = First(record, self._example(name, flag, text))
        return seen

    def _example(self, name: str, flag: int, text: str) -> str:
        if sign := self.splits[name]:
            each = (one for one in text.split(sign) if flags_of(one, self.signs) & flag)
            text = next(each, text)
        return text[:_KEPT_LETTERS]

    def _decide(self, seen: Seen, column: int, record: int, data: bytes, raw: bool) -> None:
        """Tell of what sort a field is that the kernel has in doubt."""
        name = self._columns[column]
        try:
            text = data.decode(self.dialect.encoding)
            if raw:
                ((text,),) = replace(self.dialect, comment="").parse(text)
        except BROKEN:  # of a record that is broken
            return
        sign = self.splits[name]
        elements = (text.split(sign) if text else []) if sign else [text]
        for each in elements:
            flags = self._known.get(each)
            if flags is None:
                flags = flags_of(each, self.signs)
                if len(self._known) < _KNOWN:
                    self._known[each] = flags
            seen[name].add(flags, record, each[:_KEPT_LETTERS])


def _decodes(data: NDArray[np.uint8], encoding: str) -> bool:
    try:
        data.tobytes().decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def together(parts: Iterable[Mapping[str, Sorts]], name: str) -> int:
    """Return what the values of a column are in several files."""
    flags = 0
    for seen in parts:
        flags |= seen[name].flags if name in seen else 0
    return flags


def why(parts: Sequence[tuple[str, Mapping[str, Sorts]]], name: str) -> str:
    """Return what decided a column's type against appearances; "" where nothing did.

    `parts`: what was seen of each file, by the file's name, in order.
    """
    flags = together((seen for _, seen in parts), name)
    kind = kind_of(flags)
    if not flags & NUMBER or kind in ("int64", "uint64"):
        return ""
    wanted = (ZEROED, TEXT, INEXACT) if kind == "text" else (FRACTION,)
    begin: tuple[int, int] | None = None  # the first number: file and record
    for place, (file, seen) in enumerate(parts):
        mine = seen[name].firsts if name in seen else {}
        if begin is None and NUMBER in mine:
            begin = place, mine[NUMBER].record
        there = [
            (mine[flag].record, rank, flag) for rank, flag in enumerate(wanted) if flag in mine
        ]
        if not there:
            continue
        _, _, flag = min(there)
        first = mine[flag]
        text, where = first.text.strip(), f"(record {first.record} of {file})"
        if flag == ZEROED:
            return f"{text} has a leading zero {where}"
        if flag == TEXT:
            return f"{text!r} is no number {where}"
        if flag == INEXACT:
            if kind_of(flags_of(text)) == "text":
                return f"{text} is beyond 64 bits and no float64 {where}"
            return f"{text} is no float64 {where}, and not all values are whole numbers of 64 bits"
        if plainly := _not_plain(text):
            return f"{text} {plainly} {where}"
        assert begin is not None
        late = begin[0] < place or begin[1] + _FEW <= first.record
        return f"{text} is no whole number {where}" if late else ""
    return ""


def _not_plain(text: str) -> str:
    """Tell why a whole number is none of int64's; "" where it is no whole number."""
    if text == "-0":
        return "is a zero with a sign"
    if text.startswith("+") and text[1:].isdigit():
        return "has a plus sign"
    return "has an exponent" if "e" in text.lower() and "." not in text and "-" not in text else ""


def first_missing(seen: Mapping[str, Sorts], name: str) -> int | None:
    """Return the first record of a file that has no value in a column."""
    first = seen[name].firsts.get(MISSING) if name in seen else None
    return None if first is None else first.record
