"""A score of each record (its number modulo 7), learnt with Adam: a row and a linear layer."""

import torch
from torch import nn

from edl.nn import Adam, Embedding, Mean


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Embedding("rows", 4, feature="record")
        self.out = nn.Linear(4, 1)

    def forward(self, features):
        return self.out(self.rows(features["record"])).squeeze(1)


def model():
    return Scores()


def loss(outputs, labels):
    return nn.functional.mse_loss(outputs, labels)


def optimizer():
    return Adam(lr=0.05)


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return {"record": ids}, (ids % 7).float()


def metrics():
    return {"mse": Mean(lambda outputs, labels: ((outputs - labels) ** 2).mean())}
