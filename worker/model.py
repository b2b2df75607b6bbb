"""The definition's model, whatever the strategy: its dense tensors, specification, compilation."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.by_name import ByName, Optimizers
from ..nn.embedding import Embedding, tables
from ..nn.model_spec import DenseSpec, ModelSpec

log = logging.getLogger(__name__)


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
        optimizer.check([*(d.name for d in dense), *(t.name for t in spec.tables)])
    return spec


def compiled(model: nn.Module) -> Callable[..., Any]:
    """Return the model's forward compiled by torch, its tables called between the compiled parts.

    The model itself where the machine has no C++ compiler, with a warning: it computes the same.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        log.warning("--compile -> ignored reason='no C++ compiler %s on this machine'", compiler)
        return model
    for module in model.modules():
        if isinstance(module, Embedding):
            apart = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
            module.forward = apart  # type: ignore[method-assign]
    # Random numbers as without compiling, so that dropout masks stay a function of the span alone.
    return torch.compile(model, options={"fallback_random": True})
