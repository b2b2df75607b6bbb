"""A small factorization machine with all that a replay must repeat: dropout, running statistics,
a table that is pulled ahead and one that the forward pulls itself, an optimizer with state.

With MEET_IN, a folder, a worker's first step waits until two workers are there."""

import os
import time

import torch
from torch import nn

from edl.nn import Adam, Embedding

DELAY_S = float(os.environ.get("DELAY_S", "0"))
MEET_IN = os.environ.get("MEET_IN", "")
PATIENCE_S = 120


def meet():
    """Wait until two workers have begun."""
    with open(os.path.join(MEET_IN, str(os.getpid())), "w"):
        pass
    until = time.monotonic() + PATIENCE_S
    while len(os.listdir(MEET_IN)) < 2:
        assert time.monotonic() < until, "there is no other worker"
        time.sleep(0.01)


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = Embedding("users", 8, feature="user")
        self.items = Embedding("items", 8)
        self.norm = nn.BatchNorm1d(16)
        self.is_alone = bool(MEET_IN)
        self.deep = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, features):
        if self.is_alone:
            meet()
            self.is_alone = False
        time.sleep(DELAY_S)
        both = self.users(features["user"]), self.items(features["item"])
        deep = self.deep(self.norm(torch.cat(both, 1))).squeeze(1)
        return (both[0] * both[1]).sum(1) + deep


def model():
    return Factors()


def loss(outputs, labels):
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer():
    return Adam(lr=0.01)


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return {"user": ids % 97, "item": ids % 31}, ((ids % 97 + ids % 31) % 2).float()
