"""tf.train.Example without TensorFlow: the few fields of its protobuf that there are.

Example  { Features features = 1; }      Features { map<string, Feature> feature = 1; }
Feature  { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }
each list { repeated value = 1; }        floats and integers packed or not

SequenceExample  { Features context = 1; FeatureLists feature_lists = 2; }
FeatureLists { map<string, FeatureList> feature_list = 1; }  FeatureList { repeated Feature = 1; }

`parse_example` reads one, whatever its shape; `examples.py` reads many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
NO_KIND, BYTES, FLOATS, INTEGERS = range(4)  # the field that a Feature has
_CONTEXT, _LISTS = 1, 2  # an Example has the former alone


class Parsed(NamedTuple):
    """A feature: its kind, and a list of bytes, an array, or of a feature list one of each step."""

    kind: int
    values: Any
    steps: bool = False


def parse_example(data: bytes) -> dict[str, Any]:
    """Return {name: list of bytes | float32 array | int64 array}. Raises ValueError.

    The feature lists of a SequenceExample stand there too, each a list with one such of each step.
    """
    return {name: parsed.values for name, parsed in parse_kinds(data).items()}


def parse_kinds(data: bytes) -> dict[str, Parsed]:
    """Return the features by name, with their kinds. Raises ValueError."""
    features: dict[str, Parsed] = {}
    sequences: dict[str, Parsed] = {}
    for number, value in _fields(data):
        if number in (_CONTEXT, _LISTS):
            for inner, entry in _fields(_message(value)):
                if inner == 1:
                    parts = dict(_fields(_message(entry)))
                    name = _message(parts.get(1, b"")).decode("utf-8")
                    body = _message(parts.get(2, b""))
                    if number == _CONTEXT:
                        features[name] = _feature(body)
                    else:
                        sequences[name] = _steps(body)
    if both := sorted(set(features) & set(sequences)):
        raise ValueError(f"{both[0]!r} names a feature and a feature list")
    if data and not features and not sequences:
        raise ValueError("it has no features")
    return features | sequences


def _steps(data: bytes) -> Parsed:
    steps = [_feature(_message(value)) for number, value in _fields(data) if number == 1]
    kinds = {step.kind for step in steps} - {NO_KIND}
    if len(kinds) > 1:
        raise ValueError("the steps of a feature list are of several kinds")
    return Parsed(kinds.pop() if kinds else NO_KIND, [step.values for step in steps], True)


def _feature(data: bytes) -> Parsed:
    for kind, value in _fields(data):
        values = [each for number, each in _fields(_message(value)) if number == 1]
        if kind == BYTES:
            return Parsed(kind, [_message(each) for each in values])
        if kind == FLOATS:
            packed = b"".join(_message(each) for each in values)
            return Parsed(kind, np.frombuffer(packed, "<f4").astype(np.float32))
        if kind == INTEGERS:
            whole = [i for each in values for i in _integers(each)]
            return Parsed(kind, np.array(whole, dtype=np.int64))
    return Parsed(NO_KIND, [])


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
    """Yield (field number, value): an int for a varint, bytes for everything else."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        kind = key & 7
        if kind == VARINT:
            value, offset = _varint(data, offset)
            yield key >> 3, value
            continue
        if kind == LENGTH:
            nbytes, offset = _varint(data, offset)
        elif kind in (FIXED32, FIXED64):
            nbytes = 4 if kind == FIXED32 else 8
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
