"""The model of a definition, compiled; what is dense of it is of nn/dense.py."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..common.settings import JobSettings
from ..nn.dense import dense_tensors, model_spec
from ..nn.embedding import Embedding
from ..nn.precision import Precision

__all__ = ["PLAIN", "Passes", "compiled", "dense_tensors", "model_spec"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Passes:
    """The way in which a model passes forward and backward.

    `compile`: the training forward is compiled by torch, all but the tables. `precision`: the
    numbers of both (nn/precision.py), `repeatable` whatever was computed before.
    """

    compile: bool = False
    precision: str = "float32"
    repeatable: bool = False

    @staticmethod
    def of(settings: JobSettings) -> Passes:
        """Return what a job's settings ask for."""
        return Passes(settings.compile, settings.precision, repeatable=settings.deterministic)

    def numbers(self, device: torch.device) -> Precision:
        """Return the numbers on a device. Raises UsageError where it has none such."""
        return Precision(self.precision, device, repeatable=self.repeatable)


PLAIN = Passes()


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
