"""A counting model whose gradients tell how they travelled.

The gradient of record r in row r is (127, 1 + 2**-13), that of `total` 127 for each record. float16
and int8 codes hold the 127 exactly, so row r begins with 127 for each time that r was applied; they
cannot hold the second value, which float32 can.
"""

import torch
from torch import nn

from edl.nn import SGD, Embedding

GRADIENT = (127.0, 1 + 2.0**-13)


class Coded(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = Embedding("counts", 2, initializer="zeros", feature="record")
        self.total = nn.Parameter(torch.zeros(1))

    def forward(self, features):
        return self.counts(features["record"]) @ torch.tensor(GRADIENT) + GRADIENT[0] * self.total


def model():
    return Coded()


def loss(outputs, labels):
    return outputs.sum()


def optimizer():
    return SGD(lr=-1.0)


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return {"record": ids}, ids
