"""A member of torchft's group, for the kills; runs in torchft's environment.

    python -m benchmarks.faults.torchft_member SETTINGS      (a JSON object: see groups.Torchft)

Set up as torchft_replica.py is, with the detection time T in place of its 5 s: gloo gives up after
T, the manager after 2 T. It goes on until FOLDER/stop names a step.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.faults import tallying


def main(
    rank: int,
    members: int,
    folder: str,
    timeout_s: float,
    records: int,
    ddp: bool,
    **more: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = tallying.Tally(records, **more)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=timeout_s)),
        min_replica_size=1,
        load_state_dict=lambda state: _load(model, optimizer, state),
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        replica_id=f"replica_{rank}",
        timeout=timedelta(seconds=2 * timeout_s),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    tallying.is_counting = manager.is_participating
    wrapped = DistributedDataParallel(manager, model) if ddp else model
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=tallying.MINIBATCH))
    mine, share = tallying.MINIBATCH // members, records // members
    place, stop = Path(folder) / f"position-{rank}", Path(folder) / "stop"
    begin = int(place.read_text()) if place.exists() else rank * share
    for first in range(begin, (rank + 1) * share - mine, mine):
        optimizer.zero_grad()  # begins the quorum
        values = wrapped(torch.arange(first, first + mine))
        # A mean over who takes part, of sums over each one's part of the minibatch.
        weight = manager.num_participants() / tallying.MINIBATCH
        loss = -values.sum() * weight - model.steps.sum() * (1 - mine * weight)
        loss.backward()
        if not ddp:
            _reduce(manager, model)
        optimizer.step()
        place.with_suffix(".new").write_text(str(first + mine))
        os.replace(place.with_suffix(".new"), place)
        if stop.exists() and manager.current_step() >= int(stop.read_text()):
            break
    torch.save(model.counts.detach(), Path(folder) / f"counts-{rank}.new")
    os.replace(Path(folder) / f"counts-{rank}.new", Path(folder) / f"counts-{rank}")
    sys.stdin.readline()
    manager.shutdown()


def _reduce(manager: Manager, model: torch.nn.Module) -> None:
    """Reduce all gradients by one all-reduce."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    manager.allreduce(flat).wait()
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _load(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
