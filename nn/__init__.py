"""The names that a definition imports: `from edl.nn import Adam, AUC, Embedding`.

Optimizer specs, metrics and hashing need numpy only. The names that need torch are looked up at
first use (PEP 562), so that the master, the servers and the command line start without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..common.hashing import hash64
from .auc import AUC, GAUC
from .by_name import ByName
from .groups import ByGroup
from .metrics import Accuracy, LogLoss, Mean, MeanSquaredError, Metric
from .optimizers import (
    FTRL,
    LAMB,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    GroupAdam,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    RowWiseAdagrad,
)
from .ranking import RecallAtK
from .schedules import (
    Constant,
    Cosine,
    Exponential,
    MultiStep,
    OneCycle,
    Polynomial,
    StepDecay,
    Table,
    Warmup,
    sampled,
)

if TYPE_CHECKING:
    from .averaged import Averaged
    from .embedding import PADDING, Embedding, RowSource, attach, tables
    from .local import LocalRows, torch_optimizer
    from .replace import replace_big_embeddings

_NEEDS_TORCH = {
    "Averaged": "averaged",
    "Embedding": "embedding",
    "PADDING": "embedding",
    "RowSource": "embedding",
    "attach": "embedding",
    "tables": "embedding",
    "LocalRows": "local",
    "torch_optimizer": "local",
    "replace_big_embeddings": "replace",
}

__all__ = [
    "AUC",
    "FTRL",
    "GAUC",
    "LAMB",
    "PADDING",
    "SGD",
    "Accuracy",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Averaged",
    "ByGroup",
    "ByName",
    "Constant",
    "Cosine",
    "Embedding",
    "Exponential",
    "GroupAdam",
    "Lion",
    "LocalRows",
    "LogLoss",
    "Mean",
    "MeanSquaredError",
    "Metric",
    "MultiStep",
    "NAdam",
    "OneCycle",
    "Polynomial",
    "RAdam",
    "RMSprop",
    "RecallAtK",
    "RowSource",
    "RowWiseAdagrad",
    "StepDecay",
    "Table",
    "Warmup",
    "attach",
    "hash64",
    "replace_big_embeddings",
    "sampled",
    "tables",
    "torch_optimizer",
]


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(importlib.import_module(f".{_NEEDS_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
