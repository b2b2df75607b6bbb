r"""MMoE: two tasks at once, whether somebody earns more than 50,000 dollars and has never married.

Data: Adult census of 1994 (32,561 persons, CC BY 4.0); the tasks are those of group 1 of Ma et al.
2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts",
whose census-income data are larger. Section 4.2: all experts see all records; each task has a gate
of its own, a softmax over the experts, and a tower. The loss is the sum of the tasks' own.

Expected: AUC >= 0.91 of the income, >= 0.955 of the marriages, after 4 epochs.

    edl data prepare census --out data
    edl train --model_def mmoe --training_data data/census/train.csv \
        --validation_data data/census/validation.csv --num_epochs 4 --minibatch_size 128
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import AUC, Adagrad, Embedding, Metric, hash64
from edl.nn.preprocess import Normalizer

CATEGORIES = ("workclass", "education", "occupation", "relationship", "ethnicity", "gender")
NUMBERS = {  # mean and deviation, as `edl data analyze` finds them
    "age": Normalizer(38.6, 13.6),
    "education_num": Normalizer(10.1, 2.6),
    "hours_per_week": Normalizer(40.4, 12.3),
}
TASKS = ("income", "never_married")


class MMoE(nn.Module):
    """Logits by task [N] of ids [N, fields] and numbers [N, 5].

    Shapes: N records, E experts, D numbers of an expert's answer.
    """

    def __init__(self, dim: int, experts: int, hidden: int) -> None:
        super().__init__()
        self.rows = Embedding("fields", dim, feature="ids")
        width = (len(CATEGORIES) + 4) * dim + len(NUMBERS) + 2
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) for _ in range(experts)
        )
        self.gates = nn.ModuleDict({task: nn.Linear(width, experts, bias=False) for task in TASKS})
        self.towers = nn.ModuleDict(
            {
                task: nn.Sequential(
                    nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1)
                )
                for task in TASKS
            }
        )

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        x = torch.cat([self.rows(features["ids"]).flatten(1), features["numbers"]], dim=1)
        answers_NED = torch.stack([expert(x) for expert in self.experts], dim=1)
        logits = {}
        for task in TASKS:
            weights_NE1 = torch.softmax(self.gates[task](x), dim=1)[:, :, None]
            logits[task] = self.towers[task]((weights_NE1 * answers_NED).sum(dim=1)).squeeze(1)
        return logits


def model(dim: int = 8, experts: int = 4, hidden: int = 32) -> nn.Module:
    return MMoE(dim, experts, hidden)


def loss(outputs: dict[str, Tensor], labels: dict[str, Tensor]) -> Tensor:
    of_tasks = [
        functional.binary_cross_entropy_with_logits(outputs[task], labels[task]) for task in TASKS
    ]
    return torch.stack(of_tasks).sum()


def optimizer() -> Adagrad:
    return Adagrad(lr=0.02)


def feed(records: Any, mode: str) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    ids = {name: hash64(name, records[name]) for name in CATEGORIES}
    gain = np.log1p(np.asarray(records["capital_gain"], np.float32))
    lost = np.log1p(np.asarray(records["capital_loss"], np.float32))
    ids["age_bucket"] = hash64("age_bucket", np.asarray(records["age"]) // 5)
    ids["hours_bucket"] = hash64("hours_bucket", np.asarray(records["hours_per_week"]) // 5)
    ids["gain_bucket"] = hash64("gain_bucket", np.round(gain * 4))
    ids["loss_bucket"] = hash64("loss_bucket", np.round(lost * 8))
    numbers = [layer.numpy(records[name]) for name, layer in NUMBERS.items()]
    features = {
        "ids": torch.from_numpy(np.stack(list(ids.values()), axis=1)),
        "numbers": torch.from_numpy(np.stack([*numbers, gain / 10, lost / 10], axis=1)).float(),
    }
    if mode == "predict":
        return features, None
    answers = {
        "income": np.asarray(records["label"]),
        "never_married": np.asarray(records["marital_status"]) == "Never-married",
    }
    return features, {
        task: torch.from_numpy(answer.astype(np.float32)) for task, answer in answers.items()
    }


def metrics() -> dict[str, Metric]:
    return {f"{task}_auc": AUC(logits=True, of=task) for task in TASKS}
