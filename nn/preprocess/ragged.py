"""Rows of differing length and arrays that are mostly nothing, as numpy keeps them.

`Ragged.padded` gives what `edl.nn.Embedding` with a combiner takes, `Ragged.bag` what torch's
EmbeddingBag takes, `Sparse.tensor` torch's sparse tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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

    def __len__(self) -> int:
        return len(self.offsets) - 1

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
        return [part.tolist() for part in np.split(self.values, self.offsets[1:-1])][: len(self)]

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
