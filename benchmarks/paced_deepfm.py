"""The DeepFM of the zoo for benchmarks/deltas.py, on records that come at a rate, as a stream's do.

$FED: a file that gets a line for each minibatch as it is read, before it is trained on: the time,
and how many records. $RATE: records a second; 0: as fast as they are read.
"""

from __future__ import annotations

import os
import time
from typing import Any

from edl.model_zoo import deepfm
from edl.model_zoo.deepfm import loss, model, optimizer

__all__ = ["feed", "loss", "model", "optimizer"]

_due = [0.0]


def feed(records: Any, mode: str) -> Any:
    rate, fed = float(os.environ.get("RATE", "0")), os.environ.get("FED")
    count = len(records["label"])
    if mode == "train" and rate:
        now = time.monotonic()
        time.sleep(max(0.0, _due[0] - now))
        _due[0] = max(now, _due[0]) + count / rate
    if mode == "train" and fed:
        with open(fed, "a") as file:
            print(time.time(), count, file=file)
    return deepfm.feed(records, mode)
