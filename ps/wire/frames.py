"""The tensor plane's binary format: bytes <-> messages, pure.

docs/tensor-plane.md tells each byte.

A frame is a head of 80 bytes, then descriptors of arrays, then the arrays' bytes: the ids of all
tables first, then values. Everything is little-endian. Values begin at a multiple of 16, as they do
in memory: a receiver looks at arrays where they lie, and the kernel copies what lies alike at both
ends a third faster. `parse_head` and `parse_arrays` check every length against the limits and
against each other before anybody allocates or reads further.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.errors import EdlError
from ...wire import handshake

MAGIC, PROTOCOL = handshake.MAGIC, handshake.PROTOCOL
HEAD_DTYPE = np.dtype(  # what its fields mean, says `Head`
    [
        ("magic", "<u4"),
        ("protocol", "<u1"),
        ("op", "<u1"),
        ("flags", "<u2"),
        ("code", "<u4"),
        ("timeout_ms", "<u4"),
        ("descriptors_nbytes", "<u4"),
        ("attempt", "<i4"),
        ("body_nbytes", "<u8"),
        ("task", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("version", "<i8"),
        ("known", "<i8"),
        ("body_region", "<u4"),
        ("reply_region", "<u4"),
    ]
)
ARRAY_DTYPE = np.dtype(
    [
        ("kind", "<u1"),
        ("wire", "<u1"),
        ("name_nbytes", "<u2"),
        ("number", "<u4"),
        ("count", "<u8"),
    ]
)
_CODES = {"u1": "B", "u2": "H", "u4": "I", "i4": "i", "u8": "Q", "i8": "q"}


def _packer(kind: np.dtype[Any]) -> struct.Struct:
    """Return a packer of the same bytes, by which Python packs and unpacks faster than by numpy."""
    assert kind.fields is not None
    return struct.Struct("<" + "".join(_CODES[kind[name].str[1:]] for name in kind.fields))


HEAD = _packer(HEAD_DTYPE)
HEAD_NBYTES = HEAD.size
_ARRAY = _packer(ARRAY_DTYPE)
ARRAY_NBYTES = _ARRAY.size
ALIGN = 16  # bytes: a power of two

# Operations; a reply has bit 6.
PULL, PUSH, MAP, UNMAP = 1, 2, 3, 4
PULLED, PUSHED, DONE, ERROR = 65, 66, 67, 68
REQUESTS = frozenset((PULL, PUSH, MAP, UNMAP))
REPLIES = frozenset((PULLED, PUSHED, DONE, ERROR))

# Flags.
DENSE = 1  # pull: dense chunks too
KNOWN = 2  # `known` counts
THEN = 4  # push: answer with dense chunks; reply: they are here
LATER = 8  # push in a region: its values are there when one more byte comes
_ALL_FLAGS = DENSE | KNOWN | THEN | LATER

# Kinds of arrays.
CUT, ROWS, CHUNK = 1, 2, 3

# How values travel: plain, or as codes and scales (quantize.py), scales first.
NONE, FLOAT32, BFLOAT16, FLOAT16, SCALED_INT8, SCALED_FLOAT16 = 0, 1, 2, 3, 4, 5
PLAIN = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
GRADIENTS = {"float32": FLOAT32, "float16": SCALED_FLOAT16, "int8": SCALED_INT8}
SCALED = frozenset((SCALED_INT8, SCALED_FLOAT16))
SCALE_ELEMENTS = 4096  # of a chunk have one scale; so has a row
_DTYPES: dict[int, np.dtype[Any]] = {
    FLOAT32: np.dtype(np.float32),
    BFLOAT16: np.dtype(np.uint16),  # bits
    FLOAT16: np.dtype(np.float16),
    SCALED_INT8: np.dtype(np.int8),
    SCALED_FLOAT16: np.dtype(np.float16),
}
_INT64 = np.dtype(np.int64)
_NO_IDS = np.empty(0, np.int64)

# Status codes of an ERROR: gRPC's, for the same meaning.
INVALID, NOT_FOUND, EXHAUSTED, PRECONDITION, UNAVAILABLE, UNAUTHENTICATED = 3, 5, 8, 9, 14, 16
STATUS = {
    INVALID: "INVALID_ARGUMENT",
    NOT_FOUND: "NOT_FOUND",
    EXHAUSTED: "RESOURCE_EXHAUSTED",
    PRECONDITION: "FAILED_PRECONDITION",
    UNAVAILABLE: "UNAVAILABLE",
}

# Limits. A chunk has 2^20 elements; the others are far beyond any model that fits.
MAX_BODY_NBYTES = 1 << 36
MAX_DESCRIPTORS_NBYTES = 4 << 20
MAX_ARRAYS = 1 << 16
MAX_DIM = 1 << 20
MAX_COUNT = 1 << 32
MAX_REGIONS = 64
_SMALL_NBYTES = 1 << 12  # descriptors that are looked up before they are parsed again

Bytes = NDArray[np.uint8]


class Malformed(EdlError):
    """Bytes that are no frame of this protocol."""


class Head(NamedTuple):
    """The fixed part of a frame.

    `code`: a request's slot-map version, a reply's outcome, an error's status code.
    `body_region`: the shared region that the body lies in (0: it follows on the socket), and
    `reply_region` the one that the reply's body may be put into (0: none).
    """

    op: int
    flags: int = 0
    code: int = 0
    timeout_ms: int = 0  # how long the caller of a push with THEN waits
    descriptors_nbytes: int = 0
    attempt: int = 0
    body_nbytes: int = 0
    task: int = 0
    start: int = 0  # reply to a push: the ledger's position
    end: int = 0
    version: int = 0
    known: int = 0
    body_region: int = 0
    reply_region: int = 0


class Array(NamedTuple):
    """An array of a frame, by its descriptor.

    `number`: a chunk's number, or the dim of rows. `count`: elements of a chunk, or rows.

    `nbytes`: of the values, padding included. In a pull, rows have ids and no values (`wire` NONE,
    dim 0); in its reply values and no ids.
    """

    kind: int
    wire: int
    name: str
    number: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    nbytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, self.number) if self.kind == ROWS else (self.count,)


Told = tuple[int, int, str, int, int]  # what is told of an array: all but `nbytes`


def _array(kind: int, wire: int, name: str, number: int, count: int) -> Array:
    nbytes = 0
    if wire != NONE:
        nbytes = (count * number if kind == ROWS else count) * _DTYPES[wire].itemsize
        if wire in SCALED:
            nbytes += 4 * _num_scales(kind, count)
    return Array(kind, wire, name, number, count, padded(nbytes))


def _num_scales(kind: int, count: int) -> int:
    return count if kind == ROWS else -(-count // SCALE_ELEMENTS)


def padded(nbytes: int) -> int:
    return nbytes + ALIGN - 1 & -ALIGN


def pack_head(head: Head) -> bytes:
    return HEAD.pack(MAGIC, PROTOCOL, *head)


def pack_reply(
    op: int, code: int = 0, version: int = 0, *, flags: int = 0, applied: int = 0,
    descriptors: bytes = b"", body_nbytes: int = 0, region: int = 0,
) -> bytes:  # fmt: skip
    """Return head and descriptors of a reply, without a detour over Head."""
    told = len(descriptors)
    return HEAD.pack(
        MAGIC, PROTOCOL, op, flags, code, 0, told, 0, body_nbytes, 0, applied, 0, version, 0,
        region, 0,
    ) + descriptors  # fmt: skip


@lru_cache(maxsize=256)
def describe(told: tuple[Told, ...]) -> tuple[tuple[Array, ...], bytes, int]:
    """Return the arrays, their descriptors, and how many bytes their values take.

    Ids are left out.
    """
    parts = []
    for kind, wire, name, number, count in told:
        text = name.encode()
        parts.append(_ARRAY.pack(kind, wire, len(text), number, count))
        parts.append(text.ljust(padded(len(text)), b"\0"))
    arrays = tuple(_array(*each) for each in told)
    return arrays, b"".join(parts), sum(array.nbytes for array in arrays)


def pack_error(code: int, text: str) -> bytes:
    """Return a whole ERROR frame."""
    told = text.encode()[: MAX_DESCRIPTORS_NBYTES - ALIGN]
    told = told.ljust(padded(len(told)), b"\0")
    return pack_head(Head(ERROR, code=code, descriptors_nbytes=len(told))) + told


def error_text(descriptors: bytes | memoryview) -> str:
    return bytes(descriptors).rstrip(b"\0").decode(errors="replace")


def parse_head(data: bytes | memoryview, ops: frozenset[int]) -> Head:
    """Return the head at the beginning of `data`, at least 80 bytes.

    Raises Malformed.
    """
    fields = HEAD.unpack_from(data)
    magic, protocol, op, flags, _, _, told, _, body, _, _, _, _, _, body_region, reply_region = (
        fields
    )
    if magic != MAGIC or protocol != PROTOCOL:
        raise Malformed(f"no frame of protocol {PROTOCOL}: it begins with {magic:#x}, {protocol}")
    if op not in ops:
        raise Malformed(f"operation {op} is not expected here")
    if flags > _ALL_FLAGS:
        raise Malformed(f"unknown flags {flags:#x}")
    if told > MAX_DESCRIPTORS_NBYTES or told % ALIGN:
        raise Malformed(f"{told} bytes of descriptors")
    if body > MAX_BODY_NBYTES or body % ALIGN:
        raise Malformed(f"a body of {body} bytes")
    if flags & LATER and (op != PUSH or not body_region):
        raise Malformed("only the values of a push in a region may come later")
    if body_region > MAX_REGIONS or reply_region > MAX_REGIONS:
        raise Malformed(f"regions {body_region} and {reply_region}")
    return tuple.__new__(Head, fields[2:])


def parse_arrays(head: Head, data: bytes | memoryview) -> tuple[Array, ...]:
    """Return the arrays that `data`, all of the descriptors, tells of.

    Raises Malformed.

    Their sizes add up to the head's body, no array comes twice, and each is one that the operation
    may have.
    """
    parse = _parsed if head.descriptors_nbytes > _SMALL_NBYTES else _parsed_before
    return parse(head.op, head.body_nbytes, bytes(data))


def _parsed(op: int, body_nbytes: int, data: bytes) -> tuple[Array, ...]:
    arrays: list[Array] = []
    seen = set[tuple[int, str, int]]()
    place, ids, values = 0, 0, 0
    while place < len(data):
        if place + _ARRAY.size > len(data) or len(arrays) == MAX_ARRAYS:
            raise Malformed("descriptors end in the midst of one, or are too many")
        kind, wire, name_nbytes, number, count = _ARRAY.unpack_from(data, place)
        place += _ARRAY.size
        text = data[place : place + name_nbytes]
        place += padded(name_nbytes)
        if place > len(data):
            raise Malformed("a name goes beyond the descriptors")
        try:
            name = text.decode()
        except UnicodeDecodeError as error:
            raise Malformed("a name is not UTF-8") from error
        after_cut = arrays and arrays[-1].kind == CUT
        if after_cut or not _allowed(op, kind, wire, name, number, count):
            raise Malformed(f"operation {op} has no array {kind, wire, name, number, count}")
        key = (kind, name, number if kind == CHUNK else 0)
        if key in seen and not (op == PULLED and kind == ROWS):
            raise Malformed(f"{_title(kind, name, number)} comes twice")
        seen.add(key)
        array = _array(kind, wire, name, number, count)
        ids += 8 * count if kind == ROWS and op != PULLED else 0
        values += array.nbytes
        arrays.append(array)
    body = padded(ids) + values
    if body != body_nbytes:
        raise Malformed(f"the body has {body_nbytes} bytes, its arrays {body}")
    return tuple(arrays)


_parsed_before = lru_cache(maxsize=256)(_parsed)


def _title(kind: int, name: str, number: int) -> str:
    if kind == CHUNK:
        return f"chunk {number} of tensor {name!r}"
    return f"table {name!r}" if kind == ROWS else "a cut"


def _allowed(op: int, kind: int, wire: int, name: str, number: int, count: int) -> bool:
    if count > MAX_COUNT:
        return False
    if op == PULL:
        return wire == NONE and number == 0 and (kind == ROWS or (kind == CUT and not count))
    gradients = wire == FLOAT32 or wire in SCALED
    if kind == CHUNK:
        return gradients if op == PUSH else op in (PULLED, PUSHED) and wire == FLOAT32
    if kind != ROWS or not 1 <= number <= MAX_DIM:
        return False
    if op == PULLED:
        return wire in (FLOAT32, BFLOAT16, FLOAT16) and not name
    return op == PUSH and gradients and count > 0


def ids_of(arrays: Iterable[Array], body: Bytes) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Return the ids by table, as views of a request's body, and where the values begin."""
    ids, place = {}, 0
    for array in arrays:
        if array.kind == ROWS:
            count = array.count
            ids[array.name] = np.frombuffer(body, _INT64, count, place) if count else _NO_IDS
            place += 8 * count
    return ids, padded(place)


def values_of(array: Array, body: Bytes, place: int) -> NDArray[Any]:
    """Return plain values as a view of a body: [rows, dim] or [elements].

    Those of bfloat16 are uint16.
    """
    return np.ndarray(array.shape, _DTYPES[array.wire], body, place)


def codes_of(array: Array, body: Bytes, place: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return codes and scales as views of a body."""
    num_scales = _num_scales(array.kind, array.count)
    scales = np.ndarray((num_scales,), np.float32, body, place)
    codes = np.ndarray(array.shape, _DTYPES[array.wire], body, place + scales.nbytes)
    return codes, scales


def widened(wire: int, values: NDArray[Any]) -> NDArray[np.float32]:
    """Return float32 of float16, or of the bits of bfloat16."""
    if wire == BFLOAT16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32)
