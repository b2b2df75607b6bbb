"""A definition's teacher as a server has it: arrays in, arrays out."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common.errors import EdlError
from ..model_zoo.imports import files_of
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
        """Return the answers about features. Raises EdlError for one that its kind cannot hold."""
        features = to_device(tree.values_of(parts), self._device)
        answers = self._definition.teach(self._model, features)
        told = tree.parts_of(answers, "what teach returns")
        return [_narrowed(part) for part in told] if self._narrow else told


def fingerprint(definition: Definition, model: nn.Module, replies: str = "float32") -> str:
    """Return what tells a teacher's answers from others'.

    Its values, `--teacher_params`, the files of its definition and of the modules that this
    imports, and how wide its replies are.
    """
    digest = hashlib.sha256(f"{replies} ".encode())
    params = json.dumps(dict(definition.teacher_params), sort_keys=True, default=repr)
    digest.update(f"{len(params)} {params}".encode())
    for name, value in sorted({**dict(model.named_buffers()), **model.state_dict()}.items()):
        _tell(digest, name, value)
    for name, path in sorted(_files_of(definition).items()):
        text = path.read_bytes()
        digest.update(f"{name} {len(text)};".encode() + text)
    return digest.hexdigest()[:32]


def _files_of(definition: Definition) -> dict[str, Path]:
    file = Path(definition.file)
    return {**files_of(definition.module), **({"": file} if file.is_file() else {})}


def _tell(digest: hashlib._Hash, name: str, value: Any) -> None:
    """Tell a value of a model's state: a tensor of any kind, or what a module adds of its own."""
    if isinstance(value, Tensor):
        told = value.detach()
        digest.update(f"{name} {told.dtype} {tuple(told.shape)};".encode())
        told = told.dequantize() if told.is_quantized else told
        told = (told if told.layout == torch.strided else told.to_dense()).cpu()
        told = torch.view_as_real(told.resolve_conj()) if told.is_complex() else told
        flat = told.resolve_neg().contiguous().reshape(-1)  # of no dimension too
        digest.update(flat.view(torch.uint8).numpy().data if told.numel() else b"")
    elif isinstance(value, dict):
        for key, each in value.items():
            _tell(digest, f"{name}/{key}", each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            _tell(digest, f"{name}:{number}", each)
    else:
        try:
            pickled = pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):  # told by its kind alone
            pickled = type(value).__qualname__.encode()
        digest.update(f"{name} {len(pickled)};".encode() + pickled)


def _narrowed(part: Part) -> Part:
    """Return an array with float16 for wider floats. Raises EdlError for a value beyond these."""
    if part.is_bfloat16 or part.values.dtype not in (np.float32, np.float64):
        return part
    with np.errstate(over="ignore"):
        narrow = part.values.astype(np.float16)
    lost = np.isinf(narrow) & np.isfinite(part.values)
    if lost.any():
        value = part.values[lost].flat[0]
        masked = "" if value > 0 else "; -inf masks a class"
        raise EdlError(
            f"it answers {value:.6g} in {part.name!r}, and float16 ends at 65504: start it with "
            f"replies of float32 (--teacher_replies, `edl teach --replies`{masked})"
        )
    return Part(part.name, narrow)
