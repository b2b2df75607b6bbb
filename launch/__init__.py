"""The functions that a script under `edl launch` may call; the rest of this folder runs it.

Two calls make a script elastic: `load` at its start, `save` whenever it likes. A script that uses
them also runs under plain `python` or torchrun where EDL_CHECKPOINT_PATH names a folder.
"""

from .report import report
from .share import Linear, Share, batch
from .state import DRAINED, Saved, drain, leave, load, save

__all__ = [
    "DRAINED",
    "Linear",
    "Saved",
    "Share",
    "batch",
    "drain",
    "leave",
    "load",
    "report",
    "save",
]
