r"""A LeNet of 20,000 parameters that learns grey images from a teacher: the network of mnist_cnn.

The teacher is trained first, as any job; `--output` has its values, and they are the teacher's
`weights`. Its logits at temperature 4 are worth more than the labels (Hinton et al., "Distilling
the Knowledge in a Neural Network"): with `few` labels only, the others being -1, they are nearly
all that the student has.

    edl data prepare digits --out data
    edl train --model_def mnist_cnn --training_data data/digits/train.npz --num_epochs 20 \
        --minibatch_size 32 --output teacher
    edl train --model_def taught_lenet --training_data data/digits/train.npz \
        --validation_data data/digits/validation.npz --num_epochs 20 --minibatch_size 32 \
        --num_teachers 1 --teacher_params weights=teacher/model/model.safetensors
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from edl.common.errors import DefinitionError
from edl.nn import Accuracy, Adam, Metric
from edl.nn.distill import few_labels

from . import mnist_cnn

TEMPERATURE, SOFT = 4.0, 0.9  # of the teacher's logits; the weight of what they teach


def model(channels: int = 8, classes: int = 10) -> nn.Module:
    """Return the student: logits [N, classes] of images [N, 1, H, W], H and W at least 8."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(8),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def teacher(weights: str = "", channels: int = 32) -> nn.Module:
    """Return the network of mnist_cnn with the values that a job has exported."""
    if not Path(weights).is_file():
        raise DefinitionError(
            f"taught_lenet: teacher() finds no {weights or 'weights'}: train mnist_cnn with "
            "--output FOLDER first, and give --teacher_params "
            "weights=FOLDER/model/model.safetensors"
        )
    made = mnist_cnn.model(channels=channels)
    made.load_state_dict(load_file(weights))
    return made


def loss(outputs: Tensor, labels: Tensor, teacher: Tensor | None) -> Tensor:
    return few_labels(outputs, labels, teacher, temperature=TEMPERATURE, alpha=SOFT)


def optimizer() -> Adam:
    return Adam(lr=2e-3)


def feed(records: Any, mode: str) -> tuple[Tensor, Tensor | None]:
    return mnist_cnn.feed(records, mode)


def metrics() -> dict[str, Metric]:
    return {"accuracy": Accuracy()}
