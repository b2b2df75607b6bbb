"""The counting model (counting.py) on a stage: it tells what it computes, waits and fails on cue.

TRACES   a folder: each training minibatch appends {"records", "total"} to the process's own file
GATES    a folder: a training minibatch with record r touches r.reached, and waits while r is there
FAULT    feed | loss | nan | metric | on_task_end | on_train_end: who fails
BAD      at which record; without it at all of them
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import nn

from edl.nn import SGD, Embedding, Mean

TRACES, GATES = os.environ.get("TRACES"), os.environ.get("GATES")
FAULT, BAD = os.environ.get("FAULT", ""), int(os.environ.get("BAD", "-1"))


class Counting(nn.Module):
    def __init__(self, delay_s):
        super().__init__()
        self.counts = Embedding("counts", 1, initializer="zeros", feature="record")
        self.total = nn.Parameter(torch.zeros(1))
        self.delay_s = delay_s

    def forward(self, features):
        records = features["record"].tolist()
        if self.training:
            trace(records, float(self.total.detach()))
            wait_at(records)
        time.sleep(self.delay_s)
        return self.counts(features["record"]) + self.total


def trace(records, total):
    if TRACES:
        with open(Path(TRACES) / str(os.getpid()), "a") as file:
            file.write(json.dumps({"records": records, "total": total}) + "\n")


def wait_at(records):
    for record in records if GATES else ():
        gate = Path(GATES) / str(record)
        if gate.exists():
            gate.with_suffix(".reached").touch()
        while gate.exists():
            time.sleep(0.005)


def hits(fault, records=None):
    return fault == FAULT and (BAD < 0 or records is None or BAD in records)


def fail(fault, records=None):
    if hits(fault, records):
        raise ValueError(f"{fault} does not like this")


def model(delay_s=0.0):
    return Counting(delay_s)


def loss(outputs, labels):
    fail("loss", labels.tolist())
    return outputs.sum() * (float("nan") if hits("nan", labels.tolist()) else 1.0)


def optimizer():
    return SGD(lr=-float(os.environ.get("GRADS_TO_WAIT", "1")))


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    fail("feed", ids.tolist())
    return {"record": ids}, ids


class Counted(Mean):
    def update(self, outputs, labels):
        fail("metric", labels.tolist())
        super().update(outputs, labels)


def metrics():
    return {"records": Counted(lambda outputs, labels: 1.0)}


class Callbacks:
    def on_task_end(self, kind):
        fail("on_task_end")

    def on_train_end(self, model):
        fail("on_train_end")
