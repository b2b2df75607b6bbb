r"""A small convolutional network for grey images: digits of 8x8, (Fashion-)MNIST of 28x28.

Data: handwritten digits (1,797 images of 8x8, CC BY 4.0); or Fashion-MNIST (70,000 images of
28x28, MIT): the data set fashion-mnist.

Expected: accuracy >= 0.98 on digits after 20 epochs, about 0.88 on Fashion-MNIST after 2
(resnet20 does better there).

    edl data prepare digits --out data
    edl train --model_def mnist_cnn --training_data data/digits/train.npz \
        --validation_data data/digits/validation.npz --num_epochs 20 --minibatch_size 32
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import Accuracy, Adam, Metric


def model(channels: int = 32, classes: int = 10) -> nn.Module:
    """Return a model: logits [N, classes] of images [N, 1, H, W], H and W at least 8."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),  # after both: a pool between them costs accuracy on 8x8
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(2 * channels * 16, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels)


def optimizer() -> Adam:
    return Adam(lr=2e-3)


def feed(records: Any, mode: str) -> tuple[Tensor, Tensor | None]:
    images = np.asarray(records["image"], np.float32)
    side = int(images[0].size ** 0.5) if len(images) else 8
    white = 16.0 if side == 8 else 255.0  # scikit-learn's digits have 17 shades
    features = torch.from_numpy(images.reshape(-1, 1, side, side) / white)
    if mode == "predict":
        return features, None
    return features, torch.from_numpy(np.asarray(records["label"], np.int64))


def metrics() -> dict[str, Metric]:
    return {"accuracy": Accuracy()}
