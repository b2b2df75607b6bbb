r"""Step 6 of the tutorial: TensorBoard, and files that all nodes share; run as pods.

python docs/examples/tutorial/step_6.py
edl launch --nodes 1:4 docs/examples/tutorial/step_6.py --epochs 8
edl submit docs/examples/tutorial/step_6.py --nodes 1:4 --image_name IMAGE \
    --job_volume claim_name=CLAIM -- --epochs 8

`--data FOLDER` takes pictures as `edl data prepare fashion-mnist` leaves them, 28 x 28, instead of
the digits of scikit-learn. Prints how many records each epoch has trained on.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
from digits import network, pictures
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from torch.utils.tensorboard import SummaryWriter

import edl.adaptive


def records(folder, name):
    """Return images float32[N, 1, H, W] in 0..1, labels int64[N]."""
    with np.load(os.path.join(folder, f"{name}.npz")) as columns:
        images = torch.from_numpy(columns["image"]).float().unsqueeze(1) / 255
        return TensorDataset(images, torch.from_numpy(columns["label"]).long())


def large_network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10)
    )


def train(model, loader, optimizer, stats):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        stats["loss"] += loss.item() * len(data)
        stats["records"] += len(data)


def test(model, loader, stats):
    model.eval()
    with torch.no_grad():
        for data, target in loader:
            stats["right"] += (model(data).argmax(1) == target).sum().item()
            stats["tested"] += len(data)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--data", help="a folder with pictures of 28 x 28")
    arguments.add_argument("--fixed-batch", action="store_true")
    given = arguments.parse_args()

    torch.manual_seed(1)
    if given.data:
        train_set, test_set = (records(given.data, name) for name in ("train", "validation"))
    else:
        train_set, test_set = pictures()
    train_loader = edl.adaptive.AdaptiveDataLoader(train_set, drop_last=True, batch_size=64)
    test_loader = edl.adaptive.AdaptiveDataLoader(test_set, batch_size=64)
    if not given.fixed_batch:
        train_loader.autoscale_batch_size(512, local_bsz_bounds=(16, 128))
    model = large_network() if given.data else network()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    edl.adaptive.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = edl.adaptive.AdaptiveDataParallel(model, optimizer, scheduler)

    first = edl.adaptive.env.replica_rank() == 0
    with SummaryWriter(edl.adaptive.get_tensorboard_dir()) as writer:
        for epoch in edl.adaptive.remaining_epochs_until(given.epochs):
            stats = edl.adaptive.Accumulator()
            train(model, train_loader, optimizer, stats)
            test(model, test_loader, stats)
            scheduler.step()
            with stats.synchronized():
                loss = stats["loss"] / stats["records"]
                writer.add_scalar("Loss/Train", loss, epoch)
                writer.add_scalar("Accuracy/Valid", stats["right"] / stats["tested"], epoch)
                if first:
                    print(
                        f"epoch {epoch}: {stats['records']} records, loss {loss:.4f}, "
                        f"{stats['right']} of {stats['tested']} right"
                    )
            train_loader.to_tensorboard(writer, epoch, tag_prefix="AdaptiveDataParallel")
            model.to_tensorboard(writer, epoch, tag_prefix="AdaptiveDataParallel")
    if first:
        path = os.path.join(edl.adaptive.env.share_path(), f"{edl.adaptive.env.job_id()}.pt")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(model.module.state_dict(), path)
        print(f"saved {path}")


if __name__ == "__main__":
    main()
