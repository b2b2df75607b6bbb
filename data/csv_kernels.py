"""The loops that make columns of the bytes of CSV records, compiled at first use.

They read what is plain and leave a *doubt* for the rest: a number that is missing, spelled in another
way, too long or too large to be surely exact. Whoever calls them reads these fields as Python does,
and a record that they do not understand at all likewise: one of too few fields, or a text with a NUL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from ..kernels.compile import (
    BOOLEAN,
    BYTES_1D_IN,
    INTEGER,
    INTS_1D,
    INTS_1D_IN,
    compiled,
    high_product,
    inlined,
    leading_zeros,
    load_bytes,
    trailing_zeros,
)
from .kernels import HIGH, NEWLINE, ONES, QUOTE, RETURN, SEPARATOR, zero_bytes

UNWANTED, WHOLE, FLOAT, TEXT = range(4)  # what a field is to become
SURE, MISSING, DOUBLED, DOUBT = range(4)  # what its value is; DOUBLED: a text with quotes in it
_DIGITS = 18  # so many are below 2^63
_LEAST, _MOST = -300, 290  # exponents of ten that need no subnormal and no infinity


def _powers() -> NDArray[np.uint64]:
    """The first 128 bits of each power of ten, high and low half, as the paper has them.

    Rounded up from 10^-27 to 10^-1, else down.
    """
    table = np.empty((_MOST - _LEAST + 1, 2), np.uint64)
    for power in range(_LEAST, _MOST + 1):
        if power >= 0:
            number = 10**power
            shift = number.bit_length() - 128
            number = number >> shift if shift > 0 else number << -shift
        else:
            below = 10**-power
            number = (1 << (below.bit_length() + 127)) // below + (power >= -27)
        table[power - _LEAST] = number >> 64, number & (1 << 64) - 1
    return table


_POWERS = _powers()
_TENS = 10.0 ** np.arange(9)
_1, _8, _32, _63, _64 = (np.uint64(n) for n in (1, 8, 32, 63, 64))
_ALL, _NINE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0x1FF)
_ZEROS = ONES * np.uint64(0x30)  # "00000000"


@inlined
def below(nbytes):  # type: ignore[no-untyped-def]
    """A mask of the first so many bytes, less than eight."""
    return (_1 << np.uint64(8 * nbytes)) - _1


@njit
def _float_bits(digits, power):  # type: ignore[no-untyped-def]
    """The float64 nearest to digits * 10^power, as its bits; 0 where that is not certain.

    `digits` is a uint64 and not 0. Lemire, "Number Parsing at a Gigabyte per Second" (Software:
    Practice and Experience 51, 2021), algorithm 1, whose unsure cases are left to the caller.
    """
    zeros = leading_zeros(digits)
    digits <<= zeros
    low = digits * _POWERS[power - _LEAST, 0]
    high = high_product(digits, _POWERS[power - _LEAST, 0])
    if high & _NINE == _NINE:
        more = high_product(digits, _POWERS[power - _LEAST, 1])
        low += more
        if low < more:
            high += _1
        if low == _ALL:
            return np.uint64(0)
    upper = high >> _63
    shift = upper + np.uint64(9)
    mantissa = high >> shift
    if low <= _1 and mantissa & np.uint64(3) == _1 and mantissa << shift == high:
        if not -4 <= power <= 23:
            return np.uint64(0)
        mantissa &= ~_1  # halfway between two: the even one
    mantissa = (mantissa + (mantissa & _1)) >> _1
    exponent = ((217706 * power) >> 16) + 1086 + np.int64(upper) - np.int64(zeros)
    if mantissa >> np.uint64(53):
        mantissa >>= _1
        exponent += 1
    return mantissa & ~(_1 << np.uint64(52)) | np.uint64(exponent) << np.uint64(52)


@inlined
def byte_at(address):  # type: ignore[no-untyped-def]
    return np.uint8(load_bytes(address) & np.uint64(0xFF))


@inlined
def digit_at(address):  # type: ignore[no-untyped-def]
    """The digit there; of what is none, ten or more."""
    return np.uint8(byte_at(address) - np.uint8(48))


@njit
def _long_number(start, end, floats):  # type: ignore[no-untyped-def]
    """(whether it is certain, the int64, or the bits of the float64) of the digits of a number,
    which stand at these addresses."""
    value, at, dot, zeros = np.uint64(0), start, -1, 0
    while at < end:
        digit = digit_at(at)
        if digit < 10:
            value = value * np.uint64(10) + np.uint64(digit)
            zeros += value == 0  # before the first other digit
        elif floats and byte_at(at) == 46 and dot < 0:  # .
            dot = at
        else:
            break
        at += 1
    n_digits = at - start - (dot >= 0)
    if n_digits < 1 or n_digits - zeros > _DIGITS:
        return False, np.int64(0)
    if not floats:
        return at == end, np.int64(value)
    power = np.int64(0) if dot < 0 else dot + 1 - at
    if at < end and (byte_at(at) | 32) == 101:  # e
        at += 1
        sign = 1
        if at < end and (byte_at(at) == 45 or byte_at(at) == 43):
            sign = -1 if byte_at(at) == 45 else 1
            at += 1
        exponent, first = 0, at
        while at < end and at - first < 4 and digit_at(at) < 10:
            exponent = exponent * 10 + int(np.int64(byte_at(at)) - 48)
            at += 1
        if at == first:
            return False, np.int64(0)
        power += sign * exponent
    if at != end or not _LEAST < power < _MOST - _DIGITS:
        return False, np.int64(0)
    if not value:
        return True, np.int64(0)
    bits = _float_bits(value, power)
    # Beyond 2^53 it is asked whether a whole number was rounded.
    return np.uint64(0) < bits < np.uint64(0x4340000000000000), np.int64(bits)


@inlined
def _number(start, end, floats):  # type: ignore[no-untyped-def]
    """(whether it is certain, the int64, or the bits of the float64) of a field at these addresses."""
    negative = byte_at(start) == 45  # -
    first = start + (negative or byte_at(start) == 43)  # +
    word = load_bytes(first)
    n, power, known, number = end - first, 0, False, np.int64(0)
    if 0 < n <= 8:
        if floats:
            dot = zero_bytes(word ^ (ONES * np.uint64(46)))
            place = np.int64(trailing_zeros(dot) >> np.uint64(3)) if dot else 8
            if place < n:
                n -= 1
                power = n - place
                before = below(place)
                word = word & before | word >> _8 & ~before
        half = np.uint64(4 * n)  # a shift by 64 would be none
        word = word << (_64 - half - half) | _ZEROS >> half >> half
        sixes = ONES * np.uint64(6)
        tens = ONES * np.uint64(0xF0)
        if n and (word & tens | (word + sixes & tens) >> np.uint64(4)) == ONES * np.uint64(0x33):
            word -= _ZEROS  # eight digits at once: Lemire's, section 5
            word = word * np.uint64(10) + (word >> _8)
            pairs = np.uint64(0x000000FF000000FF)
            word = (
                (word & pairs) * np.uint64(0x000F424000000064)
                + (word >> np.uint64(16) & pairs) * np.uint64(0x0000271000000001)
            ) >> _32
            known, number = True, np.int64(word)
            if floats:  # both are exact, so that the quotient is the nearest
                number = np.float64(np.float64(number) / _TENS[power]).view(np.int64)
    if not known:
        known, number = _long_number(first, end, floats)
    if negative:
        number = np.int64(np.uint64(number) | _1 << _63) if floats else -number
    return known, number


def parse_csv(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    signs: NDArray[np.int64],
    kinds: NDArray[np.int8],
    spare: bool,
    wide: bool,
    values: NDArray[np.int64],
    spans: NDArray[np.int64],
    sure: NDArray[np.uint8],
    about: NDArray[np.int64],
) -> bool:
    """Read the fields of the records data[begins[i]:ends[i]]; False where one is not understood.

    The wanted columns are numbered as `kinds` (of each field) has them. Written for column j and
    record i: values[j, i], an int64 or the bits of a float64, of a number; sure[j, i]; spans[j, :, i],
    the first byte and the end, of a text and of a number in doubt. about[0] is set where there are
    bytes beyond ASCII, about[1 + j] to the worst of sure[j], about[1 + n + j] to the letters of the
    longest text; `wide`: in UTF-8, a letter has several bytes. The rules are those of
    `kernels.scan_csv`, without escapes and blanks. Eight ends of a line stand behind the last record.
    """
    known = _parser()(data, begins, ends, signs, kinds, spare, wide, values, spans, sure, about)
    return bool(known)


@functools.cache
def _parser() -> Callable[..., bool]:
    kinds = types.Array(types.int8, 1, "C", readonly=True)
    tables = (types.Array(types.int64, 2, "C"), types.Array(types.int64, 3, "C"))
    sure = types.Array(types.uint8, 2, "C")
    return compiled(
        _parse, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, INTS_1D_IN, kinds, BOOLEAN, BOOLEAN, *tables,
        sure, INTS_1D,
    )  # fmt: skip


def _parse(data, begins, ends, signs, kinds, spare, wide, values, spans, sure, about):  # type: ignore[no-untyped-def]
    separator, newline, carriage = signs[SEPARATOR], signs[NEWLINE], signs[RETURN]
    quote, width, wanted = signs[QUOTE], len(kinds), len(values)
    about[:] = 0
    separators, newlines = np.uint64(separator) * ONES, np.uint64(newline) * ONES
    carriages, quoted = np.uint64(carriage) * ONES, np.uint64(quote) * ONES
    address, beyond = data.ctypes.data, np.uint64(0)
    for i in range(len(begins)):
        at, stop, field, column, ended = begins[i], ends[i], 0, 0, False
        while not ended:
            start, quotes = at, 0
            seen, nuls = np.uint64(0), np.uint64(0)
            if data[at] == quote and at < stop:
                at += 1
                start = at
                while True:
                    word = load_bytes(address + at)
                    found = zero_bytes(word ^ quoted)
                    if not found:
                        seen |= word
                        nuls |= zero_bytes(word)
                        at += 8
                    else:
                        n = np.int64(trailing_zeros(found) >> np.uint64(3))
                        mask = below(n)
                        seen |= word & mask
                        nuls |= zero_bytes(word | ~mask)
                        at += n
                        if at + 1 >= stop or data[at + 1] != quote:
                            break
                        quotes += 1
                        at += 2
                    if at >= stop:
                        return False
                if at >= stop:
                    return False
                end = at
                at += 1
                if not (data[at] == separator or data[at] == newline or data[at] == carriage):
                    return False
            else:
                while True:
                    word = load_bytes(address + at)
                    found = (
                        zero_bytes(word ^ separators)
                        | zero_bytes(word ^ newlines)
                        | zero_bytes(word ^ carriages)
                    )
                    if found:
                        break
                    seen |= word
                    nuls |= zero_bytes(word)
                    at += 8
                n = np.int64(trailing_zeros(found) >> np.uint64(3))
                mask = below(n)
                seen |= word & mask
                nuls |= zero_bytes(word | ~mask)
                at += n
                end = at
            ended = at >= stop or data[at] != separator
            at += 1
            beyond |= seen
            if field >= width:
                if not (spare and field == width and start == end):
                    return False
                field += 1
                continue
            kind = kinds[field]
            field += 1
            if kind == UNWANTED:
                continue
            certain = SURE
            if kind == TEXT:
                if nuls:
                    return False
                letters = end - start - quotes
                if wide and seen & HIGH:
                    for k in range(start, end):
                        letters -= (data[k] & 192) == 128
                about[1 + wanted + column] = max(about[1 + wanted + column], letters)
                certain = DOUBLED if quotes else SURE
                spans[column, 0, i], spans[column, 1, i] = start, end
            elif start == end:
                certain = MISSING
            else:
                known, values[column, i] = _number(address + start, address + end, kind == FLOAT)
                if not known:
                    certain = DOUBT
                    spans[column, 0, i], spans[column, 1, i] = start, end
            sure[column, i] = certain
            about[1 + column] = max(about[1 + column], certain)
            column += 1
        if field < width:
            return False
        at -= 1
        while at < stop and data[at] == carriage:
            at += 1
        if at < stop and data[at] != newline:
            return False
        for rest in range(at, stop):  # blank lines and comments
            beyond |= data[rest]
    about[0] = beyond & HIGH != 0
    return True


def widen(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    sure: NDArray[np.uint8],
    quote: int,
    table: NDArray[np.uint32],
    letters: NDArray[np.uint32],
) -> None:
    """Write texts in numpy's fixed width. `table` has the letter of each byte; none: it is UTF-8."""
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
