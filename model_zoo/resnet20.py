r"""ResNet-20 as He et al. 2016 (section 4.2) built it for CIFAR, for grey images.

BatchNorm is included.

Data: Fashion-MNIST (70,000 images of 28x28, MIT); quick: handwritten digits (8x8), the data set
digits.

Expected: accuracy >= 0.88 on Fashion-MNIST after 3 epochs, >= 0.97 on digits after 10.

    edl data prepare fashion-mnist --out data
    edl train --model_def resnet20 --training_data data/fashion-mnist/train.npz \
        --validation_data data/fashion-mnist/validation.npz --num_epochs 3 --minibatch_size 128
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from edl.model_zoo.mnist_cnn import feed, loss, metrics
from edl.nn import SGD, Cosine

__all__ = ["feed", "loss", "metrics", "model", "optimizer"]


class Block(nn.Module):
    """Two convolutions and a shortcut; `stride` 2 halves the image."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.stride = stride
        self.widen = after - before

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]  # the paper's option A: no parameters
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.widen))
        x = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(x)) + shortcut)


def model(width: int = 16, blocks: int = 3, classes: int = 10) -> nn.Module:
    """Return a model: logits [N, classes] of images [N, 1, H, W]; 6 * blocks + 2 layers."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    before = width
    for stage, after in enumerate((width, 2 * width, 4 * width)):
        for block in range(blocks):
            layers.append(Block(before, after, 2 if stage and not block else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def optimizer() -> SGD:
    schedule = Cosine(lr=0.1, total_steps=1400, warmup_steps=100, min_lr=1e-3)  # 3 epochs of 128
    return SGD(lr=schedule, momentum=0.9, weight_decay=1e-4)
