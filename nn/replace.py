"""Move big `nn.Embedding` modules to the parameter servers, without a change to the user's code.

The table is named after the module's path and starts from N(0, 1) by (seed, table, id), as
nn.Embedding starts from N(0, 1). What would mean something else on the servers stays where it is,
with a line in the log: a weight that is tied, frozen or initialised in another way, and max_norm or
scale_grad_by_freq, which need the whole table or the whole batch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import torch
from torch import Tensor, nn

from ..common.errors import DefinitionError
from .embedding import PADDING, Embedding

log = logging.getLogger(__name__)

# The standard error of the mean of a 2 MiB table is 0.0014: 0.05 tells N(0, 1) from anything else.
_NORMAL_TOLERANCE = 0.05


class MovedEmbedding(Embedding):
    """An nn.Embedding whose rows are on the servers: the same ids, range and padding_idx."""

    def __init__(self, name: str, rows: int, dim: int, padding_idx: int | None) -> None:
        super().__init__(name, dim, initializer="normal", scale=1.0)
        self.num_embeddings = rows
        self.embedding_dim = dim
        self.padding_idx = padding_idx

    @property
    def weight(self) -> Tensor:
        raise DefinitionError(
            f"The weight of {self.name!r} lives on the parameter servers, but the model uses it "
            "directly; set --ps_embedding_threshold 0 to keep it in the workers."
        )

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


def prepare(model: nn.Module, threshold_bytes: int, stay: Collection[str] = frozenset()) -> None:
    """Make of the user's model what a job trains: big embeddings moved, no sparse gradients.

    Weights that are named in `stay` are not moved.

    With the optimizers of edl.nn a dense gradient comes to what a sparse one does, where torch
    takes that at all; of rows that few batches touch the servers' tables are the faster place.
    """
    replace_big_embeddings(model, threshold_bytes, stay)
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False


def replace_big_embeddings(
    model: nn.Module, threshold_bytes: int, stay: Collection[str] = frozenset()
) -> list[str]:
    """Swap each nn.Embedding of more than `threshold_bytes` in place.

    Returns their table names. 0 swaps none.
    """
    if threshold_bytes <= 0:
        return []
    moved: dict[int, MovedEmbedding] = {}
    for path, module in list(model.named_modules()):
        if not isinstance(module, nn.Embedding) or not path:
            continue
        if module.weight.nbytes <= threshold_bytes or f"{path}.weight" in stay:
            continue
        if reason := _reason_to_stay(model, module):
            log.warning("embedding=%s stays in the workers: %s", path, reason)
        else:
            moved[id(module)] = MovedEmbedding(
                path, module.num_embeddings, module.embedding_dim, module.padding_idx
            )
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in moved:
                setattr(parent, name, moved[id(child)])
    return [embedding.name for embedding in moved.values()]


def _reason_to_stay(model: nn.Module, module: nn.Embedding) -> str:
    """Return why the servers cannot hold the table; "" where they can."""
    weight = module.weight
    if type(module) is not nn.Embedding:
        return f"it is a {type(module).__name__}, whose forward may differ"
    if module.max_norm is not None:
        return "max_norm renormalises rows in the forward"
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq is not known on the servers"
    if not weight.requires_grad:
        return "its weight is frozen"
    holders = [m for m in model.modules() if any(p is weight for p in m._parameters.values())]
    if len(holders) > 1:
        return "its weight is tied to another module's"
    mean, spread = float(weight.detach().mean()), float(weight.detach().std())
    if abs(mean) > _NORMAL_TOLERANCE or abs(spread - 1) > _NORMAL_TOLERANCE:
        return (
            f"its first values (mean {mean:.3g}, deviation {spread:.3g}) are not N(0, 1); an "
            "edl.nn.Embedding(..., initializer=, scale=) makes others on the servers"
        )
    return ""
