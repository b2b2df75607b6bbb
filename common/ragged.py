"""Rows of differing length and arrays that are mostly nothing, as numpy keeps them.

A column of lists is a Ragged wherever records come from: `records["genres"].values` are all
elements one after the other, `.offsets` where each row begins. It is a sequence of its rows.
`Ragged.padded` gives what `edl.nn.Embedding` with a combiner takes, `Ragged.bag` what torch's
EmbeddingBag takes, `Sparse.tensor` torch's sparse tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from .arrays import ROWS, array_of, joined

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows of differing length: row i is values[offsets[i]:offsets[i + 1]].

    `values` is an array [total], `offsets` int64[N + 1] from 0 to total.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[Any], lengths: NDArray[Any]) -> Ragged:
        """Return rows of these lengths. Raises ValueError where the values are not as many."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] != len(values) or np.any(np.asarray(lengths) < 0):
            raise ValueError(f"rows of {offsets[-1]} values in all, and there are {len(values)}")
        return cls(values, offsets)

    @classmethod
    def rows_of(cls, rows: Iterable[Any], dtype: Any = None) -> Ragged:
        """Return these rows, each an array or a list of single values.

        `dtype` is that of all values. Texts of lists are objects, and so are numbers of which no
        numpy type holds all exactly. Raises ValueError for lists of lists.
        """
        rows = [*rows]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        if all(isinstance(row, list | tuple) for row in rows):
            values = array_of([*itertools.chain.from_iterable(rows)])
        else:
            values = joined([row if isinstance(row, np.ndarray) else array_of(row) for row in rows])
        if values.ndim != 1:
            raise ValueError("a list holds single values, and here are lists of lists")
        return cls.of(values if dtype is None else values.astype(dtype), lengths)

    @classmethod
    def concatenated(cls, parts: Iterable[Ragged]) -> Ragged:
        """Return the rows of all parts, one part after the other; there is at least one."""
        parts = [*parts]
        values = joined([part.own().values for part in parts])
        return cls.of(values, np.concatenate([part.lengths for part in parts]))

    def own(self) -> Ragged:
        """Return the same rows with no other values than theirs."""
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        if first == 0 and last == len(self.values):
            return self
        return Ragged(self.values[first:last], self.offsets - first)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def equals(self, other: object) -> bool:
        """Tell whether these are the same rows of values of one kind; NaN and NaT are equal."""
        if not isinstance(other, Ragged) or not np.array_equal(self.lengths, other.lengths):
            return False
        mine, theirs = self.own().values, other.own().values
        nan = mine.dtype.kind in "fcMm"
        return mine.dtype.kind == theirs.dtype.kind and np.array_equal(mine, theirs, equal_nan=nan)

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> NDArray[Any]: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[Any] | Sequence[int]) -> Ragged: ...

    def __getitem__(
        self, rows: int | np.integer[Any] | slice | NDArray[Any] | Sequence[int]
    ) -> Any:
        """Return one row's values, or the rows of a slice, of places or of a mask."""
        if isinstance(rows, slice):
            first, stop, step = rows.indices(len(self))
            if step == 1:
                return Ragged(self.values, self.offsets[first : max(first, stop) + 1]).own()
            rows = np.arange(first, stop, step)
        elif isinstance(rows, int | np.integer):
            place = range(len(self))[rows]
            return self.values[self.offsets[place] : self.offsets[place + 1]]
        rows = np.asarray(rows)
        if rows.dtype == bool and len(rows) != len(self):
            raise IndexError(f"a mask of {len(rows)} for {len(self)} rows")
        places = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64, copy=False)
        lengths = self.lengths[places]
        ends = np.cumsum(lengths)
        starts = np.repeat(self.offsets[:-1][places] - (ends - lengths), lengths)
        return Ragged.of(self.values[starts + np.arange(len(starts))], lengths)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        bounds = self.offsets.tolist()
        return (self.values[a:b] for a, b in itertools.pairwise(bounds))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return an array of objects, each a row's values."""
        if dtype not in (None, object, np.dtype(object)):
            raise TypeError("rows of differing length are no array: take .values and .offsets")
        found = np.empty(len(self), object)
        for place, row in enumerate(self):  # at once, numpy would make one array of equal rows
            found[place] = row
        return found

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Return the row of each value."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def places(self) -> NDArray[np.int64]:
        """Return the place of each value in its row."""
        return np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths)

    def replace(self, values: NDArray[Any]) -> Ragged:
        """Return the same rows with other values."""
        return replace(self, values=values)

    def keep(self, kept: NDArray[np.bool_]) -> Ragged:
        """Return the rows without the values that are not to be kept."""
        return Ragged.of(self.values[kept], np.bincount(self.rows[kept], minlength=len(self)))

    def tolist(self) -> list[list[Any]]:
        values = self.values.tolist()
        return [values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def padded(self, padding: float = -1, length: int | None = None) -> Tensor:
        """Return a tensor [N, longest], or [N, length] with what is longer cut off.

        Rows end with `padding`; -1 is `edl.nn.PADDING`. Whole numbers of any width become int64, as
        ids are. Raises ValueError for texts and times, of which there is no tensor.
        """
        import torch

        values, lengths = self._numbers(), self.lengths
        width = max(1, int(lengths.max(initial=0))) if length is None else length
        filled = np.full((len(self), width), padding, values.dtype)
        there = np.arange(width) < lengths[:, None]
        filled[there] = values if lengths.max(initial=0) <= width else values[self.places < width]
        return torch.from_numpy(filled)

    def bag(self) -> tuple[Tensor, Tensor]:
        """Return the values and where each row begins, as `torch.nn.EmbeddingBag` takes them.

        Raises ValueError as `padded` does.
        """
        import torch

        values = self._numbers()
        if not values.flags.writeable:  # torch would warn
            values = values.copy()
        return torch.from_numpy(values), torch.from_numpy(self.offsets[:-1].copy())

    def _numbers(self) -> NDArray[Any]:
        """Return the values as tensors of ids or numbers have them."""
        values = self.values
        if values.dtype.kind not in "iubf":
            raise ValueError(
                f"lists of {values.dtype} are no tensor: make numbers or ids of them first "
                "(edl.nn.preprocess, edl.nn.hash64)"
            )
        if values.dtype.kind == "u" and len(values) and int(values.max()) >= 2**63:
            raise ValueError(f"{int(values.max())} is no int64: make ids of these by edl.nn.hash64")
        return values.astype(np.int64, copy=False) if values.dtype.kind in "iu" else values


@dataclass(frozen=True, eq=False)
class Sparse:
    """An array of which most is left out: values[k] stands at indices[k], int64[n, dimensions]."""

    indices: NDArray[np.int64]
    values: NDArray[Any]
    shape: tuple[int, ...]

    def replace(self, values: NDArray[Any]) -> Sparse:
        """Return the same places with other values."""
        return replace(self, values=values)

    def tensor(self) -> Tensor:
        """Return torch's sparse tensor (COO); of texts there is none."""
        import torch

        values = torch.from_numpy(self.values)
        indices = torch.from_numpy(np.ascontiguousarray(self.indices.T))
        return torch.sparse_coo_tensor(indices, values, self.shape, check_invariants=True)


def as_column(values: Any) -> NDArray[Any] | Ragged | Sparse:
    """Return values as they are given (a column, a tensor, a list) as the column that they are.

    An object for each record that is a list or an array makes a Ragged. Raises ValueError where
    only some of them are.
    """
    if isinstance(values, Ragged):
        return values.own()
    if isinstance(values, Sparse):
        return values
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = values if isinstance(values, np.ndarray) else array_of(values)
    if array.dtype.kind != "O" or array.ndim != 1:
        return array
    listed = array.tolist()
    kinds = set(map(type, listed))
    lists = {kind for kind in kinds if issubclass(kind, ROWS)}
    if not lists:
        return array
    if lists < kinds:
        place = next(n for n, each in enumerate(listed) if not isinstance(each, ROWS))
        raise ValueError(f"record {place} of a column of lists is {listed[place]!r:.60}, no list")
    return Ragged.rows_of(listed)


def concatenated(parts: Sequence[Any]) -> Any:
    """Return a column out of the parts of it, arrays or Ragged; there is at least one."""
    if any(isinstance(part, Ragged) for part in parts):
        return Ragged.concatenated(parts)
    return np.concatenate(parts)
