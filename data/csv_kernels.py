"""The loops that make columns of the bytes of CSV records, compiled at first use.

They read what is plain and leave a *doubt* for the rest: a number that is missing, spelled in
another way, too long or too large to be surely exact. Whoever calls them reads these fields as
Python does, and a record that they do not understand at all likewise: one of too few fields, or a
text with a NUL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from ..kernels.compile import (
    BOOLEAN,
    BYTES_1D_IN,
    INTEGER,
    INTS_1D,
    INTS_1D_IN,
    compiled,
    inlined,
    load_bytes,
    trailing_zeros,
)
from .csv_numbers import byte_at, leads_with_zero, read_number
from .kernels import HIGH, NEWLINE, ONES, QUOTE, RETURN, SEPARATOR, below, zero_bytes

UNWANTED, WHOLE, FLOAT, TEXT = range(4)  # what a field is to become
STRICT = 4  # or-ed to a number: one with a leading zero is a doubt
SURE, MISSING, DOUBLED, DOUBT = range(4)  # what its value is; DOUBLED: a text with quotes in it
START, END = range(2)  # of an extent


class Fields(NamedTuple):
    """The fields that `parse_csv` reads, for column j and record i of those wanted.

    The columns are numbered in the order in which the records have them.
    """

    values: NDArray[np.int64]  # [j, i]: of a number an int64, or the bits of a float64
    extents: NDArray[np.int64]  # [j, START or END, i]: bytes, of a text and of a number in doubt
    states: NDArray[np.uint8]  # [j, i]: SURE, MISSING, DOUBLED or DOUBT
    worst: NDArray[np.uint8]  # [j]: the highest of its states
    longest: NDArray[np.int64]  # [j]: the letters of its longest text

    @classmethod
    def empty(cls, columns: int, records: int) -> Fields:
        """Return room for so many fields."""
        return cls(
            np.empty((columns, records), np.int64), np.empty((columns, 2, records), np.int64),
            np.empty((columns, records), np.uint8), np.zeros(columns, np.uint8),
            np.zeros(columns, np.int64),
        )  # fmt: skip


def parse_csv(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    signs: NDArray[np.int64],
    kinds: NDArray[np.int8],
    spare: bool,
    wide: bool,
) -> tuple[Fields, bool] | None:
    """Return the fields of the records data[begins[i]:ends[i]], and whether all bytes are ASCII.

    None where a record is not understood. `kinds` says what each field is to become; `spare`: an
    empty field may follow the last one; `wide`: in UTF-8, a letter has several bytes. The rules are
    those of `kernels.scan_csv`, without escapes and blanks. Eight ends of a line stand behind the
    last record.
    """
    fields = Fields.empty(int(np.count_nonzero(kinds != UNWANTED)), len(begins))
    understood, ascii_only = _parser()(data, begins, ends, signs, kinds, spare, wide, fields)
    return (fields, bool(ascii_only)) if understood else None


@functools.cache
def _parser() -> Callable[..., tuple[bool, bool]]:
    kinds = types.Array(types.int8, 1, "C", readonly=True)
    return compiled(
        _parse, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, INTS_1D_IN, kinds, BOOLEAN, BOOLEAN,
        numba.typeof(Fields.empty(0, 0)),  # type: ignore[no-untyped-call]
    )  # fmt: skip


def _parse(data, begins, ends, signs, kinds, spare, wide, fields):  # type: ignore[no-untyped-def]
    separator, newline, carriage = signs[SEPARATOR], signs[NEWLINE], signs[RETURN]
    quote, width, seen_ever = signs[QUOTE], len(kinds), np.uint64(0)
    values, extents, states, worst, longest = fields
    address = data.ctypes.data
    for i in range(len(begins)):
        at, stop, number, column, ended = begins[i], ends[i], 0, 0, False
        while not ended:
            start, quotes = at, 0
            if data[at] == quote and at < stop:
                start += 1
                end, quotes, seen, nuls = quoted_text(address, start, stop, quote)
                at = end + 1
                if end < 0 or not (
                    data[at] == separator or data[at] == newline or data[at] == carriage
                ):
                    return False, False
            else:
                at, seen, nuls = plain_text(address, at, separator, newline, carriage)
                end = at
            ended = at >= stop or data[at] != separator
            at += 1
            seen_ever |= seen
            if number >= width:
                if not (spare and number == width and start == end):
                    return False, False
            elif kinds[number] != UNWANTED:
                if kinds[number] == TEXT:
                    if nuls:
                        return False, False
                    state = DOUBLED if quotes else SURE
                    letters = end - start - quotes
                    if wide and seen & HIGH:
                        letters -= _continuations(data, start, end)
                    longest[column] = max(longest[column], letters)
                else:
                    state, values[column, i] = _number(
                        address + start, address + end, kinds[number]
                    )
                if state == DOUBT or kinds[number] == TEXT:
                    extents[column, START, i], extents[column, END, i] = start, end
                states[column, i] = state
                worst[column] = max(worst[column], state)
                column += 1
            number += 1
        if number < width:
            return False, False
        at -= 1
        while at < stop and data[at] == carriage:
            at += 1
        if at < stop and data[at] != newline:
            return False, False
        for rest in range(at, stop):  # blank lines and comments
            seen_ever |= data[rest]
    return True, seen_ever & HIGH == 0


@inlined
def quoted_text(address, at, stop, quote):  # type: ignore[no-untyped-def]
    """Read a text within quotes: (its end, doubled quotes, its bytes or-ed, a mask of its NULs).

    Its end is the closing quote; -1 where there is none before `stop`.
    """
    quotes, seen, nuls = 0, np.uint64(0), np.uint64(0)
    while at < stop:
        word = load_bytes(address + at)
        found = zero_bytes(word ^ np.uint64(quote) * ONES)
        if not found:
            seen |= word
            nuls |= zero_bytes(word)
            at += 8
            continue
        n, head, zeros = _head(word, found)
        seen |= head
        nuls |= zeros
        at += n
        if at + 1 >= stop or byte_at(address + at + 1) != quote:
            break
        quotes += 1
        at += 2
    return (at if at < stop else -1), quotes, seen, nuls


@inlined
def plain_text(address, at, separator, newline, carriage):  # type: ignore[no-untyped-def]
    """Read a text up to one of these signs: (its end, its bytes or-ed, a mask of its NULs)."""
    seen, nuls = np.uint64(0), np.uint64(0)
    while True:
        word = load_bytes(address + at)
        found = (
            zero_bytes(word ^ np.uint64(separator) * ONES)
            | zero_bytes(word ^ np.uint64(newline) * ONES)
            | zero_bytes(word ^ np.uint64(carriage) * ONES)
        )
        if found:
            break
        seen |= word
        nuls |= zero_bytes(word)
        at += 8
    n, head, zeros = _head(word, found)
    return at + n, seen | head, nuls | zeros


@inlined
def _head(word, found):  # type: ignore[no-untyped-def]
    """Return how many bytes stand before the first found one, these, and a mask of their NULs."""
    n = np.int64(trailing_zeros(found) >> np.uint64(3))
    mask = below(n)
    return n, word & mask, zero_bytes(word | ~mask)


@inlined
def _continuations(data, start, end):  # type: ignore[no-untyped-def]
    """Return how many bytes of UTF-8 go on with a letter."""
    n = 0
    for k in range(start, end):
        n += (data[k] & 0b11000000) == 0b10000000
    return n


@inlined
def _number(start, end, kind):  # type: ignore[no-untyped-def]
    """Return the state of a field of numbers at these addresses, and its value."""
    if start == end:
        return MISSING, np.int64(0)
    if kind & STRICT and leads_with_zero(start):
        return DOUBT, np.int64(0)
    known, value = read_number(start, end, kind & FLOAT != 0)
    return (SURE if known else DOUBT), value


class Elements(NamedTuple):
    """The elements of lists, one list after the other, as `Fields` has fields of one column."""

    values: NDArray[np.int64]  # of numbers: int64, or the bits of a float64
    extents: NDArray[np.int64]  # [START or END, i]
    states: NDArray[np.uint8]
    lengths: NDArray[np.int64]  # how many each list has
    worst: int
    longest: int


def split_lists(
    data: NDArray[np.uint8],
    extents: NDArray[np.int64],
    states: NDArray[np.uint8],
    signs: tuple[int, int],
    kind: int,
    wide: bool,
) -> Elements:
    """Return the elements of lists, which are texts of `parse_csv`: an empty one has none.

    `signs`: that between two elements, and the quote.
    """
    lengths = np.empty(len(states), np.int64)
    total = _counter()(data, *extents, signs[0], lengths)
    found = Elements(
        np.empty(total, np.int64), np.empty((2, total), np.int64), np.empty(total, np.uint8),
        lengths, 0, 0,
    )  # fmt: skip
    worst, longest = _splitter()(data, extents, states, signs, kind, wide, found)
    return found._replace(worst=int(worst), longest=int(longest))


@functools.cache
def _counter() -> Callable[..., int]:
    return compiled(_count, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, INTEGER, INTS_1D)


def _count(data, starts, ends, sign, lengths):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(len(starts)):
        n: Any = np.int64(starts[i] < ends[i])
        for at in range(starts[i], ends[i]):
            n += data[at] == sign
        lengths[i] = n
        total += n
    return total


@functools.cache
def _splitter() -> Callable[..., tuple[int, int]]:
    none = np.empty(0, np.int64)
    found = Elements(none, np.empty((2, 0), np.int64), none.astype(np.uint8), none, 0, 0)
    return compiled(
        _split, BYTES_1D_IN, types.Array(types.int64, 2, "C", readonly=True), BYTES_1D_IN,
        types.UniTuple(INTEGER, 2), INTEGER, BOOLEAN, numba.typeof(found),  # type: ignore[no-untyped-call]
    )  # fmt: skip


def _split(data, extents, states, signs, kind, wide, elements):  # type: ignore[no-untyped-def]
    starts, ends = extents[START], extents[END]
    sign, quote = signs
    values, found, made, lengths, _, _ = elements
    place, worst, longest, address = 0, 0, 0, data.ctypes.data
    for i in range(len(starts)):
        at = starts[i]
        for _ in range(lengths[i]):
            start, quotes = at, 0
            while at < ends[i] and data[at] != sign:
                quotes += data[at] == quote
                at += 1
            found[START, place], found[END, place] = start, at
            if kind == TEXT:
                quotes = quotes // 2 if states[i] == DOUBLED else 0
                state = DOUBLED if quotes else SURE
                letters = at - start - quotes
                if wide:
                    letters -= _continuations(data, start, at)
                longest = max(longest, letters)
            else:
                state, values[place] = _number(address + start, address + at, kind)
            made[place] = state
            worst = max(worst, state)
            place += 1
            at += 1
    return worst, longest


def widen(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    sure: NDArray[np.uint8],
    quote: int,
    table: NDArray[np.uint32],
    letters: NDArray[np.uint32],
) -> None:
    """Write texts in numpy's fixed width.

    `table` has the letter of each byte; none: it is UTF-8.
    """
    _widener()(data, starts, ends, sure, quote, table, letters)


@functools.cache
def _widener() -> Callable[..., None]:
    table, letters = (
        types.Array(types.uint32, 1, "C", readonly=True),
        types.Array(types.uint32, 2, "C"),
    )
    return compiled(
        _widen, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, BYTES_1D_IN, INTEGER, table, letters
    )


def _widen(data, starts, ends, sure, quote, table, letters):  # type: ignore[no-untyped-def]
    for i in range(len(starts)):
        at, end, n = starts[i], ends[i], 0
        while at < end:
            byte = data[at]
            letter = np.uint32(byte)
            at += 1
            if byte > 127:
                if len(table):
                    letter = table[byte]
                else:
                    more = 1 + (byte >= 224) + (byte >= 240)
                    letter &= np.uint32(63 >> more)
                    for _ in range(more):
                        letter = letter << np.uint32(6) | np.uint32(data[at] & 63)
                        at += 1
            elif byte == quote and sure[i] == DOUBLED:
                at += 1
            letters[i, n] = letter
            n += 1
        letters[i, n:] = 0
