"""Many tf.train.Examples at once, by a kernel, where they are as protobuf writes them.

Those of names that were met before, in any order, are plain; the others are read one by one
(`example.py`), and their names are learnt.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from ..kernels.compile import (
    BYTES_1D_IN,
    FLOATS_1D,
    INTS_1D,
    INTS_1D_IN,
    compiled,
    inlined,
    integers,
    part,
    record_at,
)
from .example import (
    BYTES,
    FIXED32,
    FLOATS,
    INTEGERS,
    LENGTH,
    NO_KIND,
    VARINT,
    Parsed,
    parse_kinds,
)

# The bytes that begin a field: its number and its wire type.
_FEATURES = _MAP_ENTRY = _KEY = _PACKED = 1 << 3 | LENGTH
_VALUE = 2 << 3 | LENGTH
_INTEGER, _FLOAT = 1 << 3 | VARINT, 1 << 3 | FIXED32  # one that is not packed
_NAMES = 4096  # that are known; more are none that come again


class Examples:
    """A parser of many examples, which learns the names of their features from the first ones."""

    def __init__(self) -> None:
        # The names, and the same for the kernel: replaced at once, for other threads.
        self._known: tuple[list[str], NDArray[Any], NDArray[np.uint8]]
        self._known = [], np.zeros(0, _NAME), np.zeros(0, np.uint8)

    def parse(
        self, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[dict[str, Any]]:
        """Yield each data[begin:end] as `parse_example` does. Raises ValueError at a broken one."""
        for run in self.runs(data, begins, ends):
            if isinstance(run, dict):
                yield {name: parsed.values for name, parsed in run.items()}
                continue
            names, (entries, ends_of, ints, floats, places) = run
            pairs = zip(places["start"].tolist(), places["stop"].tolist(), strict=True)
            texts = [data[low:high] for low, high in pairs]
            # Four lists, and none for each entry, which would have Python collect garbage.
            each = zip(*(entries[field].tolist() for field in _ENTRY.names or ()), strict=True)
            first = 0
            for last in ends_of.tolist():
                example: dict[str, Any] = {}
                for name, kind, low, high in itertools.islice(each, last - first):
                    if kind == INTEGERS:
                        example[names[name]] = ints[low:high]
                    elif kind == FLOATS:
                        example[names[name]] = floats[low:high]
                    else:
                        example[names[name]] = texts[low:high]
                yield example
                first = last

    def runs(
        self, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[tuple[list[str], Run] | dict[str, Parsed]]:
        """Yield runs of plain examples, with the names of their features, and others one by one.

        Raises ValueError at a broken one.
        """
        start = 0
        while start < len(begins):
            names, known, _letters = self._known  # held while their addresses are used
            run = _plain(np.frombuffer(data, np.uint8), begins[start:], ends[start:], known)
            if len(run.last):
                yield names, run
            start += len(run.last)
            if start < len(begins):
                example = parse_kinds(data[begins[start] : ends[start]])
                self._learn(example)
                yield example
                start += 1

    def _learn(self, example: Iterable[str]) -> None:
        names = self._known[0]
        if new := [name for name in example if name not in names]:
            names = [*names, *new][:_NAMES]
            encoded = [name.encode() for name in names]
            letters = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
            known = np.zeros(len(names), _NAME)
            known["nbytes"] = [len(each) for each in encoded]
            known["address"] = letters.ctypes.data + np.cumsum(known["nbytes"]) - known["nbytes"]
            self._known = names, known, letters


_NAME = integers("address", "nbytes")
_NAME_NBYTES = _NAME.itemsize
_ENTRY = integers("name", "kind", "start", "stop")
_PLACE = integers("start", "stop")
_name_at, _byte_at, _float_at = (
    record_at(np.dtype(kind)) for kind in (_NAME, [("value", "u1")], [("value", "<f4")])
)


class Run(NamedTuple):
    """The arrays that a kernel makes of plain examples."""

    entries: NDArray[Any]  # of _ENTRY: a feature's values are kind[start:stop]
    last: NDArray[np.int64]  # where the entries of example i end
    ints: NDArray[np.int64]
    floats: NDArray[np.float32]
    places: NDArray[Any]  # of _PLACE: the first byte of a text, and its end


def _plain(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], known: NDArray[Any]
) -> Run:
    """Parse the first examples, as far as they are plain."""
    nbytes = int(ends[-1] - begins[0])
    room = Run(
        np.empty(nbytes // 4 + 1, _ENTRY), np.empty(len(begins), np.int64),
        np.empty(nbytes, np.int64), np.empty(nbytes // 4 + 1, np.float32), np.empty(nbytes, _PLACE),
    )  # fmt: skip
    n, n_ints, n_floats, n_places = _parser()(data, begins, ends, known, room)
    # Copies, as large as they must be: what is made of them lives on.
    return Run(
        room.entries[: room.last[n - 1] if n else 0], room.last[:n],
        room.ints[:n_ints].copy(), room.floats[:n_floats].copy(), room.places[:n_places],
    )  # fmt: skip


@functools.cache
def _parser() -> Callable[..., tuple[int, int, int, int]]:
    names, entries, places = (
        types.Array(numba.from_dtype(kind), 1, "C") for kind in (_NAME, _ENTRY, _PLACE)
    )
    lists = [entries, INTS_1D, INTS_1D, FLOATS_1D, places]
    parsed = types.NamedTuple(lists, Run)  # type: ignore[no-untyped-call]
    return compiled(_parse_examples, BYTES_1D_IN, INTS_1D_IN, INTS_1D_IN, names, parsed)


def _parse_examples(data, begins, ends, known, parsed):  # type: ignore[no-untyped-def]
    """Parse as many examples as are plain.

    Return how many these are, and how many ints, floats and places they have.
    """
    entries, last, ints, floats, places = parsed
    n_entries, n_ints, n_floats, n_places, guess = 0, 0, 0, 0, 0
    address, names, n_names = data.ctypes.data, known.ctypes.data, len(known)
    for i in range(len(begins)):
        good = i, n_ints, n_floats, n_places
        at, end, before = address + begins[i], address + ends[i], n_entries
        while at < end:
            size, at = _tagged(at, end, _FEATURES)
            if size < 0:
                return good
            features = at + size
            while at < features:
                name, kind, at, entry = _entry(at, features, names, n_names, guess)
                if kind == BYTES:
                    start, n_places = n_places, _texts(at, entry, address, places, n_places)
                    stop = n_places
                elif kind == FLOATS:
                    start, n_floats = n_floats, _numbers(at, entry, floats, n_floats)
                    stop = n_floats
                elif kind == INTEGERS:
                    start, n_ints = n_ints, _whole_numbers(at, entry, ints, n_ints)
                    stop = n_ints
                else:
                    return good
                if stop < 0:
                    return good
                row = entries[n_entries]
                row.name, row.kind, row.start, row.stop = name, kind, start, stop
                n_entries += 1
                at, guess = entry, name + 1
        if n_entries == before:
            return good
        last[i] = n_entries
    return len(begins), n_ints, n_floats, n_places


@inlined
def _entry(at, end, names, n_names, guess):  # type: ignore[no-untyped-def]
    """Read the head of a feature: (name, kind, where its values begin, where they end).

    Of one that is not plain, the kind is NO_KIND.
    """
    size, at = _tagged(at, end, _MAP_ENTRY)
    entry = at + size
    size, at = _tagged(at, entry, _KEY)
    if size < 0:
        return -1, NO_KIND, at, at
    name = _name(at, size, names, n_names, guess)
    size, at = _tagged(at + size, entry, _VALUE)
    if name < 0 or size < 2 or at + size != entry:
        return -1, NO_KIND, at, at
    kind = int(_byte_at(at).value) >> 3
    if _byte_at(at).value & 7 != LENGTH:
        return -1, NO_KIND, at, at
    size, at = _length(at + 1, entry)
    if at + size != entry:
        return -1, NO_KIND, at, at
    return name, kind, at, entry


@inlined
def _texts(at, end, first, places, n):  # type: ignore[no-untyped-def]
    """Note the texts that stand here, behind the first n; return how many there are then, or -1.

    Their places count from the address `first`.
    """
    while at < end:
        size, at = _tagged(at, end, _PACKED)
        if size < 0:
            return -1
        places[n].start, places[n].stop = at - first, at + size - first
        n += 1
        at += size
    return n


@inlined
def _numbers(at, end, floats, n):  # type: ignore[no-untyped-def]
    """Read the floats that stand here, behind the first n.

    Return how many there are then, -1 where they are not plain.
    """
    while at < end:
        size = 4
        if _byte_at(at).value == _FLOAT:
            at += 1
        else:
            size, at = _tagged(at, end, _PACKED)
        if size < 0 or size % 4 or at + size > end:
            return -1
        for _ in range(size // 4):
            floats[n] = _float_at(at).value
            n += 1
            at += 4
    return n


@inlined
def _whole_numbers(at, end, ints, n):  # type: ignore[no-untyped-def]
    """Read the ints that stand here, behind the first n; return how many there are then, or -1."""
    while at < end:
        packed = _byte_at(at).value != _INTEGER
        if packed:
            size, at = _tagged(at, end, _PACKED)
            if size < 0:
                return -1
            last = at + size
        else:
            at += 1
            last = at + 1  # a longer one goes on below
        while at < last:
            value, shift, byte = np.uint64(0), 0, np.uint64(128)
            while byte & np.uint64(128):
                if at >= end or shift > 63:
                    return -1
                byte = np.uint64(_byte_at(at).value)
                at += 1
                value |= (byte & np.uint64(127)) << np.uint64(shift)
                shift += 7
            ints[n] = np.int64(value)
            n += 1
        if packed and at != last:
            return -1
    return n


@inlined
def _tagged(at, end, tag):  # type: ignore[no-untyped-def]
    """Return what `_length` does of the message behind this tag; -1 where another byte stands."""
    if at >= end or _byte_at(at).value != tag:
        return -1, at
    return _length(at + 1, end)


@part
def _length(at, end):  # type: ignore[no-untyped-def]
    """Return the length that stands here, and where what it is of begins.

    The length is -1 where that does not end by `end`.
    """
    value, shift = 0, 0
    while at < end and shift < 35:
        byte = int(_byte_at(at).value)
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value if value <= end - at else -1), at
        shift += 7
    return -1, at


@part
def _name(at, nbytes, names, n_names, guess):  # type: ignore[no-untyped-def]
    """Return the number of a name, -1 of a new one; the one after the last is tried first."""
    for step in range(n_names):
        number = (guess + step) % n_names
        known = _name_at(names + number * _NAME_NBYTES)
        if known.nbytes == nbytes:
            same = True
            for k in range(nbytes):
                same = same and _byte_at(at + k).value == _byte_at(known.address + k).value
            if same:
                return number
    return -1
