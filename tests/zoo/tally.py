"""The counting model without tables, for all-reduce.

The gradient of a minibatch of N records is -1 / N in the place of each, and the learning rate is N
(MINIBATCH, which must divide the tasks): place r ends as the number of times that record r was
applied. `steps`, a running statistic, ends as the number of steps.
"""

import os
import time

import torch
from torch import nn

from edl.nn import SGD, Mean


class Tally(nn.Module):
    def __init__(
        self, records: int, delay_s: float, record_s: float = 0.0, until: str = ""
    ) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(records))
        self.register_buffer("steps", torch.zeros(1))
        self.delay_s, self.record_s, self.until = delay_s, record_s, until

    def forward(self, features):
        if not (self.until and os.path.exists(self.until)):
            time.sleep(self.delay_s + self.record_s * len(features["record"]))
        if self.training:
            self.steps += 1
        return self.counts[features["record"]]


def model(records=64, delay_s=0.0, record_s=0.0, until=""):
    return Tally(records, delay_s, record_s, until)


def loss(outputs, labels):
    return -outputs.mean()


def optimizer():
    return SGD(lr=float(os.environ["MINIBATCH"]))


def feed(records, mode):
    time.sleep(float(os.environ.get("FEED_S", "0")))
    ids = torch.from_numpy(records["record"])
    return {"record": ids}, ids


def metrics():
    return {"records": Mean(lambda outputs, labels: 1.0)}
