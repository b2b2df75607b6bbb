"""Columns of lists in a request: rows of differing length, on each way that the protocol has.

    JSON       "shape": [3, -1], "data": [["a", "b"], [], ["c"]]
    each way   NAME has all values, one row after the other: "shape": [3]; and the input
               NAME.lengths, INT64, how many of them each row has: [2, 0, 1]
    each way   "shape": [3, 2]: as many in each row

Nothing is filled up. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.ragged import Ragged
from ..servable import Column, Typed
from .refused import invalid

LENGTHS = ".lengths"


def is_lists(column: Column) -> bool:
    """Tell whether each value of an input is a list of any length."""
    return isinstance(column, Typed) and column.is_lists


def beside(columns: Iterable[Column]) -> dict[str, Column]:
    """Return the columns of lists by the names of the inputs that say how long these are."""
    lists = {f"{each.name}{LENGTHS}": each for each in columns if is_lists(each)}
    if not lists:
        return lists
    names = {each.name for each in columns}  # a column may be called so
    return {name: each for name, each in lists.items() if name not in names}


def lengths_column(name: str) -> Column:
    """Return the input of lengths."""
    return Column(name, "INT64", ())


def fits(sizes: Sequence[int], apart: bool) -> bool:
    """Tell whether a column of lists may have this shape; `apart`: its lengths come, too."""
    if apart:
        return len(sizes) == 1 and sizes[0] >= 0
    return len(sizes) in (1, 2) and sizes[0] >= 0 and sizes[-1] >= -1


def is_open(sizes: Sequence[int]) -> bool:
    """Tell whether a shape leaves to the data how long each list is."""
    return len(sizes) == 1 or sizes[-1] == -1


def nested(column: Column, rows: int, data: Any) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the values of nested lists, and how many each row has. Raises Refused."""
    if not isinstance(data, list) or len(data) != rows:
        count = f"{len(data)} lists" if isinstance(data, list) else "no list"
        raise invalid(f"the data of the input {column.name!r} of {rows} rows is {count}")
    for row, each in enumerate(data):
        if not isinstance(each, list):
            what = "null, so send the list that stands for a missing one in training"
            told = what if each is None else "no list: its values are lists of any length"
            raise invalid(f"row {row} of the input {column.name!r} is {told}")
    return list(itertools.chain.from_iterable(data)), np.fromiter(map(len, data), np.int64, rows)


def even(values: NDArray[Any], rows: int, size: int) -> Ragged:
    """Return rows that have as many values each."""
    return Ragged.of(values.reshape(-1), np.full(rows, size))


def joined(column: Column, values: NDArray[Any], lengths: NDArray[np.int64]) -> Ragged:
    """Return rows of these lengths. Raises Refused where the values are more or less."""
    total = len(values)
    if not ((lengths >= 0) & (lengths <= total)).all() or int(lengths.sum()) != total:
        told = str(lengths[:8].tolist())[1:-1] + (", ..." if len(lengths) > 8 else "")
        raise invalid(
            f"the input {column.name!r} has {total} values, and {column.name}{LENGTHS} says {told}"
        )
    return Ragged.of(values, lengths)
