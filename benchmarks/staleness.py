"""The cost of stale gradients: accuracy on digits by how old one is when it is applied.

    python -m benchmarks.staleness [--seeds 6]            # simulated, in one process
    python -m benchmarks.staleness --jobs [--seeds 4]     # real jobs: 2 workers, 2 servers

Simulated: plain torch, one thread; each gradient is applied `late` versions after the one that it
was computed at, as pushes of asynchronous workers arrive, and a share `stalled` of them 5 to 40
versions later still, as of a worker that the machine has put to sleep. Real jobs: with and without
`--pull_ahead`, which makes a gradient older by a step of all workers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from edl.data.datasets import prepare
from edl.model_zoo import mnist_cnn, resnet20
from edl.nn import torch_optimizer
from edl.nn.optimizers import learning_rate

MINIBATCH = 32
EPOCHS = {"resnet20": 10, "mnist_cnn": 20}
WAIT_S = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness")
    parser.add_argument("--jobs", action="store_true")
    parser.add_argument("--seeds", type=int, default=6)
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    with tempfile.TemporaryDirectory() as folder:
        data = prepare("digits", Path(folder) / "data", echo=lambda _line: None)
        if given.jobs:
            for ahead in (0, 1):
                found = [job(Path(folder) / f"{ahead}-{s}", data, s, ahead) for s in seeds]
                print(row(f"resnet20, 2 workers, --pull_ahead {ahead}", found), flush=True)
            return
        torch.set_num_threads(1)
        for definition in (resnet20, mnist_cnn):
            for late, stalled in ((0, 0.0), (1, 0.0), (1, 0.02), (3, 0.0)):
                found = [simulated(definition, data, seed, late, stalled) for seed in seeds]
                name = definition.__name__.rpartition(".")[2]
                print(row(f"{name}, {late} late, {stalled:.0%} stalled", found), flush=True)


def row(name: str, found: list[float]) -> str:
    return f"| {name} | {min(found):.4f} | {statistics.mean(found):.4f} | {max(found):.4f} |"


def arrays(data: Path, part: str) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(next(data.glob(f"{part}*"))) as file:
        return dict(file)


def simulated(definition: ModuleType, data: Path, seed: int, late: int, stalled: float) -> float:
    """Return the accuracy on the validation data after the definition's epochs."""
    train, stalls = arrays(data, "train"), random.Random(seed)
    order, records = np.random.default_rng(seed), len(next(iter(train.values())))
    torch.manual_seed(seed)
    model, spec = definition.model(), definition.optimizer()
    parameters = list(model.parameters())
    optimizer = torch_optimizer(spec, parameters)
    under_way: list[tuple[int, tuple[torch.Tensor, ...]]] = []  # (versions to go, gradients)
    version = 0
    for _ in range(EPOCHS[definition.__name__.rpartition(".")[2]]):
        shuffled = order.permutation(records)
        for start in range(0, records, MINIBATCH):
            chosen = np.sort(shuffled[start : start + MINIBATCH])
            features, labels = definition.feed({k: v[chosen] for k, v in train.items()}, "train")
            loss = definition.loss(model.train()(features), labels)
            more = stalls.randint(5, 40) if stalls.random() < stalled else 0
            under_way.append((late + more, torch.autograd.grad(loss, parameters)))
            for to_go, gradients in under_way:
                if to_go == 0:
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter.grad = gradient
                    optimizer.param_groups[0]["lr"] = learning_rate(spec, version)
                    optimizer.step()
                    version += 1
            under_way = [(to_go - 1, gradients) for to_go, gradients in under_way if to_go]
    with torch.no_grad():
        features, labels = definition.feed(arrays(data, "validation"), "evaluate")
        return float((model.eval()(features).argmax(1) == labels).float().mean())


def job(folder: Path, data: Path, seed: int, ahead: int) -> float:
    """Return the accuracy that a real job ends with."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from tools.jobs import Job

    train, validation = (next(data.glob(f"{part}*")) for part in ("train", "validation"))
    running = Job(
        folder,
        model_zoo="",
        model_def="resnet20",
        training_data=str(train),
        validation_data=str(validation),
        num_epochs=EPOCHS["resnet20"],
        minibatch_size=MINIBATCH,
        use_async=True,
        num_workers=2,
        num_ps=2,
        seed=seed,
        pull_ahead=ahead,
    )
    with running:
        code = running.wait(WAIT_S)
    if code:
        raise RuntimeError(running.logs())
    return float(running.result()["metrics"]["accuracy"])


if __name__ == "__main__":
    main()
