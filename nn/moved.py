"""The layers that stand in the place of torch's embeddings whose rows are on the servers.

They take what torch's take, answer what torch's answer, and refuse the same ids. The combination of
a bag is torch's own: an embedding_bag over the rows that this batch has asked for.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import DefinitionError
from .embedding import PADDING, Embedding


class MovedEmbedding(Embedding):
    """An nn.Embedding whose rows are on the servers: the same ids, range and padding_idx.

    `first`: the first values of all rows, float32[rows, dim], where they are the definition's own;
    None: they are N(0, 1) by (seed, table, id).
    """

    def __init__(
        self, name: str, rows: int, dim: int, padding_idx: int | None, first: Tensor | None = None
    ) -> None:
        super().__init__(name, dim, initializer="normal", scale=1.0)
        self.num_embeddings = rows
        self.embedding_dim = dim
        self.padding_idx = padding_idx
        self.first = first

    @property
    def weight(self) -> Tensor:
        raise DefinitionError(
            f"The weight of {self.name!r} lives on the parameter servers, but the model uses it "
            "directly; set --ps_embedding_threshold 0 to keep it in the workers."
        )

    def first_rows(self, seed: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if self.first is None:
            return super().first_rows(seed, ids)
        rows: NDArray[np.float32] = self.first[torch.from_numpy(ids)].numpy()
        return rows

    def _checked(self, ids: Tensor) -> Tensor:
        """Check ids as nn.Embedding does.

        int32 too, an IndexError out of range, zeros for padding_idx.
        """
        ids = super()._checked(ids.long() if ids.dtype == torch.int32 else ids)
        if ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.num_embeddings:
                raise IndexError(
                    f"{self.name!r} has {self.num_embeddings} rows; got ids from {low} to {high}"
                )
        return (
            ids if self.padding_idx is None else ids.masked_fill(ids == self.padding_idx, PADDING)
        )


class MovedBag(MovedEmbedding):
    """An nn.EmbeddingBag whose rows are on the servers: torch's arguments, torch's own sums."""

    def __init__(
        self,
        name: str,
        rows: int,
        dim: int,
        padding_idx: int | None,
        first: Tensor | None = None,
        *,
        mode: str,
        include_last_offset: bool,
    ) -> None:
        super().__init__(name, rows, dim, padding_idx, first)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        if input.is_nested:
            raise DefinitionError(
                f"The bags of {self.name!r} are a nested tensor: give input.values() and "
                "input.offsets()[:-1], or set --ps_embedding_threshold 0 to keep it in the workers."
            )
        if getattr(self.source, "whole", False) and input.dim() == 2 and offsets is None:
            return self._traced(super().forward(input), input, per_sample_weights)
        rows_ND = super().forward(input).reshape(-1, self.dim)
        count = rows_ND.shape[0]
        # One row more, of zeros: what padding looks at, and bags that are all empty.
        rows_ND = torch.cat([rows_ND, rows_ND.new_zeros(1, self.dim)])
        places = torch.arange(count, dtype=input.dtype, device=input.device).reshape(input.shape)
        if self.padding_idx is not None:
            places = torch.where(input == self.padding_idx, count, places)
        return functional.embedding_bag(
            places,
            rows_ND,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=None if self.padding_idx is None else count,
        )

    def _traced(self, rows_NLD: Tensor, ids_NL: Tensor, weights_NL: Tensor | None) -> Tensor:
        """Combine as torch does, by operations that torch.export traces for any number of bags."""
        if self.padding_idx is None:
            present_NL1 = torch.ones_like(ids_NL, dtype=torch.bool).unsqueeze(-1)
        else:
            present_NL1 = (ids_NL != self.padding_idx).unsqueeze(-1)
        if self.mode == "max":
            most_ND = rows_NLD.masked_fill(~present_NL1, -torch.inf).amax(dim=1)
            return most_ND.masked_fill(~present_NL1.any(dim=1), 0.0)
        weights_NL1 = present_NL1.to(rows_NLD.dtype)
        count_N1 = weights_NL1.sum(dim=1).clamp(min=1) if self.mode == "mean" else 1.0
        if weights_NL is not None:
            weights_NL1 = weights_NL1 * weights_NL.unsqueeze(-1)
        return (rows_NLD * weights_NL1).sum(dim=1) / count_N1

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


def take_first_rows(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Take out of a model the first values of rows that are its own: by table float32[rows, dim].

    They are those of the ids 0 to rows - 1. The model forgets them: they may be most of it.
    """
    found = {}
    for module in model.modules():
        if isinstance(module, MovedEmbedding) and module.first is not None:
            found[module.name] = np.ascontiguousarray(module.first.numpy())
            module.first = None
    return found
