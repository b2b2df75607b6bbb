"""The inputs of a request as they are read: each once, of as many rows, of its column's type.

Pure. What does not fit a model's columns is a Refused that says what was expected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import UsageError
from ...data.exact import TIMES, Values
from ..brought import brought, takes
from ..servable import Column, Typed
from . import lists
from .refused import invalid

MOST_ROWS = 1 << 20  # of a request

Inputs = dict[str, Values]


class Taken:
    """The inputs of one request."""

    def __init__(self, columns: Sequence[Column], names: Sequence[str]) -> None:
        """`columns`: of the model. `names`: of the inputs that come."""
        self._columns = {column.name: column for column in columns}
        self._lengths = {n: c for n, c in lists.beside(columns).items() if n in names}
        self._apart = {column.name for column in self._lengths.values()}
        self._found: dict[str, NDArray[Any]] = {}
        self._said: dict[str, NDArray[np.int64]] = {}  # lengths, by the name of their input
        self._made: Inputs = {}
        self._first = ""  # the input that has told the number of rows
        self.rows = 0

    def expected(
        self, name: str, datatype: str, shape: Sequence[Any]
    ) -> tuple[Column, tuple[int, ...]]:
        """Return the input that a tensor is for, as it is sent, and its shape. Raises Refused."""
        column = self._columns.get(name)
        if column is None and name in self._lengths:
            column = lists.lengths_column(name)
        if column is None:
            raise invalid(
                f"there is no input {name[:80]!r}: the model takes {listing(self._columns)}"
            )
        are_lists, apart = lists.is_lists(column), name in self._apart
        sizes = tuple(shape)
        for place, size in enumerate(sizes):
            if type(size) is not int or size < (-1 if are_lists and place else 0):
                raise invalid(f"the input {name!r} has the shape {str(list(sizes))[:80]}")
        if are_lists:
            fits = lists.fits(sizes, apart)
        else:
            fits = sizes[1:] == column.shape or (
                len(sizes) == 1 + len(column.shape)
                and all(b in (-1, a) for a, b in zip(sizes[1:], column.shape, strict=True))
            )
        if datatype == "INT64" != column.datatype and _is_time(column):
            assert isinstance(column, Typed)
            column = Typed.of(column.field, datatype, column.shape)
        if datatype != column.datatype or not fits or not sizes:
            raise invalid(
                f"the input {name!r} is {datatype[:40]} {listed_sizes(sizes)[:80]}, and the model "
                f"takes {described(column)}{_remedy(column, apart)}"
            )
        if not apart:
            self._count(name, sizes[0])
        elif name in self._found:
            raise invalid(f"the input {name!r} is there twice")
        return column, sizes

    def _count(self, name: str, rows: int) -> None:
        if not 0 < rows <= MOST_ROWS:
            raise invalid(
                f"the input {name!r} has {rows} rows: ask about 1 to {MOST_ROWS} at a time"
            )
        if name in self._found or name in self._said:
            raise invalid(f"the input {name!r} is there twice")
        if self._first and rows != self.rows:
            raise invalid(
                f"the input {name!r} has {rows} rows, and {self._first!r} has {self.rows}"
            )
        self._first, self.rows = self._first or name, rows

    def is_apart(self, column: Column) -> bool:
        """Tell whether the lengths of an input's lists come in another one."""
        return column.name in self._apart

    def is_open(self, column: Column, sizes: Sequence[int]) -> bool:
        """Tell whether the data of an input alone say how long its lists are."""
        return lists.is_lists(column) and not self.is_apart(column) and lists.is_open(sizes)

    def put(
        self,
        column: Column,
        sizes: tuple[int, ...],
        values: NDArray[Any],
        lengths: NDArray[np.int64] | None = None,
    ) -> None:
        """Take the values of an input. `lengths`: of its lists, where these were nested."""
        if column.name in self._lengths:
            self._said[column.name] = values
            return
        if isinstance(column, Typed) and _is_time(column) and values.dtype.kind == "i":
            values = values.view(column.field.type.dtype)
        self._found[column.name] = values
        if lengths is not None:
            self._made[column.name] = lists.joined(column, values, lengths)
        elif lists.is_lists(column) and not self.is_apart(column):
            rows, size = sizes
            self._made[column.name] = lists.even(values, rows, size)

    def whole(self) -> Inputs:
        """Return the values of all inputs. Raises Refused where one is missing, or unfit."""
        if len(self._found) < len(self._columns):
            lacking = next(name for name in self._columns if name not in self._found)
            raise invalid(
                f"the input {lacking!r} is missing: the model takes {listing(self._columns)}"
            )
        found: Inputs = {**self._found, **self._made}
        with refusing():
            for name, column in self._lengths.items():
                values = self._found[column.name]
                found[column.name] = lists.joined(column, values, self._said[name])
            for name, column in self._columns.items():
                if isinstance(column, Typed):
                    found[name] = brought(column.field, found[name])
        return found


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Let a UsageError of the block be a Refused."""
    try:
        yield
    except UsageError as error:
        raise invalid(str(error)) from error


def _is_time(column: Column) -> bool:
    """Tell whether an input of texts may come as whole numbers, too."""
    return isinstance(column, Typed) and column.field.type.kind in TIMES


def _remedy(column: Column, apart: bool) -> str:
    if not isinstance(column, Typed):
        return ""
    if not column.is_lists:
        return f": send {takes(column.field)}"
    beside = f"{column.name}{lists.LENGTHS}"
    if apart:
        return f": beside {beside} its values are flat"
    return f": send {takes(column.field)}, nested in JSON, or flat with {beside}"


def described(column: Column) -> str:
    """Return a column in words: its datatype and shape, with the batch axis."""
    return f"{column.datatype} {listed_sizes((-1, *column.shape))}"


def listing(columns: Mapping[str, Column]) -> str:
    """Return columns in words."""
    return ", ".join(f"{name!r} ({described(column)})" for name, column in columns.items())


def listed_sizes(shape: Sequence[int]) -> str:
    """Return a shape in words."""
    return f"[{', '.join(map(str, shape))}]"
