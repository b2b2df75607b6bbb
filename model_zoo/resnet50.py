r"""ResNet-50 for grey images, by all-reduce: bottlenecks of three convolutions.

Data: handwritten digits (8x8, scaled up to 32x32; the data set digits), or Fashion-MNIST. He et al.
2016, "Deep Residual Learning for Image Recognition", table 1 and figure 5; the stride stands at the
3x3 convolution, and the last norm of each block begins at zero (Goyal et al. 2017, section 5.1).

Expected: accuracy >= 0.97 on digits after 6 epochs.

    edl data prepare digits --out data
    edl train --model_def resnet50 --training_data data/digits/train.npz --num_epochs 6 \
        --validation_data data/digits/validation.npz --minibatch_size 32 --strategy allreduce
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from edl.model_zoo import mnist_cnn
from edl.model_zoo.mnist_cnn import loss, metrics
from edl.nn import SGD, Cosine

__all__ = ["feed", "loss", "metrics", "model", "optimizer"]

LEAST = 32  # pixels: all strides together


class Bottleneck(nn.Module):
    """Narrow, filter, widen to four times `narrow` channels, and add a shortcut."""

    def __init__(self, before: int, narrow: int, stride: int) -> None:
        super().__init__()
        after = 4 * narrow
        self.narrow = nn.Conv2d(before, narrow, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(narrow)
        self.filter = nn.Conv2d(narrow, narrow, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(narrow)
        self.widen = nn.Conv2d(narrow, after, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(after)
        nn.init.zeros_(self.norm3.weight)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        deep = functional.relu(self.norm1(self.narrow(x)))
        deep = functional.relu(self.norm2(self.filter(deep)))
        return functional.relu(self.norm3(self.widen(deep)) + self.shortcut(x))


def model(
    width: int = 64,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    classes: int = 10,
    channels: int = 1,
) -> nn.Module:
    """Return a model: logits [N, classes] of images [N, channels, H, W].

    Of the default `blocks` it has 50 layers.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    before = width
    for stage, count in enumerate(blocks):
        narrow = width * 2**stage
        for block in range(count):
            layers.append(Bottleneck(before, narrow, 2 if stage and not block else 1))
            before = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def feed(records: Any, mode: str) -> tuple[Tensor, Tensor | None]:
    """Return images of at least 32 x 32 pixels."""
    images, labels = mnist_cnn.feed(records, mode)
    if images.shape[-1] < LEAST:
        images = functional.interpolate(images, size=LEAST, mode="bilinear", align_corners=False)
    return images, labels


def optimizer() -> SGD:
    schedule = Cosine(lr=0.05, total_steps=270, warmup_steps=30, min_lr=5e-4)  # 6 epochs of 32
    return SGD(lr=schedule, momentum=0.9, weight_decay=1e-4)
