"""A loop of `edl.adaptive` as a user's script has it, preempted in its midst and gone on with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed, nn

from edl.adaptive import (
    Accumulator,
    AdaptiveDataLoader,
    AdaptiveDataParallel,
    collective,
    pace,
    remaining_epochs_until,
    session,
)

RECORDS, BATCH, EPOCHS = 40, 4, 3
STEPS = 14  # when it is preempted: in epoch 1


@contextmanager
def replica(folder: Path) -> Iterator[None]:
    """Be the only replica of a job with these checkpoints, in a group of its own or that of now."""
    is_new = not distributed.is_initialized()
    with (
        mock.patch.dict(os.environ, {"EDL_CHECKPOINT_PATH": str(folder)}),
        mock.patch.object(collective.Preemption, "install"),
        mock.patch.object(pace, "PACE_S", 0.0),  # an exchange between any two steps
    ):
        session.reset()
        if is_new:
            meet()
        try:
            yield
        finally:
            if is_new:
                distributed.destroy_process_group()
            session.reset()


def meet() -> None:
    """Make a process group of this process alone."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def run(steps: int = 0) -> dict[str, Any]:
    """Train to the end, or until so many steps after the begin; return what it has done.

    `read`: records by epoch, in order. `weights` before the first step and after the last one.
    """
    torch.manual_seed(0)
    linear = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.05, momentum=0.9)
    net = AdaptiveDataParallel(linear, optimizer)
    loader = AdaptiveDataLoader(range(RECORDS), BATCH, shuffle=True)
    sums = Accumulator()
    begun, read, count = _weights(linear), dict[str, list[int]](), 0
    try:
        for epoch in remaining_epochs_until(EPOCHS):
            for batch in loader:
                features = torch.stack([batch / RECORDS, batch % 7 / 7.0], dim=1).float()
                loss = (net(features).squeeze(1) - batch.float() / 10).square().mean()
                net.optimizer.zero_grad()
                loss.backward()
                net.optimizer.step()
                sums["records"] += len(batch)
                read.setdefault(str(epoch), []).extend(batch.tolist())
                count += 1
                collective.preemption().requested |= count == steps
            with sums.synchronized():
                total = sums["records"]
    except SystemExit as leaving:
        if leaving.code != 143:
            raise
        total = None
    return {"read": read, "weights": [begun, _weights(linear)], "records": total}


def _weights(linear: nn.Linear) -> list[float]:
    found = torch.cat([linear.weight.detach().reshape(-1), linear.bias.detach()])
    return [round(value, 5) for value in found.tolist()]
