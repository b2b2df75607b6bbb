"""Remember what torch's own embedding layers drew when they were made.

Within `remembering` each nn.Embedding and nn.EmbeddingBag keeps a digest of the values that its
`reset_parameters` left. `untouched` compares it with the values of now: so one row that was set by
hand, a weight of another origin and a write past torch's version counter (`weight.data`) are all
told, exactly. A copy of a layer remembers as the layer does.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_KINDS: tuple[Any, ...] = (nn.Embedding, nn.EmbeddingBag)
_DRAWN = "_edl_drawn"  # the attribute of a module that holds the digest
_lock = threading.Lock()  # of those below: models may be made by several threads
_within = 0
_own: list[Callable[..., None]] = []  # torch's own methods, while others are in their place


@contextmanager
def remembering() -> Iterator[None]:
    """Let the embedding layers that are made within it remember what they drew."""
    global _within
    with _lock:
        if not _within:
            _own[:] = [kind.reset_parameters for kind in _KINDS]
            for kind, own in zip(_KINDS, _own, strict=True):
                kind.reset_parameters = _remembering(own)
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within:
                for kind, own in zip(_KINDS, _own, strict=True):
                    kind.reset_parameters = own


def untouched(module: nn.Module) -> bool:
    """Tell whether a layer has the very values that it drew, and was seen doing so."""
    drawn = module.__dict__.get(_DRAWN)
    return drawn is not None and drawn == _digest(module.weight)  # type: ignore[arg-type]


def _remembering(own: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(own)
    def reset_parameters(module: nn.Module) -> None:
        own(module)
        module.__dict__[_DRAWN] = _digest(module.weight)  # type: ignore[arg-type]

    return reset_parameters


def _digest(weight: Tensor) -> bytes | None:
    """Return a digest of the values' bits; None where there are none (the meta device)."""
    if weight.is_meta:
        return None
    bits = weight.detach().cpu().contiguous().view(torch.uint8)
    return hashlib.blake2b(bits.numpy().data, digest_size=16).digest()
