"""The cost of adaptivity: a step of AdaptiveDataParallel against one of DistributedDataParallel.

    python -m benchmarks.adaptive_overhead [--cases "MLP, SGD"] [--variants default] [--rounds 48]

Two replicas (gloo, one thread each), a fixed batch, gradients averaged at every step. In a round
each variant makes --steps steps (a multiple of 32: as many of them are measured in each round), all
of them in the same two processes and in turns of TURN steps, in an order that is turned round and
reversed from turn to turn; what else the machine does meets them alike. Wall time is the slower
replica's, CPU time both replicas'. What a variant costs more is a ratio within a round: the median
over the rounds, its 95 % interval (bootstrap of the groups of rounds that had the same models) and
the quartiles of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Sample, cpu_s, load, machine, more
from edl.adaptive import AdaptiveDataParallel, data, session
from edl.adaptive.noise_estimator import EVERY
from edl.model_zoo import resnet20

REPLICAS = 2
WARM_UP = 16  # steps
FEW = 64  # estimates, while every step is measured: not what is looked at here
ROUNDS_EACH = 4  # then models are made anew, for where they lie in memory makes a difference of 3 %
TURN = 4  # steps


class FixedBatch:
    """A loop as an AdaptiveDataParallel asks for it, whose batch never changes."""

    accumulation_steps = micro = 0
    weight = 1.0
    training = True

    def __init__(self, local_bsz: int) -> None:
        self.current_local_bsz = local_bsz
        self.batch_size = self.current_batch_size = self.step_records = local_bsz * REPLICAS

    def is_sync_step(self) -> bool:
        return True

    def train(self) -> None:
        """Do nothing: the loop trains."""


def mlp() -> nn.Module:
    """Make a model of 1.0 M parameters."""
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
PLAIN = "plain DDP"
VARIANTS: dict[str, int | None] = {
    PLAIN: None,
    "default": EVERY,  # of gns_every
    "gns_every=1": 1,
    "nothing measured": 10**9,
}


def stepper(case: str, every: int | None) -> Callable[[], None]:
    """Return a function that does one optimizer step."""
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
        data.current_dataloader = lambda: loop  # type: ignore[assignment,return-value]
        optimizer.zero_grad()
        functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()

    return step


def groups(case: str, names: list[str], rounds: int, steps: int) -> dict[str, list[list[Sample]]]:
    """Return the samples of each variant, one a round, by group: the rounds of the same models."""
    found: dict[str, list[list[Sample]]] = {name: [] for name in names}
    for began in range(0, rounds, ROUNDS_EACH):
        session.reset()  # lets go of the models before
        variants = {name: stepper(case, VARIANTS[name]) for name in names}
        for step in variants.values():
            work(step, WARM_UP)
        for name in names:
            found[name].append([])
        for number in range(began, min(began + ROUNDS_EACH, rounds)):
            for name, one in round_of(variants, number, steps).items():
                found[name][-1].append(one)
    return found


def round_of(variants: dict[str, Callable[[], None]], number: int, steps: int) -> dict[str, Sample]:
    """Return one sample of each variant."""
    names = list(variants)
    spent = {name: torch.zeros(2, dtype=torch.float64) for name in names}  # wall s, CPU s
    for turn in range(steps // TURN):
        first = (number + turn // 2) % len(names)
        order = names[first:] + names[:first]
        for name in order if turn % 2 else reversed(order):
            distributed.barrier()
            began, used = time.perf_counter(), cpu_s([os.getpid()])
            work(variants[name], TURN)
            wall_s, used_s = time.perf_counter() - began, cpu_s([os.getpid()]) - used
            spent[name] += torch.tensor([wall_s, used_s])
    samples = {}
    for name, times in spent.items():
        wall_s, used_s = times.clone()
        distributed.all_reduce(wall_s, op=distributed.ReduceOp.MAX)
        distributed.all_reduce(used_s)
        samples[name] = Sample(steps, wall_s.item(), used_s.item())
    return samples


def work(step: Callable[[], None], steps: int) -> None:
    for _ in range(steps):
        step()


def table(found: dict[str, list[list[Sample]]]) -> str:
    """Make Markdown: a step of each variant, and what it costs more than the plain one's."""
    lines = ["| | ms a step | more | CPU ms a step | more |", "|---" * 5 + "|"]
    for name, mine in found.items():
        cells = [name]
        for of in (lambda s: s.wall_s / s.amount, lambda s: s.cost):
            times = [[1000 * of(one) for one in group] for group in mine]
            plain = [[1000 * of(one) for one in group] for group in found[PLAIN]]
            cells.append(f"{statistics.median(itertools.chain(*times)):.1f}")
            cells.append("" if name == PLAIN else more(times, plain))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def replica(
    rank: int, folder: str, cases: list[str], names: list[str], rounds: int, steps: int
) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=REPLICAS
    )
    if rank == 0:
        print(f"{machine()}\n- {rounds} rounds of {steps} steps\n- load before: {load()}")
    for case in cases:
        found = groups(case, names, rounds, steps)
        if rank == 0:
            print(f"\n{case}:\n\n{table(found)}", flush=True)
    if rank == 0:
        print(f"\n- load after: {load()}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--variants", nargs="+", default=["default", "gns_every=1"], choices=list(VARIANTS)[1:]
    )
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--steps", type=int, default=EVERY)
    arguments = parser.parse_args()
    if arguments.steps % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}: so that all rounds measure as often")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            replica,
            (
                folder,
                arguments.cases,
                [PLAIN, *arguments.variants],
                arguments.rounds,
                arguments.steps,
            ),
            nprocs=REPLICAS,
        )
