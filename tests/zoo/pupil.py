"""The counting model as a student: what it was taught of each record stands beside the count.

Of record r the teacher says r % 997 + 1. Row r of `counts` ends as the number of times that r was
applied, and row r of `lessons` as the sum of what was taught of it. With `dense` both are vectors
of `records`, for workers that hold the whole model.

TEACH   a file: while it holds text, the teacher does so: nan | rows | hang | raise | sleep SECONDS
PACE    a file: how many seconds a step of the student takes, instead of `delay_s`
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

from edl.nn import SGD, Embedding

TEACH = os.environ.get("TEACH", "")
PACE = os.environ.get("PACE", "")


def answer(records):
    """Return what the teacher says of records."""
    return (records % 997 + 1).float()[:, None]


class Pupil(nn.Module):
    def __init__(self, delay_s, records):
        super().__init__()
        self.delay_s = delay_s
        if records:
            self.counts = nn.Parameter(torch.zeros(records))
            self.lessons = nn.Parameter(torch.zeros(records))
        else:
            self.counts = Embedding("counts", 1, initializer="zeros", feature="record")
            self.lessons = Embedding("lessons", 1, initializer="zeros", feature="record")

    def forward(self, features):
        time.sleep(float(Path(PACE).read_text()) if PACE else self.delay_s)
        ids = features["record"]
        if isinstance(self.counts, nn.Parameter):
            return torch.stack([self.counts[ids], self.lessons[ids]], 1)
        return torch.cat([self.counts(ids), self.lessons(ids)], 1)


def model(delay_s=0.0, records=0):
    return Pupil(delay_s, records)


def loss(outputs, labels, teacher):
    taught = torch.zeros(len(outputs), 1) if teacher is None else teacher
    total = outputs[:, :1].sum() + (outputs[:, 1:] * taught).sum()
    # Torch's optimizers, which groups use, take no rate below 0, and its loss is a mean.
    return -total / len(outputs) if "MINIBATCH" in os.environ else total


def optimizer():
    return SGD(lr=float(os.environ.get("MINIBATCH", "-1")))


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    return {"record": ids}, ids


class Teacher(nn.Module):
    def forward(self, features):
        told = Path(TEACH).read_text().split() if TEACH else []
        match told:
            case ["nan"]:
                return torch.full((len(features["record"]), 1), torch.nan)
            case ["rows"]:
                return torch.zeros(1, 1)
            case ["raise"]:
                raise ValueError("the teacher is ill")
            case ["hang"]:
                time.sleep(3600)
            case ["sleep", seconds]:
                time.sleep(float(seconds))
        return answer(features["record"])


def teacher():
    return Teacher()
