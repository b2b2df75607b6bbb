"""Arrays of Python's values, and of other arrays, that say what these say.

numpy prints the numbers that stand among texts, drops a NUL at the end of a text, and rounds whole
numbers that stand among fractions, or uint64 among int64. Here such values become objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT = 1 << 53  # each whole number up to here is a float64
ROWS = (np.ndarray, list, tuple)
_SOME = (int, np.integer, np.bool_)


def array_of(values: Any) -> NDArray[Any]:
    """Return a list, or a list of lists of one length, or a single value, as an array.

    Raises ValueError for lists of differing length.
    """
    if hasattr(values, "__array__"):
        return np.asarray(values)
    objects = np.asarray(values, dtype=object)
    listed = objects.ravel().tolist()
    kinds = set(map(type, listed))
    if any(issubclass(kind, ROWS) for kind in kinds):
        raise ValueError("lists of differing length: give Ragged.rows_of(lists)")
    if any(issubclass(kind, str | bytes) for kind in kinds):
        return objects
    try:
        array = np.asarray(values)
    except OverflowError:  # a whole number beyond float64, beside a fraction
        return objects
    if array.dtype.kind != "f" or not any(issubclass(kind, _SOME) for kind in kinds):
        return array
    rounded = any(isinstance(each, _SOME) and abs(int(each)) > EXACT for each in listed)
    return objects if rounded else array


def objects_of(values: Sequence[Any]) -> NDArray[Any]:
    """Return a vector of these objects, whatever they are."""
    array = np.empty(len(values), object)
    for place, each in enumerate(values):  # at once, numpy would look into lists
        array[place] = each
    return array


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return vectors one after the other; one without values has no say in the type.

    Raises ValueError where times stand beside what is no time.
    """
    there = [array for array in arrays if len(array)]
    if len(there) < 2:
        return there[0] if there else arrays[0] if arrays else np.empty(0)
    dtypes = {array.dtype for array in there}
    if len(dtypes) > 1 and not _alike(dtypes):
        there = [array.astype(object) for array in there]
    return np.concatenate(there)


def _alike(dtypes: set[np.dtype[Any]]) -> bool:
    """Tell whether numpy's common type of these can hold what each of them means."""
    kinds = "".join(sorted({each.kind for each in dtypes}))
    if set(kinds) & set("Mm"):
        if len(kinds) > 1:
            raise ValueError(f"times beside other values: {', '.join(map(str, dtypes))}")
        return True
    if len(kinds) == 1 and kinds in "USTf":
        return True
    if not set(kinds) <= set("iubf"):
        return False
    common = np.result_type(*dtypes)
    return all(np.can_cast(each, common, "safe") and _holds(common, each) for each in dtypes)


def _holds(common: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    return common.kind != "f" or dtype.kind not in "iu" or dtype.itemsize < 8
