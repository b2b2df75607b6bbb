"""The counting model: the oracle of the books.

The gradient of record r is one-hot in row r, and the learning rate is -grads_to_wait, so that row r
ends as the number of times that record r was applied. The dense `total` counts all records.
"""

import os
import time

import torch
from torch import nn

from edl.nn import SGD, Embedding, Mean


class Counting(nn.Module):
    def __init__(self, delay_s: float, record_s: float = 0.0, until: str = "") -> None:
        super().__init__()
        self.counts = Embedding("counts", 1, initializer="zeros", feature="record")
        self.total = nn.Parameter(torch.zeros(1))
        self.delay_s, self.record_s, self.until = delay_s, record_s, until

    def forward(self, features):
        if not (self.until and os.path.exists(self.until)):
            time.sleep(self.delay_s + self.record_s * len(features["record"]))
        rows = self.counts(features["record"])
        return rows + self.total


def model(delay_s=0.0, record_s=0.0, until=""):
    """Make the model, slow by so many seconds a step and a record until a file is there."""
    return Counting(delay_s, record_s, until)


def loss(outputs, labels):
    return outputs.sum()


def optimizer():
    return SGD(lr=-float(os.environ.get("GRADS_TO_WAIT", "1")))


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return {"record": ids}, ids


def metrics():
    return {"records": Mean(lambda outputs, labels: 1.0)}
