"""tf.train.Example without TensorFlow: the few fields of its protobuf that there are.

Example  { Features features = 1; }      Features { map<string, Feature> feature = 1; }
Feature  { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }
each list { repeated value = 1; }        floats and integers packed or not
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3


def parse_example(data: bytes) -> dict[str, Any]:
    """{name: list of bytes | float32 array | int64 array}. Raises ValueError."""
    features: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            for inner, entry in _fields(_message(value)):
                if inner == 1:
                    parts = dict(_fields(_message(entry)))
                    name = _message(parts.get(1, b"")).decode("utf-8")
                    features[name] = _feature(_message(parts.get(2, b"")))
    if data and not features:
        raise ValueError("it has no features")
    return features


def _feature(data: bytes) -> Any:
    for kind, value in _fields(data):
        values = [each for number, each in _fields(_message(value)) if number == 1]
        if kind == _BYTES:
            return [_message(each) for each in values]
        if kind == _FLOATS:
            packed = b"".join(_message(each) for each in values)
            return np.frombuffer(packed, "<f4").astype(np.float32)
        if kind == _INTEGERS:
            return np.array([i for each in values for i in _integers(each)], dtype=np.int64)
    return []


def _integers(value: bytes | int) -> Iterator[int]:
    if isinstance(value, int):
        yield _signed(value)
        return
    offset = 0
    while offset < len(value):
        number, offset = _varint(value, offset)
        yield _signed(number)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value): an int for a varint, bytes for everything else."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        kind = key & 7
        if kind == _VARINT:
            value, offset = _varint(data, offset)
            yield key >> 3, value
            continue
        if kind == _LENGTH:
            nbytes, offset = _varint(data, offset)
        elif kind in (_FIXED32, _FIXED64):
            nbytes = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if offset + nbytes > len(data):
            raise ValueError("a field is cut off")
        yield key >> 3, data[offset : offset + nbytes]
        offset += nbytes


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            raise ValueError("a number is cut off")
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, offset
    raise ValueError("a number is too long")


def _message(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a message must")  # noqa: TRY004 (of the data)
    return value
