"""Kernels that tell what the text of a CSV field is, as `csv_types.flags_of` does.

What they have in doubt (a number of very many digits, a sign before a word) is DOUBT, for Python to
tell. Texts stand at addresses (int64), and eight bytes may be read behind their ends.
"""

from __future__ import annotations

import numpy as np

from ..kernels.compile import inlined, load_bytes, part, trailing_zeros
from .csv_numbers import byte_at, digits_from, digits_to, read_number, wrong_digits
from .csv_types import (
    BEYOND,
    FRACTION,
    INEXACT,
    MISSING,
    NEGATIVE,
    NUMBER,
    TEXT,
    UNSIGNED,
    WORD,
    ZEROED,
)
from .kernels import ONES, below

NUMERIC, WORDY, LONG, BLANK = 1, 2, 4, 8  # what a text may be that begins so; 0: but text
DOUBT = 1 << 20
_NO_NUMBER = 1 << 21
_SURE_DIGITS = 15  # so many are below 2^53
_MANY_DIGITS = 200  # with an exponent of two digits these are below the largest float64
_MINUS, _PLUS, _DOT, _ZERO, _E, _I, _N = (ord(sign) for sign in "-+.0ein")
_SMALL = 32  # the bit that makes a letter a small one
_SMALLS = ONES * np.uint64(_SMALL)
_NAN, _INF, _INFINITY = (
    np.uint64(int.from_bytes(word, "little")) for word in (b"nan", b"inf", b"infinity")
)
_1, _8, _63, _BYTE = (np.uint64(n) for n in (1, 8, 63, 0xFF))
_ALL = ~np.uint64(0)
_EXACT = np.uint64(1 << 53)

# `means`, of the kernels below: the addresses of a table [256] of what a text may be that begins
# with a byte, of the words of up to eight bytes for a missing value (and how many there are), and
# of the numbers for one. Arrays would be counted as objects are.


@inlined
def _is_blank(byte):  # type: ignore[no-untyped-def]
    return byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31


@inlined
def list_flags(data, start, end, sign, means):  # type: ignore[no-untyped-def]
    """Tell what the elements of a list are, or-ed; nothing of a list without any."""
    told, at, address = np.int64(0), start, data.ctypes.data
    while start < end and at <= end:
        begin = at
        while at < end and data[at] != sign:
            at += 1
        told |= text_flags(address + begin, address + at, means)
        at += 1
    return told


@inlined
def text_flags(start, end, means):  # type: ignore[no-untyped-def]
    """Tell what the text at these addresses is, at once where it is a plain one."""
    first = byte_at(means[0] + np.int64(byte_at(start)))
    if first == 0 and start < end:
        return np.int64(TEXT)
    negative = np.int64(byte_at(start) == _MINUS)
    begin, n = start + negative, end - start - negative
    if first == NUMERIC and 0 < n <= 8 and means[4] == 0:
        word = load_bytes(begin)
        wrong = wrong_digits(word) & (_ALL >> np.uint64(64 - 8 * n))
        zeroed = word & _BYTE == np.uint64(_ZERO)
        if wrong == 0 and not (zeroed and (n > 1 or negative)):
            return np.int64(NUMBER) | negative * NEGATIVE
        if wrong:
            place = trailing_zeros(wrong) & ~np.uint64(7)
            dot = word >> place & _BYTE == np.uint64(_DOT)
            if dot and wrong & ~(_BYTE << place) == 0 and n > 1 and not (zeroed and place > _8):
                return np.int64(NUMBER | FRACTION)
    return _flags(start, end, means)


@part
def _flags(start, end, means):  # type: ignore[no-untyped-def]
    """Tell what the text at these addresses is."""
    first_at, words_at, n_words, numbers_at, n_numbers = means
    while start < end and _is_blank(byte_at(start)):
        start += 1
    while start < end and _is_blank(byte_at(end - 1)):
        end -= 1
    if start == end:
        return np.int64(MISSING)
    first = byte_at(first_at + np.int64(byte_at(start)))
    if first == 0:
        return np.int64(TEXT)
    n = end - start
    if first & WORDY:
        if n <= 8:
            word = load_bytes(start)
            small = word | _SMALLS
            if n < 8:
                word &= below(n)
                small &= below(n)
            for k in range(n_words):
                if word == load_bytes(words_at + 8 * k):
                    return np.int64(MISSING)
            if small == _NAN:
                return np.int64(MISSING)
            if small in (_INF, _INFINITY):
                return np.int64(WORD)
        elif first & LONG:
            return np.int64(DOUBT)
    if first & NUMERIC:
        told = _number(start, end, numbers_at, n_numbers)
        if told != _NO_NUMBER:
            return told
        byte = byte_at(start)
        if n > 1 and byte in (_MINUS, _PLUS):
            after = byte_at(start + 1)
            small = after | _SMALL
            if small in (_N, _I) or after in (_MINUS, _PLUS):
                return np.int64(DOUBT)
    return np.int64(TEXT)


@inlined
def _is_among(number, numbers_at, n_numbers):  # type: ignore[no-untyped-def]
    for k in range(n_numbers):
        if number == np.int64(load_bytes(numbers_at + 8 * k)).view(np.float64):
            return True
    return False


@inlined
def _number(start, end, numbers_at, n_numbers):  # type: ignore[no-untyped-def]
    """Tell what a number is; _NO_NUMBER: it is none."""
    sign = byte_at(start)
    first = start + (sign in (_MINUS, _PLUS))
    run = digits_from(first, end)
    zeroed = run > 1 and byte_at(first) == _ZERO
    if first + run < end:
        told = _fraction(first + run, end, run)
    else:
        told = np.int64(NUMBER if run else _NO_NUMBER)
    if told == _NO_NUMBER:
        return told
    if zeroed:
        return np.int64(DOUBT if n_numbers else NUMBER | ZEROED)
    if told & FRACTION and n_numbers:
        known, bits = read_number(start, end, True)
        if not known:
            return np.int64(DOUBT)
        if _is_among(np.int64(bits).view(np.float64), numbers_at, n_numbers):
            return np.int64(MISSING)
    if told & (FRACTION | DOUBT):
        return told
    return _whole(first, end, sign, numbers_at, n_numbers)


@inlined
def _whole(first, end, sign, numbers_at, n_numbers):  # type: ignore[no-untyped-def]
    """Tell what a whole number is, without leading zeros, whose first digit is there."""
    told, run, negative = np.int64(NUMBER), end - first, sign == _MINUS
    if run > 20 or n_numbers and run > _SURE_DIGITS:
        return np.int64(DOUBT)
    if sign == _PLUS or negative and byte_at(first) == _ZERO:
        told |= FRACTION
    elif negative:
        told |= NEGATIVE
    if run <= _SURE_DIGITS and not n_numbers:
        return told
    value, over = digits_to(first, end)
    if over:
        return np.int64(DOUBT)
    signed = -np.float64(value) if negative else np.float64(value)
    if _is_among(signed, numbers_at, n_numbers):
        return np.int64(MISSING)
    if value and value >> trailing_zeros(value) > _EXACT:
        told |= INEXACT
    if negative and value > _1 << _63:
        told |= BEYOND
    elif not negative and sign != _PLUS and value >> _63:
        told |= UNSIGNED
    return told


@inlined
def _fraction(at, end, run):  # type: ignore[no-untyped-def]
    """Tell what a number is that goes on at `at`, after so many digits: DOUBT or a FRACTION."""
    digits, power, told = run, False, np.int64(NUMBER | FRACTION)
    if byte_at(at) == _DOT:
        more = digits_from(at + 1, end)
        digits += more
        at += 1 + more
    if digits == 0:
        return np.int64(_NO_NUMBER)
    if at < end and byte_at(at) | _SMALL == _E:
        at += 1
        if at < end and byte_at(at) in (_MINUS, _PLUS):
            at += 1
        tens = digits_from(at, end)
        if tens == 0:
            return np.int64(_NO_NUMBER)
        at += tens
        power = True
        if tens > 2:
            told = np.int64(DOUBT)
    if at != end:
        return np.int64(_NO_NUMBER)
    if run > (_MANY_DIGITS if power else _SURE_DIGITS):
        return np.int64(DOUBT)
    return told
