"""Accuracy over wall time: a ResNet on Fashion-MNIST with a fixed and with an adaptive batch.

    edl data prepare fashion-mnist --out edl-runs/data
    python -m benchmarks.adaptive_curve [--seeds 0 1 2]     # docs/adaptive-curve.svg, its tables

Two replicas (gloo, one thread each) train the same network from the same seed with the same initial
batch, learning rate and schedule, in turns: once so, once with `autoscale_batch_size` and AdaScale.
The schedule follows `model.progress`, which counts steps of the initial batch, so both go through
it whole.

The network is one whose steps have a fixed part, without which a larger batch wins nothing: 8
layers of few channels, on pictures that the first one halves. A thread computes 2,500 records a
second of it in batches of 16, 6,300 in batches of 256; of ResNet-20 as it is about 250 in any.

The clock counts training alone: every SNAPSHOT_S of it the parameters are copied, and they are
tested when the training is over. *Time* to an accuracy is that of the first snapshot that has it.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional
from torch.utils.data import Dataset

import edl.adaptive as adl
from benchmarks import measure, page
from edl.model_zoo import resnet20

REPLICAS = 2
BATCH = 32  # in all; the initial one
MOST = 512
LR = 0.05
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
WARM_UP = 0.05  # of the training
WIDTH, BLOCKS = 8, 1  # channels of the first stage, and of each stage its blocks
EPOCHS = 8
SNAPSHOT_S = 2.0
TARGETS = (1.0, 0.995, 0.99)  # of the accuracy that the fixed run ends with
LOW = 0.8  # of the picture
VARIANTS = ("fixed", "adaptive")


class Point(NamedTuple):
    """A place of a curve: the batch size and the accuracy after so many seconds."""

    s: float  # of training so far
    batch: int
    accuracy: float


Curve = Sequence[Point]


@dataclass
class Snapshot:
    """A snapshot of a model in training."""

    s: float
    batch: int
    state: dict[str, Tensor]
    accuracy: float = 0.0


class Images(Dataset[Any]):
    """A batch at a time: images uint8[N, 28, 28], labels int64[N]."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as columns:
            self.images = torch.from_numpy(columns["image"])
            self.labels = torch.from_numpy(columns["label"]).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


def inputs(images: Tensor) -> Tensor:
    """Return float32[N, 1, 28, 28] of mean 0 and deviation 1, about."""
    return (images.unsqueeze(1).float() - 73) / 90


def network() -> nn.Module:
    """Make a ResNet-8 with a first convolution of stride 2."""
    net = resnet20.model(WIDTH, BLOCKS)
    assert isinstance(net, nn.Sequential)
    net[0] = nn.Conv2d(1, WIDTH, 3, stride=2, padding=1, bias=False)
    return net


def rate(done: float) -> float:
    """Return the learning rate at this share of the training: a warm-up, then a cosine."""
    if done < WARM_UP:
        return LR * done / WARM_UP
    return LR * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP)))) / 2


def train(variant: str, seed: int, given: argparse.Namespace) -> list[Snapshot]:
    """Train, and return rank 0's snapshots."""
    dataset = Images(Path(given.data) / "train.npz")
    loader = adl.AdaptiveDataLoader(
        dataset, BATCH, shuffle=True, seed=seed, collate_fn=lambda batch: batch
    )
    if variant == "adaptive":
        loader.autoscale_batch_size(MOST, local_bsz_bounds=(8, MOST // REPLICAS))
    torch.manual_seed(seed)
    net = network()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    model = adl.AdaptiveDataParallel(net, optimizer)
    steps = given.epochs * len(dataset) / BATCH
    found: list[Snapshot] = []

    def snapshot(s: float) -> None:
        state = {name: value.clone() for name, value in net.state_dict().items()}
        found.append(Snapshot(s, loader.current_batch_size, state))

    distributed.barrier()
    began = time.perf_counter()
    for _ in adl.remaining_epochs_until(given.epochs):
        for images, labels in loader:
            optimizer.param_groups[0]["lr"] = rate(model.progress / steps)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs(images)), labels)
            loss.backward()
            optimizer.step()
            s = time.perf_counter() - began
            if s >= SNAPSHOT_S * (len(found) + 1):
                snapshot(s)
    snapshot(time.perf_counter() - began)
    return found


def examine(found: list[Snapshot], given: argparse.Namespace) -> None:
    """Fill in the accuracies: each replica tests its share."""
    dataset = Images(Path(given.data) / "validation.npz")
    images, net = inputs(dataset.images), network().eval()
    shared = [found]
    distributed.broadcast_object_list(shared)
    accuracies = torch.zeros(len(shared[0]))
    with torch.no_grad():
        for number in range(distributed.get_rank(), len(shared[0]), REPLICAS):
            net.load_state_dict(shared[0][number].state)
            told = torch.cat([net(part).argmax(1) for part in images.split(500)])
            accuracies[number] = (told == dataset.labels).float().mean()
    distributed.all_reduce(accuracies)
    for each, accuracy in zip(found, accuracies.tolist(), strict=False):
        each.accuracy = accuracy


def replica(rank: int, folder: str, variant: str, seed: int, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    adl.init_process_group("gloo", f"file://{folder}/store", REPLICAS, rank)
    found = train(variant, seed, given)
    examine(found, given)
    if rank == 0:
        told = [Point(each.s, each.batch, each.accuracy) for each in found]
        (Path(folder) / "curve.json").write_text(json.dumps(told))
    distributed.destroy_process_group()


def run(variant: str, seed: int, given: argparse.Namespace) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(replica, (folder, variant, seed, given), nprocs=REPLICAS)
        curve = [Point(*each) for each in json.loads((Path(folder) / "curve.json").read_text())]
    print(
        f"  seed {seed}, {variant}: {curve[-1].accuracy:.4f} after {curve[-1].s:.1f} s",
        *(f"{point.s:.0f}:{point.batch}:{point.accuracy:.4f}" for point in curve),
        file=sys.stderr,
        flush=True,
    )
    return curve


def reached_s(curve: Curve, accuracy: float) -> float:
    """Return when the curve is there first; infinite if it never is."""
    return next((point.s for point in curve if point.accuracy >= accuracy), math.inf)


def report(found: Mapping[int, Mapping[str, Curve]]) -> str:
    """Make two Markdown tables: the ends of the runs by seed, and the times to the targets."""
    lines = ["| seed | fixed ends with | after, s | adaptive ends with | after, s | of it |"]
    lines.append("|---" * 6 + "|")
    for seed, curves in found.items():
        ends = [curves[variant][-1] for variant in VARIANTS]
        cells = [f"{end.accuracy:.4f} | {end.s:.1f}" for end in ends]
        lines.append(f"| {seed} | {' | '.join(cells)} | {ends[1].s / ends[0].s:.2f} |")
    means = [statistics.mean(c[v][-1].accuracy for c in found.values()) for v in VARIANTS]
    lines.append(f"| mean | {means[0]:.4f} | | {means[1]:.4f} | | |")
    lines += ["", "| accuracy | fixed, s | adaptive, s | of it | by seed |", "|---" * 5 + "|"]
    for share in TARGETS:
        times_s = [times_to(curves, share) for curves in found.values()]
        ratios = [adaptive / fixed for fixed, adaptive in times_s]
        each = [statistics.median(column) for column in zip(*times_s, strict=True)]
        lines.append(
            f"| {share:.1%} of fixed's last | {each[0]:.1f} | {each[1]:.1f} "
            f"| {statistics.median(ratios):.2f} | {' '.join(f'{r:.2f}' for r in ratios)} |"
        )
    return "\n".join(lines)


def times_to(curves: Mapping[str, Curve], share: float) -> tuple[float, float]:
    """Return the seconds of each variant to a share of the fixed one's last accuracy."""
    target = share * curves["fixed"][-1].accuracy
    fixed_s, adaptive_s = (reached_s(curves[variant], target) for variant in VARIANTS)
    return fixed_s, adaptive_s


def drawn(found: Mapping[int, Mapping[str, Curve]]) -> str:
    """Draw the curves of the seed whose ratio is the median one."""
    ratios = {
        seed: operator.truediv(*times_to(curves, TARGETS[0])) for seed, curves in found.items()
    }
    curves = found[sorted(ratios, key=ratios.__getitem__)[len(ratios) // 2]]
    accuracies = {
        name: [(p.s, max(LOW, p.accuracy)) for p in curve] for name, curve in curves.items()
    }
    batches = {name: [(p.s, float(p.batch)) for p in curve] for name, curve in curves.items()}
    across = "seconds of training"
    panels = [
        page.Panel("test accuracy", across, accuracies, steps=True, low=LOW),
        page.Panel("batch size, both replicas", across, batches, steps=True),
    ]
    return page.picture(panels, columns=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", default="edl-runs/data/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes of the initial batch")
    given = parser.parse_args()
    machine, before = measure.machine(), measure.load()
    found: dict[int, dict[str, Curve]] = {}
    for turn, seed in enumerate(given.seeds):
        curves = {name: run(name, seed, given) for name in VARIANTS[:: -1 if turn % 2 else 1]}
        found[seed] = {name: curves[name] for name in VARIANTS}
    (page.DOCS / "adaptive-curve.svg").write_text(drawn(found))
    told = f"{report(found)}\n\n{machine}\n- load before: {before}, after: {measure.load()}"
    print(told)
    page.refresh("adaptive-curve", told, page.DOCS / "adaptive.md")


if __name__ == "__main__":
    main()
