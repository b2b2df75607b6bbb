r"""DIN: will a user like a film, judged by what of their history has to do with it.

Data: MovieLens 100k by time (GroupLens, research only); the newest fifth of each user's ratings is
for validation. Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction": the
local activation unit (section 4.3) weighs each film of a history by the film in question, without
a softmax; Dice (section 5.2). Films have several genres each, a multi-hot field. Here a user has
two histories, of likes and of dislikes.

Expected: AUC >= 0.785 after 3 epochs (logistic regression of user, film and what is
known of them: 0.785; the mean of each history instead of the unit, `attention=false`: 0.793).

    edl data prepare ml-100k-histories --out data
    edl train --model_def din --training_data data/ml-100k-histories/train.npz \
        --validation_data data/ml-100k-histories/validation.npz --num_epochs 3 --minibatch_size 128
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import AUC, PADDING, Adagrad, Embedding, LogLoss, Metric, hash64

PROFILE = ("user_id", "gender", "occupation", "age_bucket", "release_decade")


class Dice(nn.Module):
    """x where it is above its mean, and a part of it below, with a soft step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.part = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        above = torch.sigmoid(self.norm(x))
        return x * (above + self.part * (1 - above))


class ActivationUnit(nn.Module):
    """Weights [N, L] of a history [N, L, D] for an item [N, D] (figure 2, right)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4 * dim, hidden), nn.Sigmoid(), nn.Linear(hidden, 1))

    def forward(self, history_NLD: Tensor, item_ND: Tensor) -> Tensor:
        item_NLD = item_ND[:, None, :].expand_as(history_NLD)
        both = [history_NLD, history_NLD - item_NLD, history_NLD * item_NLD, item_NLD]
        weights: Tensor = self.layers(torch.cat(both, dim=2)).squeeze(2)
        return weights


class DIN(nn.Module):
    """Logits [N]; shapes: N records, L films of a history, D numbers of a film."""

    def __init__(self, dim: int, hidden: int, attention: bool) -> None:
        super().__init__()
        self.profile = Embedding("profile", dim, feature="profile")
        self.genres = Embedding("genres", dim, feature="genres", combiner="mean")
        self.item = Embedding("items", dim, feature="item")
        self.liked = Embedding("items", dim, feature="liked")
        self.disliked = Embedding("items", dim, feature="disliked")
        self.units = nn.ModuleDict(
            {name: ActivationUnit(dim, hidden // 2) for name in ("liked", "disliked")}
            if attention
            else {}
        )
        self.tower = nn.Sequential(
            nn.Linear((len(PROFILE) + 4) * dim, hidden),
            Dice(hidden),
            nn.Linear(hidden, hidden // 2),
            Dice(hidden // 2),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        item_ND = self.item(features["item"])
        parts = [
            self.profile(features["profile"]).flatten(1),
            self.genres(features["genres"]),
            item_ND,
            self._interest("liked", self.liked(features["liked"]), item_ND, features["liked"]),
            self._interest(
                "disliked", self.disliked(features["disliked"]), item_ND, features["disliked"]
            ),
        ]
        logits: Tensor = self.tower(torch.cat(parts, dim=1)).squeeze(1)
        return logits

    def _interest(self, name: str, history_NLD: Tensor, item_ND: Tensor, ids_NL: Tensor) -> Tensor:
        """Return the weighted sum of a history [N, D]; padded places are zeros."""
        if not self.units:
            return history_NLD.sum(1) / (ids_NL != PADDING).sum(1, keepdim=True).clamp(min=1)
        weights_NL = self.units[name](history_NLD, item_ND)
        interest: Tensor = (weights_NL[:, :, None] * history_NLD).sum(dim=1)
        return interest


def model(dim: int = 16, hidden: int = 64, attention: bool = True) -> nn.Module:
    return DIN(dim, hidden, attention)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer() -> Adagrad:
    return Adagrad(lr=0.02)


def feed(records: Any, mode: str) -> tuple[dict[str, Tensor], Tensor | None]:
    columns = {
        **records,
        "age_bucket": np.asarray(records["age"]) // 5,
        "release_decade": np.asarray(records["release_year"]) // 10,
    }
    ids = {
        "profile": np.stack([hash64(name, columns[name]) for name in PROFILE], axis=1),
        "genres": np.asarray(records["genres"], np.int64),
        "item": hash64("item", records["item_id"]),
    }
    for name in ("liked", "disliked"):
        films = np.asarray(records[name])
        ids[name] = np.where(films == PADDING, PADDING, hash64("item", films))
    features = {name: torch.from_numpy(each) for name, each in ids.items()}
    if mode == "predict":
        return features, None
    return features, torch.from_numpy(np.asarray(records["label"], np.float32))


def metrics() -> dict[str, Metric]:
    return {"auc": AUC(logits=True), "log_loss": LogLoss(logits=True)}
