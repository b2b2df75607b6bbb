"""The groups of test_sharded_trainer.py: forked, so that torch is imported once.

Argument: where to.
"""

import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # torch.optim wants it
import torch.distributed as dist
from test_sharded_trainer import CASES, OPTIMIZERS, RECORDS, STEPS, make_model, minibatch
from torch.nn import functional

from edl.common.order import part_of
from edl.proto import master_pb2 as pb
from edl.worker.group.parts import pack, unpack
from edl.worker.group.sharded import ShardedTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import model_spec
from edl.worker.task_reader import Lease

CPU = torch.device("cpu")


def piece(number, rank, world, most):
    """Return a member's slice of a minibatch."""
    inputs, labels = minibatch(number)
    mine = part_of(0, RECORDS, rank, world)
    parts = [
        (inputs[at : min(at + most, mine.stop)], labels[at : min(at + most, mine.stop)])
        for at in range(mine.start, mine.stop, most)
    ]
    counted = [(x, y, len(x), None) for x, y in parts]
    lease = Lease(pb.Task(id=number, kind=pb.TRAIN, end=RECORDS))
    return Slice(lease, 0, RECORDS, len(mine), total=RECORDS, parts=counted)


def same(one, other):
    return (
        torch.equal(one.value, other.value)
        and one.steps == other.steps
        and one.state.keys() == other.state.keys()
        and all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    )


def member(rank, world, optimizer, most):
    """Train as one member, and return what it has come to."""
    trainer = ShardedTrainer(
        make_model,
        functional.mse_loss,
        model_spec(make_model(), OPTIMIZERS[optimizer], 7),
        device=CPU,
        most=most,
    )
    state = trainer.state
    state.layout = world, rank
    state.begin()
    trainer.enter(world)
    for number in range(STEPS):
        step = trainer.reduce(
            piece(number, rank, world, most), wish=not rank and number == STEPS - 1
        )
        assert step.ends_round == (number == STEPS - 1)
        trainer.commit(step)

    blobs = [b""] * world
    dist.all_gather_object(blobs, pack(state.own.stretches()))
    parts = [unpack(blob, CPU) for blob in blobs]
    trainer.source = lambda _, who, spans: [parts[who][number] for number, _, _ in spans]
    mirrors = [zip(parts[m.rank], m.stretches(), strict=True) for m in state.current[1:]]
    return {
        "values": trainer.state_dict(),
        "own": state.own.numel,
        "held": state.held(),
        "mirrors_are_equal": all(same(*pair) for mirror in mirrors for pair in mirror),
    }


def main(folder):
    torch.set_num_threads(1)
    pids = []
    for case in CASES:
        world, optimizer, most = case
        for rank in range(world):
            if pid := os.fork():
                pids.append(pid)
                continue
            store = dist.FileStore(str(folder / f"store-{CASES.index(case)}"), world)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
            told = member(rank, world, optimizer, most)
            torch.save(told, folder / f"told-{CASES.index(case)}-{rank}.pt")
            dist.destroy_process_group()
            os._exit(0)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
