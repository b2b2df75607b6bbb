"""Step 4 of the tutorial: the epochs, which outlive a restart.

python docs/examples/tutorial/step_4.py
torchrun --nproc-per-node 2 docs/examples/tutorial/step_4.py
"""

from __future__ import annotations

import argparse

import torch
from digits import network, pictures
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR

import edl.adaptive


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()


def test(model, loader, epoch):
    model.eval()
    right = 0
    with torch.no_grad():
        for data, target in loader:
            right += (model(data).argmax(1) == target).sum().item()
    print(f"epoch {epoch}: {right} of {len(loader.dataset)} right")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=4)
    epochs = arguments.parse_args().epochs

    torch.manual_seed(1)
    train_set, test_set = pictures()
    train_loader = edl.adaptive.AdaptiveDataLoader(train_set, drop_last=True, batch_size=64)
    test_loader = edl.adaptive.AdaptiveDataLoader(test_set, batch_size=64)
    train_loader.autoscale_batch_size(512, local_bsz_bounds=(16, 128))
    model = network()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    edl.adaptive.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = edl.adaptive.AdaptiveDataParallel(model, optimizer, scheduler)

    for epoch in edl.adaptive.remaining_epochs_until(epochs):
        train(model, train_loader, optimizer)
        test(model, test_loader, epoch)
        scheduler.step()


if __name__ == "__main__":
    main()
