"""The loop that tells of what sorts the fields of CSV records are, compiled at first use.

It says of each column what `csv_types.flags_of` says of its fields, or-ed. What it has in doubt it
names for Python to tell. A record that is broken says nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from ..kernels.compile import BYTES_1D_IN, INTEGER, INTS_1D_IN, compiled, inlined
from .csv_kernels import plain_text, quoted_text
from .csv_numbers import byte_at
from .csv_sort_texts import DOUBT, list_flags, text_flags
from .csv_types import BEYOND, FLAGS, INEXACT, NUMBER, TEXT
from .kernels import BLANK, ESCAPE, NEWLINE, NONE, QUOTE, RETURN, SEPARATOR

UNSEEN, SINGLE, LIST = range(3)  # what a field is: not to be looked at, one value, or several
_N_FLAGS = len(FLAGS)
_MIXED, _TOO_LONG = NUMBER | TEXT, BEYOND | INEXACT  # a column is text whatever else it holds


class Rules(NamedTuple):
    """The rules by which fields are sorted, as the kernel takes them.

    `odd`: a text with doubled quotes may be something else.
    """

    signs: NDArray[np.int64]  # of the dialect
    kinds: NDArray[np.int8]  # of each field: UNSEEN, SINGLE or LIST
    splits: NDArray[np.int64]  # the sign between elements
    first: NDArray[np.uint8]  # [256]: what a text may be that begins so
    words: NDArray[np.uint64]  # missing values of up to eight bytes
    numbers: NDArray[np.float64]  # and those that are numbers
    spare: bool
    odd: bool


class Found(NamedTuple):
    """The sorts that have been seen of n columns, and the fields that are in doubt."""

    flags: NDArray[np.int64]  # [column]
    firsts: NDArray[np.int64]  # [column, flag, (record, start, end)]; -1: there is none
    doubts: NDArray[np.int64]  # [place, (column, record, start, end, whether it is as in the file)]
    news: NDArray[np.int64]  # [place, (column, flags, start, end, how it is written)] of one

    @classmethod
    def empty(cls, columns: int, room: int = 256) -> Found:
        """Return room for what is seen of so many columns."""
        return cls(
            np.zeros(columns, np.int64), np.full((columns, _N_FLAGS, 3), -1, np.int64),
            np.empty((max(room, columns), 5), np.int64), np.empty((columns, 5), np.int64),
        )  # fmt: skip


def sort_fields(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    first: int,
    rules: Rules,
    found: Found,
) -> tuple[int, int]:
    """Look at the records data[begins[i]:ends[i]] from `first` on.

    Return the first that was not looked at, since there was no more room for doubts, and how many
    doubts there are. Eight ends of a line stand behind the last record.
    """
    after, doubts = _sorter()(data, begins, ends, first, rules, found)
    return int(after), int(doubts)


def prepare() -> None:
    """Compile it, so that several threads need not."""
    _sorter()


@functools.cache
def _sorter() -> Callable[..., tuple[int, int]]:
    none = np.empty(0, np.int64)
    rules = Rules(
        none, none.astype(np.int8), none, none.astype(np.uint8), none.astype(np.uint64),
        none.astype(np.float64), False, False,
    )  # fmt: skip
    kinds = map(numba.typeof, (rules, Found.empty(0)))
    return compiled(_sort, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, INTEGER, *kinds)


def _sort(data, begins, ends, first_record, rules, found):  # type: ignore[no-untyped-def]
    signs, kinds, splits = rules.signs, rules.kinds, rules.splits
    dialect = (
        signs[SEPARATOR], signs[NEWLINE], signs[RETURN], signs[QUOTE], signs[ESCAPE], signs[BLANK],
        rules.spare, rules.odd,
    )  # fmt: skip
    means = (
        rules.first.ctypes.data, rules.words.ctypes.data, len(rules.words),
        rules.numbers.ctypes.data, len(rules.numbers),
    )  # fmt: skip
    flags, firsts, doubts, news = found.flags, found.firsts, found.doubts, found.news
    n_doubts = 0
    for i in range(first_record, len(begins)):
        if n_doubts + len(flags) > len(doubts):
            return i, n_doubts
        bounds = begins[i], ends[i]
        n_news = _record(data, bounds, dialect, kinds, splits, means, flags, news)
        for place in range(n_news):
            if news[place, 1] & DOUBT:
                doubts[n_doubts, 0], doubts[n_doubts, 1] = news[place, 0], i
                doubts[n_doubts, 2:] = news[place, 2:]
                n_doubts += 1
            _keep(i, news[place], flags, firsts)
    return len(begins), n_doubts


@inlined
def _record(data, bounds, dialect, kinds, splits, means, flags, news):  # type: ignore[no-untyped-def]
    """Look at a record, and return how many news of columns it has: none where it is broken."""
    separator, newline, carriage, _, _, _, spare, odd = dialect
    at, stop = bounds
    number, column, ended, n_news, width = 0, 0, False, 0, len(kinds)
    while not ended:
        quoted, start, end, at, raw = _field(data, at, stop, dialect)
        if end < 0 or at > stop:
            return 0
        ended = at >= stop or data[at] != separator
        if ended and data[at] != newline and data[at] != carriage:
            return 0
        at += 1
        if number >= width:
            if not (spare and number == width and start == end):
                return 0
        elif kinds[number] != UNSEEN:
            told, known = np.int64(0), flags[column]
            if known & _MIXED != _MIXED and known & _TOO_LONG != _TOO_LONG:
                if raw:
                    # Doubled quotes are of a text; what an escape hides may be anything.
                    plain = byte_at(means[0] + np.int64(data[start])) == 0 or raw == _DOUBLED
                    told = np.int64(
                        TEXT if plain and not odd and kinds[number] == SINGLE else DOUBT
                    )
                elif kinds[number] == LIST:
                    told = list_flags(data, start, end, splits[number], means)
                else:
                    told = text_flags(data.ctypes.data + start, data.ctypes.data + end, means)
            if told & ~known:
                outer = np.int64(raw > 0 and quoted)
                news[n_news, 0], news[n_news, 1], news[n_news, 4] = column, told, raw
                news[n_news, 2], news[n_news, 3] = start - outer, end + outer
                n_news += 1
            column += 1
        number += 1
    at -= 1
    while at < stop and data[at] == carriage:
        at += 1
    sound = number >= width and (at >= stop or data[at] == newline)
    return n_news if sound else 0


_DOUBLED, _ESCAPED = 1, 2  # a text that is not as in the file


@inlined
def _field(data, at, stop, dialect):  # type: ignore[no-untyped-def]
    """Read a field: whether it is quoted, its start, its end, where it is over, how it is written.

    That is 0, _DOUBLED or _ESCAPED. Its end is -1 where a quote is not closed.
    """
    separator, newline, carriage, quote, escape, blank = dialect[:6]
    while data[at] == blank and at < stop:
        at += 1
    quoted = data[at] == quote and at < stop
    if quoted:
        start = at + 1
        if escape == NONE:
            end, quotes, _, _ = quoted_text(data.ctypes.data, start, stop, quote)
            raw = np.int64(_DOUBLED if quotes else 0)
        else:
            end, raw = _escaped_quoted(data, start, stop, quote, escape)
        return True, start, end, end + 1, raw
    if escape == NONE:
        end, _, _ = plain_text(data.ctypes.data, at, separator, newline, carriage)
        return False, at, end, end, np.int64(0)
    end, raw = _escaped(data, at, stop, separator, newline, carriage, escape)
    return False, at, end, end, raw


@inlined
def _keep(record, new, flags, firsts):  # type: ignore[no-untyped-def]
    """Add what is new of a column."""
    column = new[0]
    told = new[1] & ~DOUBT & ~flags[column]
    flags[column] |= told
    for bit in range(_N_FLAGS):
        if told >> bit & 1:
            firsts[column, bit, 0], firsts[column, bit, 1] = record, new[2]
            firsts[column, bit, 2] = new[3]


@inlined
def _escaped_quoted(data, at, stop, quote, escape):  # type: ignore[no-untyped-def]
    """Read a text within quotes: (its closing quote or -1, how it is written)."""
    raw = np.int64(0)
    while at < stop:
        byte = data[at]
        if byte == escape:
            raw = np.int64(_ESCAPED)
            at += 1
        elif byte == quote:
            if at + 1 >= stop or data[at + 1] != quote:
                break
            raw = max(raw, np.int64(_DOUBLED))
            at += 1
        at += 1
    return (at if at < stop else -1), raw


@inlined
def _escaped(data, at, stop, separator, newline, carriage, escape):  # type: ignore[no-untyped-def]
    """Read a text up to one of these signs: (its end, how it is written)."""
    raw = np.int64(0)
    while at < stop:
        byte = data[at]
        if byte == escape:
            raw = np.int64(_ESCAPED)
            at += 1
        elif byte in (separator, newline, carriage):
            break
        at += 1
    return at, raw
