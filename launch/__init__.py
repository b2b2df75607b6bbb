"""The functions that a script under `edl launch` may call; the rest of this folder runs it.

Two calls make a script elastic: `load` at its start, `save` whenever it likes. A script that uses
them also runs under plain `python` or torchrun where EDL_CHECKPOINT_PATH names a folder.

What needs torch is imported when it is used: the coordinator starts without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .report import report
from .share import Linear, Share, batch
from .state import DRAINED, Saved, drain, leave, load, save

if TYPE_CHECKING:
    from .randomness import go_on_randomly as go_on_randomly
    from .randomness import random_states as random_states
    from .sampler import Sampler as Sampler

_LATER = {
    "Sampler": "sampler",
    "go_on_randomly": "randomness",
    "random_states": "randomness",
}

__all__ = [
    "DRAINED",
    "Linear",
    "Sampler",
    "Saved",
    "Share",
    "batch",
    "drain",
    "go_on_randomly",
    "leave",
    "load",
    "random_states",
    "report",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
