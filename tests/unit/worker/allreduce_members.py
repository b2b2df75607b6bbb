"""The group of test_branches_of_members.py: forked, so that torch is imported once.

Argument: where to.
"""

import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # torch.optim wants it
import torch.distributed as dist
from test_branches_of_members import OPTIMIZER, RECORDS, STEPS, Branches, slices
from torch.nn import functional

from edl.proto import master_pb2 as pb
from edl.worker.group.allreduce import AllReduceTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import model_spec
from edl.worker.task_reader import Lease


def member(rank):
    """Train as one member, and return what it has come to."""
    trainer = AllReduceTrainer(
        Branches,
        functional.mse_loss,
        model_spec(Branches(), OPTIMIZER, 7),
        device=torch.device("cpu"),
    )
    trainer.state.begin()
    trainer.enter(2)
    for number in range(STEPS):
        parts = [(x, y, len(x), None) for x, y in slices(number)[rank]]
        lease = Lease(pb.Task(id=number, kind=pb.TRAIN, end=RECORDS))
        own = sum(count for _, _, count, _ in parts)
        trainer.commit(
            trainer.reduce(Slice(lease, 0, RECORDS, own, total=RECORDS, parts=parts), False)
        )
    return trainer.state_dict()


def main(folder):
    torch.set_num_threads(1)
    pids = []
    for rank in range(2):
        if pid := os.fork():
            pids.append(pid)
            continue
        store = dist.FileStore(str(folder / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        torch.save(member(rank), folder / f"values-{rank}.pt")
        dist.destroy_process_group()
        os._exit(0)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
