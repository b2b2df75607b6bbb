"""The counting model of tally.py, whose group stalls once: each waits for what no other sends.

MARKS   a folder: where it has no file of this rank, it stalls at a minibatch of records 64 to 79
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from tally import Tally, feed, loss, metrics, optimizer  # noqa: F401


class Stalled(Tally):
    def forward(self, features):
        ids = features["record"]
        if self.training and bool(((ids >= 64) & (ids < 80)).any()):
            mark = Path(os.environ["MARKS"]) / str(dist.get_rank())
            if not mark.exists():
                mark.touch()
                dist.recv(torch.zeros(1), src=1 - dist.get_rank())
        return super().forward(features)


def model(records=64):
    return Stalled(records, 0.0)
