r"""MobileNetV2 for small grey images, by all-reduce: inverted residuals with linear bottlenecks.

Data: handwritten digits (8x8, scaled up to 32x32; the data set digits), or Fashion-MNIST. Sandler
et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", tables 1 and 2. For images of
32 pixels the first two strides of 2 are left out, as its authors' successors do for CIFAR.

Expected: accuracy >= 0.97 on digits after 6 epochs.

    edl data prepare digits --out data
    edl train --model_def mobilenet_v2 --training_data data/digits/train.npz --num_epochs 6 \
        --validation_data data/digits/validation.npz --minibatch_size 32 --strategy allreduce
"""

from __future__ import annotations

from torch import Tensor, nn

from edl.model_zoo.mnist_cnn import loss, metrics
from edl.model_zoo.resnet50 import feed
from edl.nn import SGD, Cosine

__all__ = ["feed", "loss", "metrics", "model", "optimizer"]

# Of table 2: how much wider within, channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),  # the paper's is 2
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _convolution(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow without a nonlinearity (table 1)."""

    def __init__(self, before: int, after: int, stride: int, wider: int) -> None:
        super().__init__()
        within = before * wider
        self.layers = nn.Sequential(
            _convolution(before, within, 1) if wider > 1 else nn.Identity(),
            _convolution(within, within, 3, stride, groups=within),
            nn.Conv2d(within, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.has_shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.layers(x)
        return x + narrow if self.has_shortcut else narrow


def model(width: float = 1.0, classes: int = 10, channels: int = 1) -> nn.Module:
    """Return a model: logits [N, classes] of images [N, channels, H, W]; `width`: of all layers."""
    before = int(32 * width)
    layers: list[nn.Module] = [_convolution(channels, before, 3)]  # the paper's has stride 2
    for wider, wanted, blocks, first in STAGES:
        after = int(wanted * width)
        for block in range(blocks):
            layers.append(InvertedResidual(before, after, 1 if block else first, wider))
            before = after
    last = max(1280, int(1280 * width))
    return nn.Sequential(
        *layers,
        _convolution(before, last, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(last, classes),
    )


def optimizer() -> SGD:
    schedule = Cosine(lr=0.05, total_steps=270, warmup_steps=30, min_lr=5e-4)  # 6 epochs of 32
    return SGD(lr=schedule, momentum=0.9, weight_decay=4e-5)
