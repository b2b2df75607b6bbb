r"""Wide & deep: whether a person earns more than 50,000 dollars a year.

Data: Adult census of 1994 (32,561 persons, CC BY 4.0). Values, buckets and crosses are ids of two
server-side tables. Cheng et al. 2016, "Wide & Deep Learning".

Expected: AUC >= 0.90 and accuracy >= 0.845 after 4 epochs (logistic regression: 0.902, 0.848).

    edl data prepare census --out data
    edl train --model_def census_wide_deep --training_data data/census/train.csv \
        --validation_data data/census/validation.csv --num_epochs 4 --minibatch_size 128
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import AUC, Accuracy, Adagrad, Embedding, Metric, hash64
from edl.nn.preprocess import Crossing, Normalizer

CATEGORIES = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "ethnicity",
    "gender",
)
NUMBERS = {  # mean and deviation, as `edl data analyze` finds them
    "age": Normalizer(38.6, 13.6),
    "education_num": Normalizer(10.1, 2.6),
    "hours_per_week": Normalizer(40.4, 12.3),
}
CROSSES = {
    ("education", "occupation"): Crossing(field="education x occupation"),
    ("marital_status", "occupation"): Crossing(field="marital_status x occupation"),
    ("age_bucket", "education"): Crossing(field="age_bucket x education"),
    ("age_bucket", "hours_bucket"): Crossing(field="age_bucket x hours_bucket"),
}


class WideDeep(nn.Module):
    """Logits [N] of ids [N, fields], ids of crosses [N, crosses] and numbers [N, 5]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.wide = Embedding("wide", 1, feature="wide", initializer="zeros", combiner="sum")
        self.deep = Embedding("deep", dim, feature="deep")
        width = (len(CATEGORIES) + 4) * dim + len(NUMBERS) + 2
        self.tower = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        deep = self.deep(features["deep"]).flatten(1)
        tower = self.tower(torch.cat([deep, features["numbers"]], dim=1))
        logits: Tensor = (tower + self.wide(features["wide"])).squeeze(1)
        return logits


def model(dim: int = 8, hidden: int = 64) -> nn.Module:
    return WideDeep(dim, hidden)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer() -> Adagrad:
    return Adagrad(lr=0.02)


def feed(records: Any, mode: str) -> tuple[dict[str, Tensor], Tensor | None]:
    ids = {name: hash64(name, records[name]) for name in CATEGORIES}
    gain = np.log1p(np.asarray(records["capital_gain"], np.float32))
    lost = np.log1p(np.asarray(records["capital_loss"], np.float32))
    ids["age_bucket"] = hash64("age_bucket", np.asarray(records["age"]) // 5)
    ids["hours_bucket"] = hash64("hours_bucket", np.asarray(records["hours_per_week"]) // 5)
    ids["gain_bucket"] = hash64("gain_bucket", np.round(gain * 4))
    ids["loss_bucket"] = hash64("loss_bucket", np.round(lost * 8))
    crosses = [layer.numpy([ids[a], ids[b]]) for (a, b), layer in CROSSES.items()]
    numbers = [layer.numpy(records[name]) for name, layer in NUMBERS.items()]
    features = {
        "deep": torch.from_numpy(np.stack(list(ids.values()), axis=1)),
        "wide": torch.from_numpy(np.stack([*ids.values(), *crosses], axis=1)),
        "numbers": torch.from_numpy(np.stack([*numbers, gain / 10, lost / 10], axis=1)).float(),
    }
    if mode == "predict":
        return features, None
    return features, torch.from_numpy(np.asarray(records["label"], np.float32))


def metrics() -> dict[str, Metric]:
    return {"auc": AUC(logits=True), "accuracy": Accuracy(logits=True)}
