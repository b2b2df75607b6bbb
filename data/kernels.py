"""The loops over bytes that find the records of a CSV or TFRecord, compiled at first use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ..kernels.compile import (
    BYTES_1D_IN,
    INTEGER,
    INTS_1D,
    INTS_1D_IN,
    compiled,
    inlined,
    load_bytes,
    part,
    trailing_zeros,
)

# The scanner's state between two chunks.
IN_QUOTES, FIELD_START, AFTER_QUOTE, IN_RECORD, ESCAPED, COUNT = range(6)
# The bytes that mean something to it; NONE is none of them.
SEPARATOR, NEWLINE, RETURN, QUOTE, ESCAPE, COMMENT, BLANK = range(7)
NONE = -1
_NOTHING, _RECORD, _COMMENT = range(3)  # what IN_RECORD says that the scanner stands in

_TABLES = types.Array(types.uint32, 2, "C", readonly=True)

_1 = np.uint64(1)
ONES = np.uint64(0x0101010101010101)
HIGH = ONES * np.uint64(0x80)


@inlined
def zero_bytes(word):  # type: ignore[no-untyped-def]
    """Return the high bit of each byte that is 0, and perhaps of later ones.

    The lowest of them is sure.
    """
    return (word - ONES) & ~word & HIGH


@inlined
def below(nbytes):  # type: ignore[no-untyped-def]
    """Return a mask of the first so many bytes, less than eight."""
    return (_1 << np.uint64(8 * nbytes)) - _1


def csv_state() -> NDArray[np.int64]:
    """Return the scanner's state at the start of a file."""
    return np.array([0, 1, 0, 0, 0, 0], dtype=np.int64)


def scan_csv(
    chunk: NDArray[np.uint8],
    base: int,
    signs: NDArray[np.int64],
    state: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> int:
    """Write the offset of each record that begins in the chunk; return how many.

    The rules are those of Python's csv module: a quote counts only at the start of a field, a
    doubled quote within quotes is text, a newline within quotes is text, a blank line is nothing,
    and what follows an escape is text. A line that begins with the sign of a comment is nothing.
    """
    return int(_scanner()(chunk, base, signs, state, starts))


@functools.cache
def _scanner() -> Callable[..., int]:
    return compiled(_scan, BYTES_1D_IN, INTEGER, INTS_1D_IN, INTS_1D, INTS_1D)


def _scan(chunk, base, signs, state, starts):  # type: ignore[no-untyped-def]
    found, i, n = 0, 0, len(chunk)
    in_quotes, field_start, after_quote, in_record, escaped, count = state
    separator, newline, carriage = signs[SEPARATOR], signs[NEWLINE], signs[RETURN]
    quote, escape, comment, blank = signs[QUOTE], signs[ESCAPE], signs[COMMENT], signs[BLANK]
    newlines = np.uint64(newline) * ONES
    quotes = newlines if quote == NONE else np.uint64(quote) * ONES
    escapes = newlines if escape == NONE else np.uint64(escape) * ONES
    while i < n:
        # As far as eight bytes have nothing of meaning, they are passed over together.
        while i + 8 <= n and not escaped and (in_quotes or in_record == _RECORD and blank == NONE):
            word = load_bytes(chunk.ctypes.data + i)
            signed = zero_bytes(word ^ quotes) | zero_bytes(word ^ escapes)
            if not in_quotes:
                signed |= zero_bytes(word ^ newlines)
            free: Any = np.int64(trailing_zeros(signed) >> np.uint64(3)) if signed else 8
            if free and not in_quotes:
                field_start, after_quote = np.int64(chunk[i + free - 1] == separator), 0
            i += free
            if signed:
                break
        if i == n:
            break
        byte = chunk[i]
        i += 1
        if escaped:
            escaped = 0
            continue
        if in_quotes:
            if byte == quote:
                in_quotes, after_quote = 0, 1
            elif byte == escape:
                escaped = 1
            continue
        if byte == newline:
            in_record, field_start, after_quote = _NOTHING, 1, 0
            continue
        if in_record != _RECORD:
            if byte == carriage or in_record == _COMMENT:
                continue
            if byte == comment:
                in_record = _COMMENT
                continue
            starts[found] = base + i - 1
            found += 1
            count += 1
            in_record = _RECORD
        if byte == quote and (field_start or after_quote):
            in_quotes = 1
        elif byte == escape:
            escaped = 1
        after_quote = 0
        field_start = 1 if byte == separator or (field_start and byte == blank) else 0
    state[IN_QUOTES], state[FIELD_START], state[AFTER_QUOTE] = in_quotes, field_start, after_quote
    state[IN_RECORD], state[ESCAPED], state[COUNT] = in_record, escaped, count
    return found


def _crc32c_tables() -> NDArray[np.uint32]:
    """Return eight tables of the Castagnoli polynomial, reflected ("slicing by 8")."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> np.uint32(8)) ^ tables[0][tables[k - 1] & np.uint32(255)]
    return tables


CRC_TABLES = _crc32c_tables()


@part
def _crc32c(data, start, end, tables):  # type: ignore[no-untyped-def]
    crc = np.uint32(0xFFFFFFFF)
    whole = end - (end - start) % 8
    for i in range(start, whole, 8):
        crc = (
            tables[7, data[i] ^ (crc & np.uint32(255))]
            ^ tables[6, data[i + 1] ^ ((crc >> np.uint32(8)) & np.uint32(255))]
            ^ tables[5, data[i + 2] ^ ((crc >> np.uint32(16)) & np.uint32(255))]
            ^ tables[4, data[i + 3] ^ (crc >> np.uint32(24))]
            ^ tables[3, data[i + 4]]
            ^ tables[2, data[i + 5]]
            ^ tables[1, data[i + 6]]
            ^ tables[0, data[i + 7]]
        )
    for i in range(whole, end):
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ data[i]) & np.uint32(255)]
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@part
def _masked(crc):  # type: ignore[no-untyped-def]
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@part
def _little(data, start, nbytes):  # type: ignore[no-untyped-def]
    value = np.uint64(0)
    for i in range(nbytes):
        value |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return value


def walk_frames(
    chunk: NDArray[np.uint8], base: int, size: int, ends: NDArray[np.int64]
) -> tuple[int, bool]:
    """Write where each TFRecord ends whose header is in the chunk.

    The chunk begins with a header, at `base` of a file of `size` bytes. Return how many were found,
    and whether the next one's length is corrupt.
    """
    found, corrupt = _walker()(chunk, base, size, CRC_TABLES, ends)
    return int(found), bool(corrupt)


@functools.cache
def _walker() -> Callable[..., tuple[int, bool]]:
    return compiled(_walk, BYTES_1D_IN, INTEGER, INTEGER, _TABLES, INTS_1D)


def _walk(chunk, base, size, tables, ends):  # type: ignore[no-untyped-def]
    found, at = 0, 0
    while at + 12 <= len(chunk):
        if _masked(_crc32c(chunk, at, at + 8, tables)) != np.int64(_little(chunk, at + 8, 4)):
            return found, True
        nbytes = _little(chunk, at, 8)
        after = size - base if nbytes > np.uint64(size) else at + np.int64(nbytes) + 16
        at = min(size - base, after)
        ends[found] = base + at
        found += 1
    return found, False


def sound_frames(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> bool:
    """Tell whether each of these TFRecords is whole, with the right checksums."""
    return bool(_checker()(data, begins, ends, CRC_TABLES))


@functools.cache
def _checker() -> Callable[..., bool]:
    return compiled(_are_sound, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, _TABLES)


def _are_sound(data, begins, ends, tables):  # type: ignore[no-untyped-def]
    for i in range(len(begins)):
        start, end = begins[i], ends[i]
        if end - start < 16 or _little(data, start, 8) != np.uint64(end - start - 16):
            return False
        if _masked(_crc32c(data, start, start + 8, tables)) != np.int64(
            _little(data, start + 8, 4)
        ):
            return False
        crc = _masked(_crc32c(data, start + 12, end - 4, tables))
        if crc != np.int64(_little(data, end - 4, 4)):
            return False
    return True


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the checksum of TFRecord: CRC-32C, rotated right by 15 bits, plus a constant."""
    return int(_summer()(np.frombuffer(data, np.uint8), CRC_TABLES))


@functools.cache
def _summer() -> Callable[..., int]:
    return compiled(_sum, BYTES_1D_IN, _TABLES)


def _sum(data, tables):  # type: ignore[no-untyped-def]
    return _masked(_crc32c(data, 0, len(data), tables))
