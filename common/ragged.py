"""Rows of differing length and arrays that are mostly nothing, as numpy keeps them.

A column of lists is a Ragged wherever records come from: `records["genres"].values` are all
elements one after the other, `.offsets` where each row begins. It is a sequence of its rows.
`Ragged.padded` gives what `edl.nn.Embedding` with a combiner takes, `Ragged.bag` what torch's
EmbeddingBag takes, `Sparse.tensor` torch's sparse tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

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
        """Return rows of these lengths."""
        return cls(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    @classmethod
    def rows_of(cls, rows: Iterable[Any], dtype: Any = None) -> Ragged:
        """Return these rows, each an array or a list; `dtype` is that of all values."""
        arrays = [np.asarray(row, dtype).reshape(-1) for row in rows]
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        there = [array for array in arrays if len(array)] or [np.empty(0, dtype)]
        return cls.of(np.concatenate(there), lengths)

    @classmethod
    def concatenated(cls, parts: Iterable[Ragged]) -> Ragged:
        """Return the rows of all parts, one part after the other; there is at least one."""
        parts = [*parts]
        values = np.concatenate([part.own().values for part in parts])
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

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> NDArray[Any]: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> Ragged: ...

    def __getitem__(self, rows: int | np.integer[Any] | slice | NDArray[Any]) -> Any:
        """Return one row's values, or the rows of a slice, of places or of a mask."""
        if isinstance(rows, slice):
            first, stop, step = rows.indices(len(self))
            if step == 1:
                return Ragged(self.values, self.offsets[first : max(first, stop) + 1]).own()
            rows = np.arange(first, stop, step)
        elif not isinstance(rows, np.ndarray):
            place = range(len(self))[rows]
            return self.values[self.offsets[place] : self.offsets[place + 1]]
        places = np.flatnonzero(rows) if rows.dtype == bool else np.asarray(rows, np.int64)
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

    def replace(self, values: NDArray[Any]) -> Ragged:
        """Return the same rows with other values."""
        return replace(self, values=values)

    def keep(self, kept: NDArray[np.bool_]) -> Ragged:
        """Return the rows without the values that are not to be kept."""
        return Ragged.of(self.values[kept], np.bincount(self.rows[kept], minlength=len(self)))

    def tolist(self) -> list[list[Any]]:
        return [row.tolist() for row in self]

    def padded(self, padding: float = -1, length: int | None = None) -> Tensor:
        """Return a tensor [N, longest], or [N, length] with what is longer cut off.

        Rows end with `padding`; -1 is `edl.nn.PADDING`.
        """
        import torch

        lengths = self.lengths
        width = max(1, int(lengths.max(initial=0))) if length is None else length
        filled = np.full((len(self), width), padding, self.values.dtype)
        places = np.arange(len(self.values)) - np.repeat(self.offsets[:-1], lengths)
        kept = places < width
        filled[self.rows[kept], places[kept]] = self.values[kept]
        return torch.from_numpy(filled)

    def bag(self) -> tuple[Tensor, Tensor]:
        """Return the values and where each row begins, as `torch.nn.EmbeddingBag` takes them."""
        import torch

        return torch.from_numpy(self.values), torch.from_numpy(self.offsets[:-1])


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
