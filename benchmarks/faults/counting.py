"""The counting definition of our jobs: row r ends as how often record r was applied."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edl.nn import SGD, Embedding


class Counting(nn.Module):
    """A counting model; each minibatch leaves a line in a file of its process below `journal`."""

    def __init__(self, delay_s: float, journal: str) -> None:
        super().__init__()
        self.counts = Embedding("counts", 1, initializer="zeros", feature="record")
        self.total = nn.Parameter(torch.zeros(1))
        self.delay_s = delay_s
        self.journal = Path(journal)

    def forward(self, features: dict[str, Any]) -> Any:
        time.sleep(self.delay_s)
        line = {"event": "step", "at": time.monotonic(), "records": features["record"].tolist()}
        with open(self.journal / f"{os.getpid()}.jsonl", "a") as file:
            file.write(f"{json.dumps(line)}\n")
        return self.counts(features["record"]) + self.total


def model(delay_s: float, journal: str) -> Counting:
    return Counting(delay_s, journal)


def loss(outputs: Any, _labels: Any) -> Any:
    return outputs.sum()


def optimizer() -> SGD:
    return SGD(lr=-1.0)


def feed(records: Any, _mode: str) -> tuple[dict[str, Any], Any]:
    ids = torch.from_numpy(records["record"])
    return {"record": ids}, ids
