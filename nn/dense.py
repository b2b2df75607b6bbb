"""The dense part of a user's model, and what servers and checkpoints must know of the whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .by_name import ByName, Optimizers
from .embedding import tables
from .model_spec import CHUNK_ELEMENTS, DenseSpec, ModelSpec


def dense_tensors(model: nn.Module) -> dict[str, tuple[Tensor, str]]:
    """Return the tensors that live on the servers: name -> (tensor, "parameter" or "buffer").

    Integer buffers (BatchNorm's num_batches_tracked) stay with the worker: no value that `forward`
    uses depends on them unless momentum is None. So do frozen parameters that are no floats.
    """
    found: dict[str, tuple[Tensor, str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            found[name] = (parameter, "parameter")
    persistent = set(model.state_dict(keep_vars=True))
    for name, buffer in model.named_buffers():
        if name in persistent and buffer.is_floating_point():
            found[name] = (buffer, "buffer")
    return found


def model_spec(model: nn.Module, optimizer: Optimizers, seed: int) -> ModelSpec:
    """Return what the servers must know of the model."""
    dense = tuple(
        DenseSpec(name, tuple(tensor.shape), kind)
        for name, (tensor, kind) in dense_tensors(model).items()
    )
    spec = ModelSpec(dense, tuple(tables(model).values()), optimizer, seed)
    if isinstance(optimizer, ByName):
        optimizer.check([*(each.name for each in dense), *(each.name for each in spec.tables)])
    return spec


@torch.no_grad()
def put_chunk(tensor: Tensor, chunk: int, values: Tensor) -> None:
    """Give a tensor the values of its `chunk`-th chunk."""
    place = tensor.detach().reshape(-1)[chunk * CHUNK_ELEMENTS : (chunk + 1) * CHUNK_ELEMENTS]
    place.copy_(values)
