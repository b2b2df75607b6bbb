"""The bytes that a student and a teacher exchange on a stream of the tensor plane; pure.

A frame is a head, descriptors of arrays, then the arrays' bytes, each at a multiple of 16, all
little-endian. `parse_head` and `parse_arrays` check every length against the limits and against
each other before anybody allocates. docs/distillation.md tells each byte.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError

MAGIC = 0x544C4445  # "EDLT"
PROTOCOL = 1
_HEAD = struct.Struct("<IBBHIIIIQQ")
HEAD_NBYTES = _HEAD.size
_ARRAY = struct.Struct("<BBHI")
ALIGN = 16

# Operations; a reply has bit 6.
ABOUT, TEACH, SHARE = 1, 2, 3
TOLD, TAUGHT, SHARED, BUSY, ERROR = 65, 66, 67, 68, 69
REQUESTS = frozenset((ABOUT, TEACH, SHARE))
REPLIES = frozenset((TOLD, TAUGHT, SHARED, BUSY, ERROR))

# Flags.
WHOLE = 1  # teach: the arrays are of the request as a whole, which is neither split nor merged
IN_REGION = 2  # the body lies at the beginning of the shared region, and not on the stream

MAX_BODY_NBYTES = 1 << 32
MAX_TOLD_NBYTES = 1 << 20
MAX_ARRAYS = 1 << 12
MAX_DIMS = 8
MAX_ROWS = 1 << 24

_BFLOAT16 = 14
_DTYPES = {
    code: np.dtype(name)
    for code, name in enumerate(
        ("bool", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"), 1
    )
}
_CODES = {kind: code for code, kind in _DTYPES.items()}


class Malformed(EdlError):
    """Bytes that are no frame of this protocol."""


class Head(NamedTuple):
    """The fixed part of a frame.

    `rows`: of the request; `queued`: of a reply, rows that wait at the teacher. `limit_ms`: for how
    long the student waits. `rate`: rows a second that the teacher computes at present.
    """

    op: int
    flags: int = 0
    rows: int = 0
    told_nbytes: int = 0
    limit_ms: int = 0
    rate: int = 0
    queued: int = 0
    body_nbytes: int = 0


class Part(NamedTuple):
    """An array with its name. `is_bfloat16`: `values` are the bits of such, as uint16."""

    name: str
    values: NDArray[Any]
    is_bfloat16: bool = False


class Told(NamedTuple):
    """An array as its descriptor tells of it, before its bytes are here."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_bfloat16: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def padded(nbytes: int) -> int:
    return nbytes + ALIGN - 1 & -ALIGN


def pack_head(head: Head) -> bytes:
    op, flags, rows, told, limit, rate, queued, body = head
    return _HEAD.pack(MAGIC, PROTOCOL, op, flags, rows, told, limit, rate, queued, body)


def parse_head(data: bytes | memoryview, ops: frozenset[int]) -> Head:
    """Return the head at the beginning of `data`.

    Raises Malformed.
    """
    magic, protocol, op, flags, rows, told, limit, rate, queued, body = _HEAD.unpack_from(data)
    if magic != MAGIC or protocol != PROTOCOL:
        raise Malformed(f"no frame of a teacher: it begins with {magic:#x}, {protocol}")
    if op not in ops or flags & ~(WHOLE | IN_REGION):
        raise Malformed(f"operation {op} with flags {flags:#x} is not expected here")
    if told > MAX_TOLD_NBYTES or body > MAX_BODY_NBYTES or rows > MAX_ROWS:
        raise Malformed(f"{told} bytes of descriptors, {body} of arrays, {rows} rows")
    return Head(op, flags, rows, told, limit, rate, queued, body)


def describe(parts: Sequence[Part]) -> tuple[bytes, int]:
    """Return descriptors of arrays, and how many bytes their body has.

    Raises ValueError for an array that cannot travel.
    """
    told = []
    body = 0
    for part in parts:
        name, shape = part.name.encode(), part.values.shape
        kind = part.values.dtype.newbyteorder("<")
        if kind not in _CODES or len(shape) > MAX_DIMS:
            raise ValueError(
                f"{part.name!r} is {part.values.dtype}{list(shape)}: numbers of up to "
                f"{MAX_DIMS} dimensions are possible"
            )
        code = _BFLOAT16 if part.is_bfloat16 else _CODES[kind]
        told.append(_ARRAY.pack(code, len(shape), len(name), 0))
        told.append(struct.pack(f"<{len(shape)}Q", *shape))
        told.append(name)
        body += padded(part.values.nbytes)
    return b"".join(told), body


def parse_arrays(head: Head, data: bytes | memoryview) -> list[Told]:
    """Return what the descriptors `data` of a frame tell of its arrays.

    Raises Malformed unless their sizes add up to the body, and each has another name.
    """
    data = bytes(data)
    found: dict[str, Told] = {}
    place = body = 0
    while place < len(data):
        if place + _ARRAY.size > len(data) or len(found) == MAX_ARRAYS:
            raise Malformed("descriptors end in the midst of one, or are too many")
        code, dims, name_nbytes, _ = _ARRAY.unpack_from(data, place)
        place += _ARRAY.size
        end = place + 8 * dims + name_nbytes
        if dims > MAX_DIMS or end > len(data):
            raise Malformed("descriptors end in the midst of one")
        shape = struct.unpack_from(f"<{dims}Q", data, place)
        kind = _DTYPES[4] if code == _BFLOAT16 else _DTYPES.get(code)
        if kind is None or math.prod(max(1, n) for n in shape) * kind.itemsize > MAX_BODY_NBYTES:
            raise Malformed(f"an array of kind {code} and shape {shape}")
        try:
            name = data[place + 8 * dims : end].decode()
        except UnicodeDecodeError as error:
            raise Malformed("a name is not UTF-8") from error
        if name in found:
            raise Malformed(f"{name!r} comes twice")
        told = found[name] = Told(name, kind, shape, code == _BFLOAT16)
        body += padded(told.nbytes)
        place = end
    if body != head.body_nbytes:
        raise Malformed(f"the body has {head.body_nbytes} bytes, its arrays {body}")
    return list(found.values())


def values_in(told: Sequence[Told], body: NDArray[np.uint8]) -> list[Part]:
    """Return the arrays as views of a body."""
    parts, place = [], 0
    for each in told:
        values: NDArray[Any] = np.ndarray(each.shape, each.dtype, body, place)
        parts.append(Part(each.name, values, each.is_bfloat16))
        place += padded(each.nbytes)
    return parts


def fill(parts: Sequence[Part], body: NDArray[np.uint8]) -> None:
    """Copy arrays to where a body has them."""
    place = 0
    for part in parts:
        there: NDArray[Any] = np.ndarray(part.values.shape, part.values.dtype, body, place)
        there[...] = part.values
        place += padded(part.values.nbytes)


def buffers(parts: Sequence[Part]) -> list[NDArray[Any]]:
    """Return the buffers of a body, in order, to send them without a copy."""
    found: list[NDArray[Any]] = []
    for part in parts:
        if not part.values.nbytes:
            continue
        found.append(np.ascontiguousarray(part.values))
        if padding := padded(part.values.nbytes) - part.values.nbytes:
            found.append(np.zeros(padding, np.uint8))
    return found
