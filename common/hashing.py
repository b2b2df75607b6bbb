"""Ids for server-side tables out of raw columns: the same value gets the same id in every process.

FNV-1a over the code points of a string (Fowler, Noll, Vo), one whole column at a time, and the
finaliser of SplitMix64 (Steele et al. 2014) to spread the bits. No salt, so ids outlive a process.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finaliser, element by element."""
    z = values + GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash64(field: str, values: Any) -> NDArray[np.int64]:
    """Return ids in [0, 2**63) of the shape of `values` (strings or numbers).

    None of them is the padding id -1.

    Equal values of different fields get different ids. Whole numbers hash alike whether they come
    as int, bool, float or objects, and bytes as the text that they are the UTF-8 of; a string is
    another value than the number that it spells. Raises ValueError for a None.
    """
    column = np.asarray(values)
    if column.dtype.kind in "SU" and not isinstance(values, np.ndarray):
        column = np.asarray(values, dtype=object)  # fixed width would lose a NUL at the end
    keys = _keys(field, np.atleast_1d(column))  # a scalar would warn of overflow
    mixed = mix64(keys ^ _seed(field))
    ids: NDArray[np.int64] = (mixed >> np.uint64(1)).astype(np.int64)
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
    if kind not in "OT":
        return _numbers(column)
    objects = column.astype(object).ravel().tolist()
    kinds = set(map(type, objects))
    if kinds == {bytes}:
        objects = [value.decode("utf-8", "surrogateescape") for value in objects]
    if kinds in ({str}, {bytes}):  # nearly always, and fast
        return _texts(objects).reshape(column.shape)
    objects = [_plain(field, value) for value in objects]
    keys = np.empty(len(objects), dtype=np.uint64)
    for type_, of in ((str, _texts), (int, _integers), (float, _floats)):
        places = [place for place, value in enumerate(objects) if type(value) is type_]
        if places:
            keys[places] = of([objects[place] for place in places])
    return keys.reshape(column.shape)


def _plain(field: str, value: Any) -> str | int | float:
    """Return an object as the text or number that it is."""
    if value is None:
        raise ValueError(
            f"hash64 of {field!r} meets a None, which is no id: put a value in its place"
        )
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, int | np.integer | np.bool_):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    return str(value)


def _texts(texts: list[str]) -> NDArray[np.uint64]:
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return _strings(np.array(texts, dtype=np.str_), lengths)


def _integers(numbers: list[int]) -> NDArray[np.uint64]:
    return mix64(np.array([number % 2**64 for number in numbers], dtype=np.uint64))


def _floats(numbers: list[float]) -> NDArray[np.uint64]:
    return _numbers(np.array(numbers, dtype=np.float64))


def _strings(column: NDArray[Any], lengths: NDArray[np.int64] | None = None) -> NDArray[np.uint64]:
    """Return FNV-1a over the code points of each string: the column's width never matters.

    numpy pads with zeros: without `lengths` a string ends at its last code point that is none.
    """
    hashes = np.full(column.shape, _FNV_OFFSET, dtype=np.uint64)
    if not column.size:
        return hashes
    width = column.dtype.itemsize // 4
    points = np.ascontiguousarray(column).view(np.uint32).reshape(*column.shape, width)
    if lengths is None:
        there = points != 0
        lengths = np.where(there.any(-1), width - there[..., ::-1].argmax(-1), 0)
    for place in range(int(lengths.max())):
        point = points[..., place] if place < width else 0  # a NUL at the end, which numpy dropped
        hashes = np.where(place < lengths, (hashes ^ point) * _FNV_PRIME, hashes)
    return hashes


def _numbers(column: NDArray[Any]) -> NDArray[np.uint64]:
    if column.dtype.kind != "f":
        return mix64(column.astype(np.int64).view(np.uint64))
    wide = np.where(np.isnan(column), np.nan, column.astype(np.float64))  # one NaN, of many
    whole = (wide == np.trunc(wide)) & (wide >= -(2.0**63)) & (wide < 2.0**63)
    bits = np.where(whole, np.where(whole, wide, 0).astype(np.int64), wide.view(np.int64))
    return mix64(bits.view(np.uint64))
