"""A definition's teacher as a server has it: arrays in, arrays out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ..model_zoo.spec import Definition
from ..nn.device import to_device
from . import tree
from .frames import Part


class Teaching:
    """The teacher of a definition on a device. One thread at a time may call."""

    def __init__(
        self,
        definition: Definition,
        device: torch.device,
        *,
        replies: str,
    ) -> None:
        """Make the teacher. `replies`: "float32", or "float16" for wider floats of answers."""
        self._definition = definition
        self._device = device
        self._narrow = replies == "float16"
        self._model = definition.teacher().to(device)
        self.fingerprint = fingerprint(definition, self._model, replies)

    @torch.no_grad()
    def __call__(self, parts: Sequence[Part], _rows: int) -> list[Part]:
        """Return the answers about features."""
        features = to_device(tree.values_of(parts), self._device)
        answers = self._definition.teach(self._model, features)
        told = tree.parts_of(answers, "what teach returns")
        return [_narrowed(part) for part in told] if self._narrow else told


def fingerprint(definition: Definition, model: nn.Module, replies: str = "float32") -> str:
    """Return what tells a teacher's answers from others'.

    Its values, the file of its definition, and how wide its replies are.
    """
    digest = hashlib.sha256(b"" if replies == "float32" else replies.encode())
    for name, tensor in sorted(model.state_dict().items()):
        told = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {told.dtype} {tuple(told.shape)};".encode())
        flat = told.reshape(-1).view(torch.uint8)  # of no dimension too, as BatchNorm's count
        digest.update(memoryview(flat.numpy()) if told.numel() else b"")
    if (path := Path(definition.file)).is_file():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _narrowed(part: Part) -> Part:
    if part.is_bfloat16 or part.values.dtype not in (np.float32, np.float64):
        return part
    return Part(part.name, part.values.astype(np.float16))
