"""The DeepFM of the zoo for benchmarks/servers_model.py: a worker writes how long its phases take.

To $PHASES/PID.json, after each push: the minibatches so far, and the seconds of each phase. A step
pauses as if the model were larger, by `own_s` and `own_record_s`, so that workers are as fast side
by side on a few cores as on machines of their own.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from edl.model_zoo import deepfm
from edl.model_zoo.deepfm import feed, optimizer
from edl.worker.servers.trainer import PsTrainer
from edl.worker.task_stream import TaskStream

__all__ = ["feed", "loss", "model", "optimizer"]

_spent: Counter[str] = Counter()
_lock = threading.Lock()
_pause = {"own_s": 0.0, "own_record_s": 0.0}


def model(own_s: float = 0.0, own_record_s: float = 0.0) -> nn.Module:
    _pause.update(own_s=own_s, own_record_s=own_record_s)
    return deepfm.model()


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    time.sleep(_pause["own_s"] + _pause["own_record_s"] * len(labels))
    return deepfm.loss(outputs, labels)


def _watch(owner: Any, function: str, phase: str) -> None:
    plain = getattr(owner, function)

    @functools.wraps(plain)
    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        found = plain(*arguments, **named)
        with _lock:
            _spent[phase] += time.perf_counter() - began
            if phase == "push":
                _spent["minibatches"] += 1
                _write()
        return found

    setattr(owner, function, timed)


def _write() -> None:
    path = Path(os.environ["PHASES"]) / f"{os.getpid()}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(_spent))
    new.replace(path)


if "PHASES" in os.environ:
    _watch(TaskStream, "next", "data")
    _watch(PsTrainer, "gradients", "compute")
    _watch(PsTrainer, "_pull", "pull")
    _watch(PsTrainer, "push", "push")
