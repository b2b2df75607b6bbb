"""Move big embeddings of torch to the parameter servers, without a change to the user's code.

An nn.Embedding or nn.EmbeddingBag becomes a table that is named after its path. Rows of a layer
that holds what it drew itself, N(0, 1), are made on the servers, N(0, 1) by (seed, table, id). All
other first values (pretrained, set by hand, drawn in another way) go to the servers as they are,
when they are told the model. What would mean something else there stays where it is, and `prepare`
says why: a weight that is tied, frozen, made of other values or of another type than float32,
max_norm or scale_grad_by_freq, which need the whole table or the whole batch, and hooks or a
forward of the user's, which would be called no more.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import torch
from torch import nn

from .averaged import Averaged
from .drawn import untouched
from .moved import MovedBag, MovedEmbedding

log = logging.getLogger(__name__)

_BAGS = nn.Embedding | nn.EmbeddingBag
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def prepare(
    model: nn.Module, threshold_bytes: int, stay: Collection[str] = frozenset()
) -> list[str]:
    """Make of the user's model what a job trains: big embeddings moved, no sparse gradients.

    Weights that are named in `stay` are not moved. Returns a sentence for each other embedding that
    is big and stays.

    With the optimizers of edl.nn a dense gradient comes to what a sparse one does, where torch
    takes that at all; of rows that few batches touch the servers' tables are the faster place.
    """
    _, staying = _replace(model, threshold_bytes, stay)
    for module in model.modules():
        if isinstance(module, Averaged):
            module.forget_moved()
        if isinstance(module, _BAGS):
            module.sparse = False
    return staying


def replace_big_embeddings(
    model: nn.Module, threshold_bytes: int, stay: Collection[str] = frozenset()
) -> list[str]:
    """Swap each nn.Embedding and nn.EmbeddingBag of more than `threshold_bytes` in place.

    Returns their table names. 0 swaps none.
    """
    moved, _ = _replace(model, threshold_bytes, stay)
    return moved


def _replace(
    model: nn.Module, threshold_bytes: int, stay: Collection[str]
) -> tuple[list[str], list[str]]:
    """Swap them; return the names of the tables, and a sentence for each that is big and stays."""
    if threshold_bytes <= 0:
        return [], []
    moved: dict[int, MovedEmbedding] = {}
    staying = []
    for path, module in list(model.named_modules()):
        if not isinstance(module, _BAGS) or not path:
            continue
        if module.weight.nbytes <= threshold_bytes or f"{path}.weight" in stay:
            continue
        if reason := _reason_to_stay(model, module):
            log.warning("embedding=%s stays in the workers: %s", path, reason)
            staying.append(f"{path} ({type(module).__name__}) stays in the workers: {reason}")
        else:
            moved[id(module)] = _moved(path, module)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in moved:
                setattr(parent, name, moved[id(child)])
    return [embedding.name for embedding in moved.values()], staying


def _moved(path: str, module: nn.Embedding | nn.EmbeddingBag) -> MovedEmbedding:
    weight = module.weight.detach()
    first = None if untouched(module) else weight.cpu()
    rows, dim = weight.shape
    if isinstance(module, nn.Embedding):
        return MovedEmbedding(path, rows, dim, module.padding_idx, first)
    return MovedBag(
        path,
        rows,
        dim,
        module.padding_idx,
        first,
        mode=module.mode,
        include_last_offset=module.include_last_offset,
    )


def _reason_to_stay(model: nn.Module, module: nn.Embedding | nn.EmbeddingBag) -> str:
    """Return why the servers cannot hold the table; "" where they can."""
    weight = module.weight
    if type(module) not in (nn.Embedding, nn.EmbeddingBag):
        return f"it is a {type(module).__name__}, whose forward may differ"
    if "weight" not in module._parameters:
        return "its weight is made of other values, as by weight_norm or pruning"
    if "forward" in vars(module) or any(getattr(module, hooks) for hooks in _HOOKS):
        return "it has hooks or a forward of its own, which the servers' rows would pass by"
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return "its weight has hooks for its gradient"
    if module.max_norm is not None:
        return "max_norm renormalises rows in the forward"
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq is not known on the servers"
    if not weight.requires_grad:
        return "its weight is frozen"
    if weight.dtype != torch.float32:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}, and rows are float32"
    padding = module.padding_idx if isinstance(module, nn.Embedding) else None
    if padding is not None and bool(weight.detach()[padding].any()):
        return "its row of padding_idx is not zero, and on the servers it is"
    holders = [m for m in model.modules() if any(p is weight for p in m._parameters.values())]
    if len(holders) > 1:
        return "its weight is tied to another module's"
    return ""
