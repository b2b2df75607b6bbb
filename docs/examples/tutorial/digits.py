"""The common part of the tutorial's steps.

It has a network for 8 x 8 pictures of digits, and the pictures.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def pictures() -> tuple[TensorDataset, TensorDataset]:
    """Return float32[N, 1, 8, 8] in 0..1 and labels int64[N], from scikit-learn.

    1,500 are to train, 297 to test.
    """
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(found.target)
    return TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)
    )
