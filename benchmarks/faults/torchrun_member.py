"""A member of a group that torchrun starts, for the kills.

    python -m torch.distributed.run ... benchmarks/faults/torchrun_member.py SETTINGS

The standard recipe: rank 0 writes a checkpoint every CHECKPOINT_STEPS, all begin from the newest.
It goes on until FOLDER/stop names a step.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.faults import tallying

CHECKPOINT_STEPS = 50


def main(members: int, folder: str, timeout_s: float, records: int, **more: Any) -> None:
    torch.set_num_threads(1)
    model = tallying.Tally(records, **more)
    optimizer = torch.optim.SGD(model.parameters(), lr=tallying.MINIBATCH)
    begin = 0
    newest, stop = Path(folder) / "checkpoint", Path(folder) / "stop"
    if newest.exists():
        state = torch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank, mine = dist.get_rank(), tallying.MINIBATCH // members
    wrapped = DistributedDataParallel(model)
    for step in range(begin, records // tallying.MINIBATCH):
        first = step * tallying.MINIBATCH + rank * mine
        optimizer.zero_grad()
        (-wrapped(torch.arange(first, first + mine)).mean()).backward()
        optimizer.step()
        done = step + 1
        if done % CHECKPOINT_STEPS == 0 and rank == 0:
            now = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            torch.save(now, newest.with_suffix(".new"))
            os.replace(newest.with_suffix(".new"), newest)
        if stop.exists() and done >= int(stop.read_text()):
            break
    if rank == 0:
        torch.save(model.counts.detach(), Path(folder) / "counts.new")
        os.replace(Path(folder) / "counts.new", Path(folder) / "counts")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
