"""The definition that faults are measured on: it counts, and it learns.

Its gradient of record r is one-hot in row r of `counts`, at a learning rate of -1 (in sync mode of
minus the pushes of a version): the row ends as the number of times that record r was applied. Each
of the scalars `seen` counts all records; they are spread over the servers, so that every server
tells how many records' pushes it has applied. A line is fitted to the records beside that, for a
loss that a fault may harm.

With teachers, row r of `lessons` ends as the sum of what was taught of record r. The teacher says
`first` + r of it, so that a sum of a few of these is no other record's.

TEACH   a folder: while its file of a teacher's index holds a word, that teacher does so: nan | rows
        | hang | slow
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edl.nn import SGD, Embedding, Mean

SEEN = 16  # with three servers each has some
_RATE = 0.05
_SLOWER = 10.0
_HANG_S = 3600.0


class Counting(nn.Module):
    """A model that counts: row r of `counts` is how often record r was applied.

    `seen` counts the updates of each server; `line` is learnt, so that there is a loss to look at.
    With `taught`, row r of `lessons` is the sum of what was taught of record r.
    """

    def __init__(self, delay_s: float, taught: bool) -> None:
        super().__init__()
        self.counts = Embedding("counts", 1, initializer="zeros", feature="record")
        if taught:
            self.lessons = Embedding("lessons", 1, initializer="zeros", feature="record")
        self.seen = nn.ParameterList(torch.zeros(1) for _ in range(SEEN))
        self.line = nn.Parameter(torch.zeros(3))
        self.delay_s, self.taught = delay_s, taught

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        if self.training:
            time.sleep(self.delay_s)
        rows = self.counts(features["record"])[:, 0]
        told = [rows + sum(self.seen), features["x"] @ self.line]
        if self.taught:
            told.append(self.lessons(features["record"])[:, 0])
        return torch.stack(told, dim=1)


def model(delay_s: float = 0.0, taught: bool = False) -> Counting:
    return Counting(delay_s, taught)


def loss(outputs: Tensor, labels: Tensor, teacher: Tensor | None = None) -> Tensor:
    # The learning rate is negative: what is to be learnt descends by a negative share of it.
    counted = outputs[:, 0].sum() - _RATE * ((outputs[:, 1] - labels) ** 2).mean()
    if outputs.shape[1] == 2:
        return counted
    lessons = torch.zeros(len(outputs)) if teacher is None else teacher[:, 0]
    return counted + (outputs[:, 2] * lessons).sum()


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


class Teacher(nn.Module):
    """A teacher that says `first` + r of record r, and takes `delay_s` for it."""

    def __init__(self, first: float, delay_s: float) -> None:
        super().__init__()
        self.first, self.delay_s = first, delay_s

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        records = features["record"]
        told = _told()
        if told == "hang":
            time.sleep(_HANG_S)
        time.sleep(self.delay_s * (_SLOWER if told == "slow" else 1.0))
        if told == "nan":
            return torch.full((len(records), 1), torch.nan)
        if told == "rows":
            return torch.zeros(len(records) + 1, 1)
        return (self.first + records)[:, None].float()


def teacher(first: float = 2000.0, delay_s: float = 0.0) -> Teacher:
    return Teacher(first, delay_s)


def _told() -> str:
    """Return what this teacher shall do; "": teach."""
    folder = os.environ.get("TEACH")
    path = Path(folder, os.environ.get("EDL_INDEX", "0")) if folder else None
    return path.read_text() if path is not None and path.exists() else ""
