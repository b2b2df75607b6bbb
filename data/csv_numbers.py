"""Kernels that read a number from the text of a CSV field.

They are sure of what is plain. A number that is spelled in another way, too long or too large to be
surely exact is left to the caller, who reads it as Python does. Numbers stand at addresses (int64),
and eight bytes may be read behind their ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.compile import (
    high_product,
    inlined,
    leading_zeros,
    load_bytes,
    part,
    trailing_zeros,
)
from .kernels import ONES, below, zero_bytes

_DIGITS = 18  # so many are below 2^63
_LEAST, _MOST = -300, 290  # exponents of ten that need no subnormal and no infinity


def _powers() -> NDArray[np.uint64]:
    """Return the first 128 bits of each power of ten, high and low half, as the paper has them.

    Rounded up from 10^-27 to 10^-1, else down.
    """
    table = np.empty((_MOST - _LEAST + 1, 2), np.uint64)
    for power in range(_LEAST, _MOST + 1):
        if power >= 0:
            number = 10**power
            shift = number.bit_length() - 128
            number = number >> shift if shift > 0 else number << -shift
        else:
            divisor = 10**-power
            number = (1 << (divisor.bit_length() + 127)) // divisor + (power >= -27)
        table[power - _LEAST] = number >> 64, number & (1 << 64) - 1
    return table


_POWERS = _powers()
_TENS = 10.0 ** np.arange(9)
_1, _8, _32, _63, _64 = (np.uint64(n) for n in (1, 8, 32, 63, 64))
_ALL, _NINE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0x1FF)
_DOT, _E, _MINUS, _PLUS, _ZERO = (ord(sign) for sign in ".e-+0")
_LOWER = 32  # the bit that makes a letter a small one
_DOTS, _ZEROS = ONES * np.uint64(_DOT), ONES * np.uint64(_ZERO)  # eight of each
_SIXES, _UPPER_HALVES = ONES * np.uint64(6), ONES * np.uint64(0xF0)  # of each byte
_DIGITS_ONLY = ONES * np.uint64(0x33)  # the upper halves of digits, and of digits plus six
_TENTH = np.uint64((2**64 - 1) // 10)
_WHOLE_BITS = np.uint64(0x4340000000000000)  # of 2^53


@part
def _float_bits(digits, power):  # type: ignore[no-untyped-def]
    """Return the bits of the float64 nearest to digits * 10^power; 0 where that is not certain.

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
def _digit_at(address):  # type: ignore[no-untyped-def]
    """Return the digit there; ten or more where there is none."""
    return np.uint8(byte_at(address) - np.uint8(_ZERO))


@inlined
def leads_with_zero(address):  # type: ignore[no-untyped-def]
    """Tell whether the number there begins with a 0 that another digit follows."""
    word = load_bytes(address)
    first = word & np.uint64(0xFF)
    if first == np.uint64(_MINUS) or first == np.uint64(_PLUS):
        word >>= _8
    second = (word >> _8 & np.uint64(0xFF)) - np.uint64(_ZERO)
    return word & np.uint64(0xFF) == np.uint64(_ZERO) and second < np.uint64(10)


@inlined
def wrong_digits(word):  # type: ignore[no-untyped-def]
    """Return 0 in each byte of a digit up to the first that is none, and there another."""
    upper = word & _UPPER_HALVES | (word + _SIXES & _UPPER_HALVES) >> np.uint64(4)
    return upper ^ _DIGITS_ONLY


@inlined
def digits_from(at, end):  # type: ignore[no-untyped-def]
    """Return how many digits stand there, one after the other."""
    n: Any = 0
    while at + n < end:
        word = load_bytes(at + n)
        wrong = wrong_digits(word)
        if wrong:
            n += np.int64(trailing_zeros(wrong) >> np.uint64(3))
            break
        n += 8
    return min(n, end - at)


@inlined
def digits_to(at, end):  # type: ignore[no-untyped-def]
    """Return the value of up to twenty digits, and whether it is beyond a uint64."""
    over: Any = False
    value = np.uint64(0)
    while at < end:
        digit = np.uint64(_digit_at(at))
        over = over or value > _TENTH or value == _TENTH and digit > np.uint64(5)
        value = value * np.uint64(10) + digit
        at += 1
    return value, over


@part
def _long_number(start, end, floats):  # type: ignore[no-untyped-def]
    """Read the digits of a number of any length, and its exponent, as `read_number` does."""
    value, at, dot, zeros = np.uint64(0), start, -1, 0
    while at < end:
        digit = _digit_at(at)
        if digit < 10:
            value = value * np.uint64(10) + np.uint64(digit)
            zeros += value == 0  # before the first other digit
        elif floats and byte_at(at) == _DOT and dot < 0:
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
    if at < end and (byte_at(at) | _LOWER) == _E:
        at += 1
        sign = 1
        if at < end and (byte_at(at) == _MINUS or byte_at(at) == _PLUS):
            sign = -1 if byte_at(at) == _MINUS else 1
            at += 1
        exponent, first = 0, at
        while at < end and at - first < 4 and _digit_at(at) < 10:
            exponent = exponent * 10 + int(np.int64(byte_at(at)) - _ZERO)
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
    return np.uint64(0) < bits < _WHOLE_BITS, np.int64(bits)


@inlined
def read_number(start, end, floats):  # type: ignore[no-untyped-def]
    """Return whether the field at these addresses is surely read, and its value.

    The value is an int64, or the bits of a float64.
    """
    negative = byte_at(start) == _MINUS
    first = start + (negative or byte_at(start) == _PLUS)
    word = load_bytes(first)
    n, power, known, number = end - first, 0, False, np.int64(0)
    if 0 < n <= 8:
        if floats:
            dot = zero_bytes(word ^ _DOTS)
            place = np.int64(trailing_zeros(dot) >> np.uint64(3)) if dot else 8
            if place < n:
                n -= 1
                power = n - place
                before = below(place)
                word = word & before | word >> _8 & ~before
        half = np.uint64(4 * n)  # a shift by 64 would be none
        word = word << (_64 - half - half) | _ZEROS >> half >> half
        upper = word & _UPPER_HALVES | (word + _SIXES & _UPPER_HALVES) >> np.uint64(4)
        if n and upper == _DIGITS_ONLY:
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
