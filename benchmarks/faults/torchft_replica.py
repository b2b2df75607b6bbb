"""A replica group of torchft, of one process; runs in torchft's environment.

    python -m benchmarks.faults.torchft_replica NUMBER GROUPS POSITION_FILE BALLAST

Set up as its own example train_ddp.py: Gloo with 5 s, a manager with 10 s, at least one replica,
DistributedDataParallel and its optimizer wrapper. `BALLAST`: parameters that are only there to make
the all-reduce long. Weight r counts how often record r was applied: the gradient is one-hot, and
the mean over the participants is undone. The loader's position is written down at every step, which
is what torchft advises ("checkpoint each replica's dataloader frequently").
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.faults import events

DELAY_S = 0.1  # that a minibatch computes


def main(number: int, groups: int, position: Path, ballast: int) -> None:
    import torch
    from torch import nn
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    class Counting(nn.Module):
        """A model that counts: entry r of `counts` is how often record r was applied."""

        def __init__(self) -> None:
            super().__init__()
            self.counts = nn.Parameter(torch.zeros(events.RECORDS))
            self.ballast = nn.Parameter(torch.zeros(ballast))

        def forward(self, records: Any) -> Any:
            time.sleep(DELAY_S)
            return self.counts[records].sum() + 0 * self.ballast.sum()

    events.say("ready")
    events.hear()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = Counting()
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=lambda state: _load(model, optimizer, state),
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        replica_id=f"replica_{number}",
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=1.0))
    share = events.RECORDS // groups
    begin = int(position.read_text()) if position.exists() else number * share
    for first, end in events.batches(begin, (number + 1) * share):
        optimizer.zero_grad()  # begins the quorum
        loss = wrapped(torch.arange(first, end)) * -manager.num_participants()
        events.say("reduce", first=first)
        loss.backward()
        before = manager.current_step()
        optimizer.step()
        position.with_suffix(".new").write_text(str(end))
        os.replace(position.with_suffix(".new"), position)
        committed = manager.current_step() > before
        events.say("step" if committed else "refused", first=first, end=end)
    counts = [round(count) for count in model.counts.tolist()]
    events.say("end", counts=counts, step=manager.current_step())
    events.hear()
    manager.shutdown()


def _load(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
