"""A small CNN on Fashion-MNIST (or on digits, which takes seconds), elastic, its batch by goodput.

    python docs/examples/adaptive_mnist.py --data digits
    torchrun --nproc-per-node 2 docs/examples/adaptive_mnist.py

Fetches the data set as `edl data prepare` does. Expect an accuracy of 0.88 on Fashion-MNIST after
5 epochs, of 0.98 on digits after 20. A GPU is used where there is one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.utils.data import TensorDataset

import edl.adaptive as adl
from edl.data.datasets import prepare


def records(file: Path, white: float) -> TensorDataset:
    """Return images float32[N, 1, H, W] in 0..1, labels int64[N]."""
    with np.load(file) as columns:
        images = torch.from_numpy(columns["image"]).float().unsqueeze(1) / white
        return TensorDataset(images, torch.from_numpy(columns["label"]).long())


def network() -> nn.Module:
    """Return a network: logits [N, 10] of images [N, 1, H, W]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", choices=["fashion-mnist", "digits"], default="fashion-mnist")
    arguments.add_argument("--epochs", type=int)
    given = arguments.parse_args()
    digits = given.data == "digits"

    adl.init_process_group()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK") or 0))
        torch.cuda.set_device(device)
    first = distributed.get_rank() == 0
    if first:
        prepare(given.data, echo=lambda _: None)
    distributed.barrier()
    folder = prepare(given.data, echo=lambda _: None)
    white = 16.0 if digits else 255.0  # digits have 17 shades
    train = adl.AdaptiveDataLoader(records(folder / "train.npz", white), 64, shuffle=True)
    train.autoscale_batch_size(1024, local_bsz_bounds=(16, 256), gradient_accumulation=True)
    validation = adl.AdaptiveDataLoader(records(folder / "validation.npz", white), 512)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model = adl.AdaptiveDataParallel(model, optimizer)

    for epoch in adl.remaining_epochs_until(given.epochs or (20 if digits else 5)):
        sums = adl.Accumulator()
        for images, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for images, labels in validation:
                right = model(images.to(device)).argmax(1) == labels.to(device)
                sums["right"] += right.sum()
                sums["records"] += len(labels)
        with sums.synchronized():
            if first:
                accuracy = sums["right"] / sums["records"]
                print(f"epoch {epoch}: accuracy {accuracy:.4f}, batch {train.current_batch_size}")


if __name__ == "__main__":
    main()
