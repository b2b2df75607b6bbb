"""What adaptivity costs: a step of AdaptiveDataParallel against one of plain DistributedDataParallel.

    python -m benchmarks.adaptive_overhead [--rounds 48] [--steps 16]

Two replicas (gloo, one thread each), a fixed batch, gradients averaged at every step. The variants take
turns in the same two processes, a chunk of steps each, the order turned from round to round; a ratio is
taken within a round (measure.py), for the replica whose chunk took longer.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Callable

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Found, Sample, load, machine, sample, table
from edl.adaptive import AdaptiveDataParallel, data_loader, session
from edl.adaptive.gradient_noise import EVERY
from edl.model_zoo import resnet20

REPLICAS = 2
WARM_UP = 16  # steps
FEW = 64  # estimates, while every step is measured: not what is looked at here
ROUNDS_EACH = 6  # then models are made anew, for where they lie in memory makes a difference of 3 %


class FixedBatch:
    """What an AdaptiveDataParallel asks a loop, where the batch never changes."""

    accumulation_steps = micro = 0
    weight = 1.0
    training = True

    def __init__(self, local_bsz: int) -> None:
        self.current_local_bsz = local_bsz
        self.batch_size = self.current_batch_size = self.step_records = local_bsz * REPLICAS

    def is_sync_step(self) -> bool:
        return True

    def train(self) -> None:
        """It does."""


def mlp() -> nn.Module:
    """1.0 M parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 784),
        nn.ReLU(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer], int]] = {
    "MLP, SGD": (mlp, sgd, 64),
    "MLP, AdamW": (mlp, adamw, 64),
    "ResNet-20, SGD": (resnet20.model, sgd, 16),
}
VARIANTS: dict[str, int | None] = {
    "plain DDP": None,
    f"adaptive, gns_every={EVERY} (default)": EVERY,
    "adaptive, gns_every=1": 1,
}


def stepper(case: str, every: int | None) -> Callable[[], None]:
    """One optimizer step."""
    model, make, local_bsz = CASES[case]
    torch.manual_seed(0)
    net = model()
    optimizer = make(net)
    if every is None:
        parallel = DistributedDataParallel(net)
    else:
        parallel = AdaptiveDataParallel(net, optimizer, name=f"{every}", gns_every=every)
        parallel.gns.estimator.samples = FEW
    images, labels = torch.randn(local_bsz, 1, 28, 28), torch.randint(0, 10, (local_bsz,))
    loop = FixedBatch(local_bsz)

    def step() -> None:
        data_loader.current_dataloader = lambda: loop  # type: ignore[assignment,return-value]
        optimizer.zero_grad()
        functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()

    return step


def chunks(case: str, rounds: int, steps: int) -> Found:
    """The samples of each variant: the slower replica's wall time, both replicas' CPU time."""
    names = list(VARIANTS)
    found: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds):
        if turn % ROUNDS_EACH == 0:
            session.reset()  # lets go of the models before
            variants = {name: stepper(case, every) for name, every in VARIANTS.items()}
            for step in variants.values():
                work(step, WARM_UP)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            distributed.barrier()
            mine = sample(steps, functools.partial(work, variants[name], steps))
            wall_s, cpu_s = torch.tensor(mine.wall_s), torch.tensor(mine.cpu_s)
            distributed.all_reduce(wall_s, op=distributed.ReduceOp.MAX)
            distributed.all_reduce(cpu_s)
            found[name].append(Sample(steps, wall_s.item(), cpu_s.item()))
    return found


def work(step: Callable[[], None], steps: int) -> None:
    for _ in range(steps):
        step()


def replica(rank: int, folder: str, cases: list[str], rounds: int, steps: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=REPLICAS
    )
    if rank == 0:
        print(f"{machine()}\n- {rounds} rounds of {steps} steps\n- load before: {load()}")
    for case in cases:
        found = chunks(case, rounds, steps)
        if rank == 0:
            plain = next(iter(VARIANTS))
            of = table(found, [plain], ("steps/s", 1.0), ("CPU ms a step", 1000.0))
            print(f"\n{case}:\n\n{of}", flush=True)
    if rank == 0:
        print(f"\n- load after: {load()}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--steps", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            replica, (folder, arguments.cases, arguments.rounds, arguments.steps), nprocs=REPLICAS
        )
