"""One dense tensor of 300 MB; each step adds 1 to all of it."""

import torch
from torch import nn

from edl.nn import SGD


class Big(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(75_000_000))

    def forward(self, records):
        return self.weight.sum()


def model():
    return Big()


def loss(outputs, labels):
    return outputs


def optimizer():
    return SGD(lr=-1.0)


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return ids, ids
