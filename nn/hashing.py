"""Ids for server-side tables out of raw columns: the same value gets the same id in every process.

FNV-1a over the code points of a string (Fowler, Noll, Vo), one whole column at a time, and the
finaliser of SplitMix64 (Steele et al. 2014) to spread the bits. No salt, so ids outlive a process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .initializers import mix64

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


def hash64(field: str, values: Any) -> NDArray[np.int64]:
    """Ids in [0, 2**63) of the shape of `values` (strings or numbers); never the padding id -1.

    Equal values of different fields get different ids. Whole numbers hash alike whether they come
    as int, bool or float; a string is another value than the number that it spells.
    """
    column = np.asarray(values)
    seed = _strings(np.asarray([field]))[0]
    text = column.dtype.kind in "OUST"
    keys = _strings(column.astype(np.str_)) if text else _numbers(column)
    mixed = mix64(keys ^ seed)
    ids: NDArray[np.int64] = (mixed >> np.uint64(1)).astype(np.int64)
    return ids


def _strings(column: NDArray[Any]) -> NDArray[np.uint64]:
    """FNV-1a over code points. numpy pads with zeros: they are skipped, so width never matters."""
    hashes = np.full(column.shape, _FNV_OFFSET, dtype=np.uint64)
    width = column.dtype.itemsize // 4
    if not width or not column.size:
        return hashes
    points = np.ascontiguousarray(column).view(np.uint32).reshape(*column.shape, width)
    for place in range(width):
        point = points[..., place]
        hashes = np.where(point != 0, (hashes ^ point) * _FNV_PRIME, hashes)
    return hashes


def _numbers(column: NDArray[Any]) -> NDArray[np.uint64]:
    if column.dtype.kind != "f":
        return mix64(column.astype(np.int64).view(np.uint64))
    wide = column.astype(np.float64)
    whole = (wide == np.trunc(wide)) & (np.abs(wide) < 2.0**53)
    bits = np.where(whole, np.where(whole, wide, 0).astype(np.int64), wide.view(np.int64))
    return mix64(bits.view(np.uint64))
