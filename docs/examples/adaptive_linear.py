"""Linear regression on synthetic data, elastic.

Prints the loss of each epoch and the weights found.

    python docs/examples/adaptive_linear.py
    torchrun --nproc-per-node 2 docs/examples/adaptive_linear.py --epochs 20

With EDL_CHECKPOINT_PATH set to a folder, Ctrl-C saves; the same command, with any number of
processes, goes on at the same record.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import edl.adaptive as adl

WEIGHTS = torch.tensor([3.0, -2.0, 0.5, 1.0])
NOISE = 0.5  # standard deviation of what the weights do not explain


def records(size: int) -> TensorDataset:
    """Return x float32[size, 4] and y = x . WEIGHTS + noise, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, len(WEIGHTS), generator=generator)
    return TensorDataset(x, x @ WEIGHTS + NOISE * torch.randn(size, generator=generator))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--records", type=int, default=2000)
    arguments.add_argument("--autoscale", action="store_true", help="let the batch grow to 512")
    given = arguments.parse_args()

    torch.manual_seed(0)
    adl.init_process_group("gloo")
    dataset = records(given.records)
    loader = adl.AdaptiveDataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    if given.autoscale:
        loader.autoscale_batch_size(512, local_bsz_bounds=(8, 128), gradient_accumulation=True)
    model = nn.Linear(len(WEIGHTS), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model = adl.AdaptiveDataParallel(model, optimizer)

    for epoch in adl.remaining_epochs_until(given.epochs):
        sums = adl.Accumulator()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            sums["loss"] += loss.item() * len(y)
            sums["records"] += len(y)
        with sums.synchronized():
            if torch.distributed.get_rank() == 0:
                loss = sums["loss"] / sums["records"]
                print(f"epoch {epoch}: loss {loss:.4f}, batch {loader.current_batch_size}")
    if torch.distributed.get_rank() == 0:
        found = model.module.weight[0].tolist()
        print("weights " + " ".join(f"{weight:.2f}" for weight in found))


if __name__ == "__main__":
    main()
