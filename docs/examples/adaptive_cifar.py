"""plain_cifar.py, elastic, its batch by goodput: AdaptDL's example pytorch-cifar.

    python docs/examples/adaptive_cifar.py [--cifar cifar-10-batches-bin]
    torchrun --nproc-per-node 2 docs/examples/adaptive_cifar.py
    diff docs/examples/plain_cifar.py docs/examples/adaptive_cifar.py

The first and the largest batch are Pollux' (OSDI '21, table 1).
"""

from __future__ import annotations

import argparse

import torch
from cifar import datasets, distorted, network, scaled
from torch import nn

import edl.adaptive as adl


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cifar", help="the folder of CIFAR-10's binary version")
    arguments.add_argument("--epochs", type=int, default=30)
    arguments.add_argument("--records", type=int, help="use the first ones only")
    given = arguments.parse_args()

    adl.init_process_group("gloo")
    train, test = datasets(given.cifar, given.records)
    train_loader = adl.AdaptiveDataLoader(train, batch_size=128, shuffle=True)
    train_loader.autoscale_batch_size(4096, local_bsz_bounds=(32, 512), gradient_accumulation=True)
    test_loader = adl.AdaptiveDataLoader(test, batch_size=512)
    model = network(train[0][0].shape[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)
    model = adl.AdaptiveDataParallel(model, optimizer, schedule)

    for epoch in adl.remaining_epochs_until(given.epochs):
        model.train()
        for pictures, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(scaled(distorted(pictures))), labels)
            loss.backward()
            optimizer.step()
        schedule.step()
        model.eval()
        sums = adl.Accumulator()
        with torch.no_grad():
            for pictures, labels in test_loader:
                sums["right"] += (model(scaled(pictures)).argmax(1) == labels).sum().item()
        with sums.synchronized():
            if torch.distributed.get_rank() == 0:
                right, batch = sums["right"], train_loader.current_batch_size
                print(f"epoch {epoch}: accuracy {right / len(test):.4f}, batch {batch}")


if __name__ == "__main__":
    main()
