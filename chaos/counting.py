"""The definition that faults are measured on: it counts, and it learns.

Its gradient of record r is one-hot in row r of `counts`, at a learning rate of -1 (in sync mode of
minus the pushes of a version): the row ends as the number of times that record r was applied. Each
of the scalars `seen` counts all records; they are spread over the servers, so that every server
tells how many records' pushes it has applied. A line is fitted to the records beside that, for a
loss that a fault may harm.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor, nn

from edl.nn import SGD, Embedding, Mean

SEEN = 16  # with three servers each has some
_RATE = 0.05


class Counting(nn.Module):
    """A model that counts: row r of `counts` is how often record r was applied.

    `seen` counts the updates of each server; `line` is learnt, so that there is a loss to look at.
    """

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.counts = Embedding("counts", 1, initializer="zeros", feature="record")
        self.seen = nn.ParameterList(torch.zeros(1) for _ in range(SEEN))
        self.line = nn.Parameter(torch.zeros(3))
        self.delay_s = delay_s

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        if self.training:
            time.sleep(self.delay_s)
        rows = self.counts(features["record"])[:, 0]
        counted = rows + sum(self.seen)
        return torch.stack([counted, features["x"] @ self.line], dim=1)


def model(delay_s: float = 0.0) -> Counting:
    return Counting(delay_s)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    # The learning rate is negative: what is to be learnt descends by a negative share of it.
    return outputs[:, 0].sum() - _RATE * ((outputs[:, 1] - labels) ** 2).mean()


def optimizer() -> SGD:
    return SGD(lr=-float(os.environ.get("GRADS_TO_WAIT", "1")))


def feed(records: Any, _mode: str) -> tuple[dict[str, Tensor], Tensor]:
    ids = torch.from_numpy(records["record"])
    r = ids.to(torch.float32)
    x = torch.stack([torch.sin(r), torch.cos(0.7 * r), torch.ones_like(r)], dim=1)
    labels = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.sin(37.0 * r)
    return {"record": ids, "x": x}, labels


def metrics() -> dict[str, Mean]:
    return {"loss": Mean(lambda outputs, labels: ((outputs[:, 1] - labels) ** 2).mean())}
