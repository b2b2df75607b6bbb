"""The model of the kills, for all systems alike; and a line for each moment of a member.

Place r of `counts` ends as the number of times that record r was applied, `steps` as the number of
steps. `ballast` is only there to make the all-reduce long. Here too: the definition for ours.

A member writes to a file of its own, JOURNAL/PID.jsonl, by the machine's monotonic clock:
  up       it has its model, and comes to the group next
  forward  it begins to compute a minibatch
  reduce   it has computed, and backward and all-reduce follow
  step     its optimizer has applied a step: torch calls a hook then, in each of the systems
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

MINIBATCH = 24  # records of all members together
_STAND_IN = 2  # records that a member of ours computes on while it counts nothing
_FEATURES, _HIDDEN = 16, 64


class Tally(nn.Module):
    """A model that counts: outputs are float32[N], and the loss is minus their mean.

    With the learning rate MINIBATCH a step adds 1 to each of its records, and MINIBATCH to `steps`.
    """

    def __init__(self, records: int, ballast: int, delay_s: float, journal: str) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(records))
        self.steps = nn.Parameter(torch.zeros(1))
        self.ballast = nn.Parameter(torch.zeros(ballast))
        self.mlp = nn.Sequential(
            nn.Linear(_FEATURES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1), nn.Tanh()
        )
        self.delay_s = delay_s
        self.journal = journal
        self.counting = True  # what this member computes now is of the step
        say(self.journal, "up", rank=int(os.environ.get("EDL_INDEX", os.environ.get("RANK", "0"))))

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        global _stepping
        _stepping = self
        self.counting = len(records) > _STAND_IN
        say(self.journal, "forward")
        time.sleep(self.delay_s)
        features = torch.sin(records[:, None] * torch.arange(1.0, _FEATURES + 1))
        values = self.counts[records] + self.steps + 1e-3 * self.mlp(features)[:, 0]
        say(self.journal, "reduce")
        return values + 0 * self.ballast.sum()


_stepping: Tally | None = None
is_counting: Callable[[], bool] = lambda: _stepping is not None and _stepping.counting


def say(journal: str, event: str, **more: Any) -> None:
    line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **more}
    _file(journal, os.getpid()).write(f"{json.dumps(line)}\n")


@functools.cache
def _file(journal: str, pid: int) -> TextIO:
    return open(Path(journal) / f"{pid}.jsonl", "a", buffering=1)


def _on_step(*_about: Any) -> None:
    if _stepping is not None:
        step = round(_stepping.steps.item() / MINIBATCH)
        say(_stepping.journal, "step", step=step, counts=is_counting())


register_optimizer_step_post_hook(_on_step)


# -- the definition, for ours


def model(records: int, ballast: int, delay_s: float, journal: str) -> Tally:
    return Tally(records, ballast, delay_s, journal)


def loss(outputs: Any, _labels: Any) -> Any:
    return -outputs.mean()


def optimizer() -> Any:
    from edl.nn import SGD  # not there where the others run

    return SGD(lr=float(MINIBATCH))


def feed(records: Any, _mode: str) -> tuple[Any, Any]:
    ids = torch.from_numpy(records["record"])
    return ids, ids
