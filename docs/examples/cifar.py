"""The common part of plain_cifar.py and adaptive_cifar.py.

It has pictures, their distortion, a ResNet-20.

CIFAR-10 where its folder is given, else Fashion-MNIST (fetched as `edl data prepare` does).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from edl.data.datasets import prepare
from edl.model_zoo import resnet20

PAD = 4  # pixels by which a picture may be moved


def datasets(folder: str | None, size: int | None) -> tuple[TensorDataset, TensorDataset]:
    """Train and test: pictures uint8[N, C, H, W], labels int64[N]; `size`: only the first ones.

    `folder`: of CIFAR-10's binary version, data_batch_1.bin and so on (the one for Python is
    pickles, which can run anything).
    """
    if folder:
        train = [cifar(file) for file in sorted(Path(folder).glob("data_batch_*.bin"))]
        parts = [np.concatenate(train), cifar(Path(folder) / "test_batch.bin")]
        found = [(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]) for rows in parts]
    else:
        fashion = prepare("fashion-mnist", echo=lambda _: None)
        files = [np.load(fashion / f"{part}.npz") for part in ("train", "validation")]
        found = [(file["image"][:, None], file["label"]) for file in files]
    train, test = (
        TensorDataset(torch.from_numpy(x[:size].copy()), torch.from_numpy(y[:size]).long())
        for x, y in found
    )
    return train, test


def cifar(file: Path) -> np.ndarray:
    """Return uint8[N, 3073]: a label, then 32 x 32 pixels of red, of green and of blue."""
    return np.fromfile(file, np.uint8).reshape(-1, 3073)


def network(channels: int) -> nn.Module:
    """Return a network: logits [N, 10] of pictures [N, C, H, W]."""
    net = resnet20.model()
    net[0] = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
    return net


def scaled(pictures: Tensor) -> Tensor:
    """Return float32, of mean 0 and deviation 1, about."""
    return (pictures.float() - 100) / 80


def distorted(pictures: Tensor) -> Tensor:
    """Move pictures by up to PAD pixels and mirror them, each by chance."""
    height, width = pictures.shape[-2:]
    padded = functional.pad(pictures, (PAD,) * 4)
    down, right = torch.randint(0, 2 * PAD + 1, (2, len(pictures), 1))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    mirrored = torch.rand(len(pictures)) < 0.5
    columns[mirrored] = columns[mirrored].flip(1)
    number = torch.arange(len(pictures))[:, None, None]
    return padded.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None]].permute(
        0, 3, 1, 2
    )
