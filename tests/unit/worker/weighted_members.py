"""The groups of test_weighted_steps.py: forked, so that torch is imported once.

Argument: where to.
"""

import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # torch.optim wants it
import torch.distributed as dist
from test_weighted_steps import MEMBERS, STEPS, piece, trainer

from edl.worker.group.parts import pack, unpack


def member(kind, rank):
    """Train as one member, and return what it has come to."""
    found = trainer(kind)
    if kind == "sharded":
        found.state.layout = MEMBERS, rank
    found.state.begin()
    found.enter(MEMBERS)
    losses = []
    for number in range(STEPS):
        step = found.reduce(piece(number, rank), False)
        losses.append(step.loss)
        found.commit(step)
    if kind == "sharded":
        blobs = [b""] * MEMBERS
        dist.all_gather_object(blobs, pack(found.state.own.stretches()))
        parts = [unpack(blob, torch.device("cpu")) for blob in blobs]
        found.source = lambda _, who, spans: [parts[who][number] for number, _, _ in spans]
    return {"losses": losses, "values": found.state_dict()}


def main(folder):
    torch.set_num_threads(1)
    pids = []
    for rank in range(MEMBERS):
        if pid := os.fork():
            pids.append(pid)
            continue
        for kind in ("allreduce", "sharded"):
            store = dist.FileStore(str(folder / f"store-{kind}"), MEMBERS)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=MEMBERS)
            torch.save(member(kind, rank), folder / f"told-{kind}-{rank}.pt")
            dist.destroy_process_group()
        os._exit(0)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
