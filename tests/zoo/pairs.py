"""A small factorization machine without chance: the same minibatches give the same values."""

import time

import torch
from torch import nn

from edl.nn import Adam, Embedding


class Pairs(nn.Module):
    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.users = Embedding("users", 8, feature="user")
        self.items = Embedding("items", 4)
        self.deep = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
        self.delay_s = delay_s

    def forward(self, features):
        time.sleep(self.delay_s)
        both = self.users(features["user"]), self.items(features["item"])
        return self.deep(torch.cat(both, 1)).squeeze(1) + both[0][:, 0] * both[1][:, 0]


def model(delay_s=0.0):
    return Pairs(delay_s)


def loss(outputs, labels):
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer():
    return Adam(lr=0.01)


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return {"user": ids % 97, "item": ids % 31}, ((ids % 97 + ids % 31) % 2).float()
