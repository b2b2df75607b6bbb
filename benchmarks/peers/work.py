"""The work and the output of every peer. Needs numpy and psutil only, for all environments.

The DeepFM: 26 id fields of 100,000 ids each (2.6 M rows of dim 16), zipf-distributed with s = 1.1,
13 dense features, minibatches of 2,048, Adagrad, one compute thread. Everybody reads the same file:
the minibatches in order, none twice, and the first values of the dense parameters.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

FIELDS, FEATURES, DIM, VOCABULARY = 26, 13, 16, 100_000
ROWS = FIELDS * VOCABULARY
BATCH = 2048
LR, ACCUMULATOR = 0.05, 0.1
SCALE = 0.01  # rows begin uniform in [-SCALE, SCALE]
WARM_UP = 10  # minibatches before the clock starts
LAST = 20  # minibatches whose mean loss is compared
_LAYERS = {"mlp.0": (FEATURES + FIELDS * DIM, 256), "mlp.2": (256, 128), "mlp.4": (128, 1)}
_SKEW = 1.1

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """The minibatches and the first dense values that all train with.

    `ids`: int64[S, B, FIELDS], no id in two fields; `x`: float32[S, B, FEATURES]; `y`: float32[S,
    B]; `dense`: by the names of torch_model.DeepFM, weights [out, in].
    """

    ids: Ids
    x: Floats
    y: Floats
    dense: dict[str, Floats]

    @property
    def steps(self) -> int:
        return len(self.ids)


def make(file: Path, steps: int) -> Path:
    """Write the work of `steps` minibatches, always the same, unless it is there."""
    if file.exists():
        return file
    rng = np.random.default_rng(0)
    shape = (steps, BATCH, FIELDS)
    tail = VOCABULARY ** (1 - _SKEW) - 1
    rank = np.minimum((rng.random(shape) * tail + 1) ** (1 / (1 - _SKEW)), VOCABULARY) - 1
    # Popular ids are no neighbours: 48,271 is prime to the vocabulary.
    ids = rank.astype(np.int64) * 48_271 % VOCABULARY + np.arange(FIELDS) * VOCABULARY
    x = rng.standard_normal((steps, BATCH, FEATURES), np.float32)
    truth = rng.standard_normal(ROWS, np.float32) / 2
    noise = rng.standard_normal((steps, BATCH), np.float32)
    y = (truth[ids].sum(-1) + x.sum(-1) / 5 + noise > 0).astype(np.float32)
    dense = {}
    for name, (inputs, outputs) in {**_LAYERS, "linear": (FEATURES, 1)}.items():
        bound = 1 / math.sqrt(inputs)
        weight = rng.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        dense |= {f"{name}.weight": weight, f"{name}.bias": np.zeros(outputs, np.float32)}
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{os.getpid()}-{file.name}")
    np.savez(part, ids=ids, x=x, y=y, **dense)
    part.replace(file)
    return file


def load(file: str) -> Work:
    arrays = dict(np.load(file))
    ids, x, y = (arrays.pop(name) for name in ("ids", "x", "y"))
    return Work(ids, x, y, arrays)


class Meter:
    """A meter of wall and CPU time of a run, but for its first minibatches, over all processes."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._began, self._wall_s = 0.0, 0.0
        self._used: dict[int, float] = {}
        self._cpu_s = 0.0

    def step(self, count: int = 1) -> None:
        """Count `count` more minibatches as done."""
        self._done += count
        if self._done == WARM_UP:
            self._used, self._began = cpu_by_process(), time.perf_counter()
        elif self._done == self._steps:
            self._wall_s = time.perf_counter() - self._began
            self._cpu_s = cpu_since(self._used)

    def report(self, losses: Sequence[float]) -> None:
        """Print the line; `losses` of the last minibatches."""
        assert self._done == self._steps, (self._done, self._steps)
        samples = (self._steps - WARM_UP) * BATCH
        loss = float(np.mean(losses[-LAST:]))
        say(amount=samples, wall_s=self._wall_s, cpu_s=self._cpu_s, loss=loss)


def answer(work: Callable[[], None], amount: float) -> None:
    """Do the work, which is `amount` of it, once for every line of standard input."""
    for _ in sys.stdin:
        began, used = time.perf_counter(), cpu_by_process()
        work()
        wall_s = time.perf_counter() - began
        say(amount=amount, wall_s=wall_s, cpu_s=cpu_since(used))


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def cpu_by_process() -> dict[int, float]:
    """Return the CPU seconds so far of this process and its descendants, by the kernel's clocks."""
    me = psutil.Process()
    found = {}
    for pid in (me.pid, *(child.pid for child in me.children(recursive=True))):
        try:
            found[pid] = time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
        except OSError:
            continue  # it has just ended
    return found


def cpu_since(before: dict[int, float]) -> float:
    """Return the CPU seconds since then of the processes that live now."""
    return sum(now - before.get(pid, 0.0) for pid, now in cpu_by_process().items())
