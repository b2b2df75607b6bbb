"""A small regression on numbered records, with momentum: the same steps give the same values."""

import os
import time

import torch
from torch import nn
from torch.nn import functional

from edl.nn import Adam, Mean


class Curve(nn.Module):
    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.delay_s = delay_s

    def forward(self, x):
        time.sleep(self.delay_s)
        return self.layers(x).squeeze(1)


def model(delay_s=0.0):
    return Curve(delay_s)


def loss(outputs, labels):
    return functional.mse_loss(outputs, labels)


def optimizer():
    return Adam(lr=0.01)


def feed(records, mode):
    r = torch.from_numpy(records["record"]).double()
    if mode == "train" and int(os.environ.get("POISON", "-1")) in r:
        raise ValueError("a poisoned record")
    x = torch.stack([torch.sin(r * k) for k in (0.7, 1.3, 2.1, 3.7)], 1).float()
    return x, (x[:, 0] * x[:, 1] + 0.5 * x[:, 2]).float()


def metrics():
    return {"mse": Mean(lambda outputs, labels: ((outputs - labels) ** 2).mean())}
