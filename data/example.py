"""tf.train.Example without TensorFlow: the few fields of its protobuf that there are.

Example  { Features features = 1; }      Features { map<string, Feature> feature = 1; }
Feature  { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }
each list { repeated value = 1; }        floats and integers packed or not

`parse_example` reads one, whatever its shape. `Examples` reads many by a kernel, where they are as
protobuf writes them and of names that were met before, in any order; the others one by one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from ..kernels.compile import (
    BYTES_1D_IN,
    FLOATS_1D,
    INTS_1D,
    INTS_1D_IN,
    OPTIONS,
    compiled,
)

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_part = numba.njit(**OPTIONS)  # of the kernel
_NAMES = 4096  # that are known; more are none that come again


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


class Examples:
    """Parses many examples; the names of their features are learnt from those that come first."""

    def __init__(self) -> None:
        # The names, their bytes, and the bounds of these: replaced at once, for other threads.
        self._known: tuple[list[str], NDArray[np.uint8], NDArray[np.int64]]
        self._known = [], np.zeros(0, np.uint8), np.zeros(1, np.int64)

    def parse(
        self, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[dict[str, Any]]:
        """What `parse_example` makes of each data[begin:end]. Raises ValueError at a broken one."""
        start = 0
        while start < len(begins):
            names, letters, bounds = self._known
            entries, parsed, ints, floats, places = _plain(
                np.frombuffer(data, np.uint8), begins[start:], ends[start:], letters, bounds
            )
            pairs = zip(places[:, 0].tolist(), places[:, 1].tolist(), strict=True)
            texts = [data[low:high] for low, high in pairs]
            # Four lists, and none for each entry, which would have Python collect garbage.
            each = zip(*(column.tolist() for column in entries.T), strict=True)
            first = 0
            for last in parsed.tolist():
                example: dict[str, Any] = {}
                for name, kind, low, high in itertools.islice(each, last - first):
                    if kind == _INTEGERS:
                        example[names[name]] = ints[low:high]
                    elif kind == _FLOATS:
                        example[names[name]] = floats[low:high]
                    else:
                        example[names[name]] = texts[low:high]
                yield example
                first = last
            start += len(parsed)
            if start < len(begins):
                example = parse_example(data[begins[start] : ends[start]])
                self._learn(example)
                yield example
                start += 1

    def _learn(self, example: dict[str, Any]) -> None:
        names = self._known[0]
        if new := [name for name in example if name not in names]:
            names = [*names, *new][:_NAMES]
            encoded = [name.encode() for name in names]
            bounds = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
            self._known = names, np.frombuffer(bytearray(b"".join(encoded)), np.uint8), bounds


def _plain(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64],
    letters: NDArray[np.uint8], bounds: NDArray[np.int64],
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """The first examples, as far as they are plain, and what their entries point into."""
    nbytes = int(ends[-1] - begins[0])
    entries, places = np.empty((nbytes // 4 + 1, 4), np.int64), np.empty((nbytes, 2), np.int64)
    ints, floats = np.empty(nbytes, np.int64), np.empty(nbytes // 4 + 1, np.float32)
    parsed = np.empty(len(begins), np.int64)
    n, n_ints, n_floats, n_places = _parser()(
        data, begins, ends, letters, bounds, entries, parsed, ints, floats, places
    )
    # Copies, as large as they must be: what is made of them lives on.
    return (
        entries[: parsed[n - 1] if n else 0], parsed[:n],
        ints[:n_ints].copy(), floats[:n_floats].copy(), places[:n_places],
    )  # fmt: skip


@_part
def _length(data, at, end):  # type: ignore[no-untyped-def]
    """(the length that stands here, what begins behind it); -1 where it is not within `end`."""
    value, shift = 0, 0
    while at < end and shift < 35:
        byte = int(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value if value <= end - at else -1), at
        shift += 7
    return -1, at


@_part
def _name(data, at, end, letters, bounds, guess):  # type: ignore[no-untyped-def]
    """The number of a name, -1 of a new one; the one after the last is tried first."""
    names = len(bounds) - 1
    for step in range(names):
        name = (guess + step) % names
        start = bounds[name]
        if bounds[name + 1] - start == end - at:
            same = True
            for k in range(end - at):
                same = same and data[at + k] == letters[start + k]
            if same:
                return name
    return -1


@functools.cache
def _parser() -> Callable[..., tuple[int, int, int, int]]:
    pairs = types.Array(types.int64, 2, "C")  # of entries and of places
    return compiled(
        _parse_examples, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, BYTES_1D_IN, INTS_1D_IN, pairs,
        INTS_1D, INTS_1D, FLOATS_1D, pairs,
    )  # fmt: skip


def _parse_examples(  # type: ignore[no-untyped-def]
    data, begins, ends, letters, bounds, entries, parsed, ints, floats, places
):
    """Parse as many examples as are plain; return how many, and how many ints, floats and places.

    An entry is (name, kind, from, to) of the ints, the floats, or the places (first byte and end) of
    its values; parsed[i] says where those of example i end.
    """
    n_entries, n_ints, n_floats, n_places, guess = 0, 0, 0, 0, 0
    word = np.empty(1, np.uint32)
    for i in range(len(begins)):
        good = n_ints, n_floats, n_places
        at, end, before = begins[i], ends[i], n_entries
        while at < end:
            if data[at] != 10:
                return i, *good
            size, at = _length(data, at + 1, end)
            if size < 0:
                return i, *good
            features = at + size
            while at < features:
                if data[at] != 10:
                    return i, *good
                size, at = _length(data, at + 1, features)
                entry = at + size
                if size < 1 or data[at] != 10:
                    return i, *good
                size, at = _length(data, at + 1, entry)
                if size < 0:
                    return i, *good
                name = _name(data, at, at + size, letters, bounds, guess)
                at += size
                if name < 0 or at >= entry or data[at] != 18:
                    return i, *good
                guess = name + 1
                size, at = _length(data, at + 1, entry)
                if size < 2 or at + size != entry:
                    return i, *good
                tag = data[at]
                size, at = _length(data, at + 1, entry)
                if at + size != entry:
                    return i, *good
                kind, start = 0, 0
                if tag == 10:
                    kind, start = _BYTES, n_places
                    while at < entry:
                        if data[at] != 10:
                            return i, *good
                        size, at = _length(data, at + 1, entry)
                        if size < 0:
                            return i, *good
                        places[n_places, 0], places[n_places, 1] = at, at + size
                        n_places += 1
                        at += size
                    stop = n_places
                elif tag == 18:
                    kind, start = _FLOATS, n_floats
                    while at < entry:
                        size, packed = 4, data[at] == 10
                        if packed:
                            size, at = _length(data, at + 1, entry)
                        elif data[at] == 13:
                            at += 1
                        else:
                            return i, *good
                        if size < 0 or size % 4 or at + size > entry:
                            return i, *good
                        for _ in range(size // 4):
                            word[0] = (
                                np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
                                | np.uint32(data[at + 2]) << np.uint32(16)
                                | np.uint32(data[at + 3]) << np.uint32(24)
                            )  # fmt: skip
                            floats[n_floats] = word.view(np.float32)[0]
                            n_floats += 1
                            at += 4
                    stop = n_floats
                elif tag == 26:
                    kind, start = _INTEGERS, n_ints
                    while at < entry:
                        packed = data[at] == 10
                        if packed:
                            size, at = _length(data, at + 1, entry)
                            if size < 0:
                                return i, *good
                            last = at + size
                        elif data[at] == 8:
                            at += 1
                            last = at + 1  # a longer one goes on below
                        else:
                            return i, *good
                        while at < last:
                            value, shift, byte = np.uint64(0), 0, np.uint64(128)
                            while byte & np.uint64(128):
                                if at >= entry or shift > 63:
                                    return i, *good
                                byte = np.uint64(data[at])
                                at += 1
                                value |= (byte & np.uint64(127)) << np.uint64(shift)
                                shift += 7
                            ints[n_ints] = np.int64(value)
                            n_ints += 1
                        if packed and at != last:
                            return i, *good
                    stop = n_ints
                else:
                    return i, *good
                entries[n_entries, 0], entries[n_entries, 1] = name, kind
                entries[n_entries, 2], entries[n_entries, 3] = start, stop
                n_entries += 1
        if n_entries == before:
            return i, *good
        parsed[i] = n_entries
    return len(begins), n_ints, n_floats, n_places
