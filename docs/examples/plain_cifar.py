"""A ResNet-20 on CIFAR-10 or Fashion-MNIST as one would write it for one process.

    python docs/examples/plain_cifar.py [--cifar cifar-10-batches-bin]

adaptive_cifar.py is its port: compare the two.
"""

from __future__ import annotations

import argparse

import torch
from cifar import datasets, distorted, network, scaled
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cifar", help="the folder of CIFAR-10's binary version")
    arguments.add_argument("--epochs", type=int, default=30)
    arguments.add_argument("--records", type=int, help="use the first ones only")
    given = arguments.parse_args()

    train, test = datasets(given.cifar, given.records)
    train_loader = DataLoader(train, batch_size=128, shuffle=True)
    test_loader = DataLoader(test, batch_size=512)
    model = network(train[0][0].shape[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs)

    for epoch in range(given.epochs):
        model.train()
        for pictures, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(scaled(distorted(pictures))), labels)
            loss.backward()
            optimizer.step()
        schedule.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for pictures, labels in test_loader:
                right += (model(scaled(pictures)).argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: accuracy {right / len(test):.4f}")


if __name__ == "__main__":
    main()
