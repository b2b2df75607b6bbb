"""The model of a definition, compiled; what is dense of it is of nn/dense.py."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..nn.dense import dense_tensors, model_spec
from ..nn.embedding import Embedding

__all__ = ["compiled", "dense_tensors", "model_spec"]

log = logging.getLogger(__name__)


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
