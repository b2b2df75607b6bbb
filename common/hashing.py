"""Ids for server-side tables out of raw columns: the same value gets the same id in every process.

FNV-1a over the code points of a string (Fowler, Noll, Vo), one whole column at a time, and the
finaliser of SplitMix64 (Steele et al. 2014) to spread the bits. No salt, so ids outlive a process.
"""

from __future__ import annotations

import functools
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .ragged import Ragged, Sparse, as_column

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 8192  # strings at once: their hashes stay in the cache
_FEW = 32  # strings: a step of all of them at once costs as much as one of so many by Python


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finaliser, element by element."""
    z = values + GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@overload
def hash64(field: str, values: Ragged) -> Ragged: ...


@overload
def hash64(field: str, values: Any) -> NDArray[np.int64]: ...


def hash64(field: str, values: Any) -> Any:
    """Return ids in [0, 2**63) of the shape of `values`; of a Ragged or Sparse, one with the ids.

    None of them is the padding id -1. Equal values of different fields get different ids.

    Texts, and bytes as the text that they are the UTF-8 of: a text is another value than the number
    that it spells. Whole numbers from -2**63 to 2**64 and bools hash alike whether they come as
    int, float or objects (those from 2**63 up as the negative number of the same 64 bits). Times
    hash by their microseconds, so that equal instants of any unit have one id; dates are midnight.
    NaN, NaT and "" are values as others. Lists (a Ragged, or an object array of arrays or lists)
    hash element by element. Raises ValueError for a None and for objects of other types, none of
    which is ever hashed by its printed form.
    """
    column = as_column(values)
    if isinstance(column, Ragged | Sparse):
        return column.replace(_ids(field, column.values))
    return _ids(field, column)


def _ids(field: str, column: NDArray[Any]) -> NDArray[np.int64]:
    keys = _keys(field, np.atleast_1d(column))  # a scalar would warn of overflow
    mixed = mix64(keys ^ _seed(field))
    ids: NDArray[np.int64] = (mixed >> np.uint64(1)).view(np.int64)
    return ids.reshape(column.shape)


@functools.lru_cache(maxsize=1 << 12)
def _seed(field: str) -> np.uint64:
    seed: np.uint64 = _strings(np.asarray([field]))[0]
    return seed


def _keys(field: str, column: NDArray[Any]) -> NDArray[np.uint64]:
    """Return 64 bits for each value, whatever the column's type."""
    kind = column.dtype.kind
    if kind == "U":
        return _strings(column)
    if kind == "S":
        return _strings(np.char.decode(column, "utf-8", "surrogateescape"))
    if kind in "OT":
        return _objects(field, column.ravel().tolist()).reshape(column.shape)
    if kind in "Mm":
        return _times(field, column)
    if kind not in "biuf" or column.dtype.itemsize > 8:
        raise ValueError(
            f"hash64 of {field!r} takes texts, numbers and times, and no {column.dtype}"
        )
    return _numbers(column)


def _objects(field: str, objects: list[Any]) -> NDArray[np.uint64]:
    kinds = set(map(type, objects))
    if kinds == {bytes}:
        objects = [value.decode("utf-8", "surrogateescape") for value in objects]
    if kinds in ({str}, {bytes}):  # nearly always, and fast
        return _texts(objects)
    objects = [_plain(field, value) for value in objects]
    keys = np.empty(len(objects), dtype=np.uint64)
    for type_, of in ((str, _texts), (int, _integers), (float, _floats)):
        places = [place for place, value in enumerate(objects) if type(value) is type_]
        if places:
            keys[places] = of([objects[place] for place in places])
    return keys


def _plain(field: str, value: Any) -> str | int | float:
    """Return an object as the text or number that it is. Raises ValueError where it is neither."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | np.integer | np.bool_):
        if -(2**63) <= int(value) < 2**64:
            return int(value)
        raise ValueError(f"hash64 of {field!r} meets {value}, which is beyond 64 bits")
    if isinstance(value, float | np.float32 | np.float16):  # a float64 is a float
        return float(value)
    if value is None:
        raise ValueError(
            f"hash64 of {field!r} meets a None, which is no id: put a value in its place"
        )
    raise ValueError(
        f"hash64 of {field!r} meets {value!r:.60}, which is a {type(value).__name__}: it takes "
        "texts, numbers and times (as datetime64), and lists of them (edl.nn.preprocess.Ragged)"
    )


def _texts(texts: list[str]) -> NDArray[np.uint64]:
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return _fnv(points, np.cumsum(lengths) - lengths, lengths)


def _integers(numbers: list[int]) -> NDArray[np.uint64]:
    return mix64(np.array([number % 2**64 for number in numbers], dtype=np.uint64))


def _floats(numbers: list[float]) -> NDArray[np.uint64]:
    return _numbers(np.array(numbers, dtype=np.float64))


def _strings(column: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the hash of each string; numpy pads with zeros, so none ends in a NUL."""
    native = np.ascontiguousarray(column, column.dtype.newbyteorder("="))
    lengths = np.char.str_len(native).ravel().astype(np.int64)
    width = native.dtype.itemsize // 4
    points = native.reshape(-1).view(np.uint32) if width else np.empty(0, np.uint32)
    return _fnv(points, np.arange(len(lengths)) * width, lengths).reshape(column.shape)


def _fnv(
    points: NDArray[np.uint32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return FNV-1a over `lengths` code points each, from `starts` on."""
    found = np.empty(len(starts), np.uint64)
    for first in range(0, len(starts), _BLOCK):
        block = slice(first, first + _BLOCK)
        found[block] = _fnv_block(points, starts[block], lengths[block])
    return found


def _fnv_block(
    points: NDArray[np.uint32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return what `_fnv` does, by steps that all strings take at once.

    The longest come first, and are alone in the end: what a long one costs is its own affair.
    """
    longest = int(lengths.max(initial=0))
    shorter = (longest - lengths).astype(np.uint16 if longest < 1 << 16 else np.int64)
    order = np.argsort(shorter, kind="stable")  # of 16 bits it is a radix sort
    starts, shorter = starts[order], shorter[order]
    hashes = np.full(len(starts), _FNV_OFFSET, dtype=np.uint64)
    place, there = 0, int(np.searchsorted(shorter, longest))
    while there > _FEW:
        some = hashes[:there]
        some ^= points[starts[:there] + place]
        some *= _FNV_PRIME
        place += 1
        there = int(np.searchsorted(shorter, longest - place))  # those with more points
    for row in range(there):
        state, end = int(hashes[row]), starts[row] + longest - shorter[row]
        for point in points[starts[row] + place : end].tolist():
            state = (state ^ point) * int(_FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
        hashes[row] = state
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _times(field: str, column: NDArray[Any]) -> NDArray[np.uint64]:
    """Return what the whole numbers of microseconds hash to. Raises ValueError for a fraction."""
    micro = column.astype(f"{column.dtype.kind}8[us]")
    changed = (micro.astype(column.dtype) != column) & ~np.isnat(column)
    if changed.any():
        raise ValueError(
            f"hash64 of {field!r} meets {column[changed][0]}, which is no whole number of "
            "microseconds in 64 bits"
        )
    return mix64(micro.view(np.uint64))


def _numbers(column: NDArray[Any]) -> NDArray[np.uint64]:
    if column.dtype.kind != "f":
        return mix64(column.astype(np.int64).view(np.uint64))
    wide = np.where(np.isnan(column), np.nan, column.astype(np.float64))  # one NaN, of many
    whole = (wide == np.trunc(wide)) & (wide >= -(2.0**63)) & (wide < 2.0**63)
    bits = np.where(whole, np.where(whole, wide, 0).astype(np.int64), wide.view(np.int64))
    return mix64(bits.view(np.uint64))
