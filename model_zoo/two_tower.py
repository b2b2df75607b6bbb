r"""Two towers: the films that a user will like, retrieved from all of them.

Data: MovieLens 100k by time (GroupLens, research only); the newest fifth of each user's ratings is
for validation. Yi et al. 2019, "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
Recommendations", sections 3 and 5: a tower for the query, one for the item, normalized, with a
temperature; softmax over the items of the batch, which are each other's negatives, each logit less
the log of how often its item comes. That share is counted in the data (`item_share`) and not
estimated from a stream (section 4), so that a step is a function of its records whoever computes
it.

A model is evaluated against all items that there are, less those that the user has rated.

Expected: recall@50 >= 0.30 after 6 epochs (the films with the most likes: 0.191; those nearest by
cosine to what the user likes, by who liked both: 0.253).

    edl data prepare ml-100k-histories --out data
    edl train --model_def two_tower --training_data data/ml-100k-histories/train.npz \
        --validation_data data/ml-100k-histories/validation.npz --num_epochs 6 --minibatch_size 256
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import PADDING, Adagrad, Embedding, Metric, RecallAtK, hash64

ITEMS = 1682  # films, numbered from 1
PROFILE = ("user_id", "gender", "occupation", "age_bucket")


class TwoTower(nn.Module):
    """Logits [N, M] of N queries for M items; shapes: N records, L films of a history, D numbers.

    In training the items are those of the records, else all.
    """

    def __init__(self, dim: int, hidden: int, temperature: float) -> None:
        super().__init__()
        self.profile = Embedding("profile", dim, feature="profile")
        self.liked = Embedding("items", dim, feature="liked", combiner="mean")
        self.item = Embedding("items", dim, feature="item")
        self.query_tower = _tower((len(PROFILE) + 1) * dim, hidden, dim)
        self.item_tower = _tower(dim, hidden, dim)
        self.temperature = temperature

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        profile = self.profile(features["profile"]).flatten(1)
        liked = self.liked(features["liked"])
        query_ND = functional.normalize(self.query_tower(torch.cat([profile, liked], 1)), dim=1)
        item_MD = functional.normalize(self.item_tower(self.item(features["item"])), dim=1)
        logits_NM: Tensor = query_ND @ item_MD.T / self.temperature
        if "rated" in features:  # places among all items; the last one is nobody's
            rated = torch.zeros(
                len(logits_NM), ITEMS + 1, dtype=torch.bool, device=logits_NM.device
            )
            rated.scatter_(1, features["rated"], True)
            logits_NM = logits_NM.masked_fill(rated[:, :ITEMS], -torch.inf)
        return logits_NM


def _tower(width: int, hidden: int, dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, dim))


def model(dim: int = 32, hidden: int = 64, temperature: float = 0.1) -> nn.Module:
    return TwoTower(dim, hidden, temperature)


def loss(outputs: Tensor, labels: dict[str, Tensor]) -> Tensor:
    """Return the batch softmax over the likes among the records.

    A like is no negative of another one of the same item.
    """
    item, liked = labels["item"], labels["liked"]
    logits = outputs - labels["log_share"]
    same = (item[:, None] == item[None, :]).fill_diagonal_(False)
    logits = logits.masked_fill(same | ~liked[None, :], -1e9)  # a row may be without any other
    places = torch.arange(len(item), device=item.device)
    of_each = functional.cross_entropy(logits, places, reduction="none")
    return (of_each * liked).sum() / liked.sum().clamp(min=1)


def optimizer() -> Adagrad:
    return Adagrad(lr=0.1)


def feed(records: Any, mode: str) -> tuple[dict[str, Tensor], Any]:
    columns = {**records, "age_bucket": np.asarray(records["age"]) // 5}
    profile = np.stack([hash64(name, columns[name]) for name in PROFILE], axis=1)
    item = np.asarray(records["item_id"], np.int64)
    features = {
        "profile": torch.from_numpy(profile),
        "liked": torch.from_numpy(_ids(records["liked"])),
        "item": torch.from_numpy(_ids(item if mode == "train" else np.arange(1, ITEMS + 1))),
    }
    if mode == "train":
        share = np.maximum(np.asarray(records["item_share"]), 1e-9)
        liked = np.asarray(records["label"]) == 1
        return features, {
            "item": torch.from_numpy(item),
            "liked": torch.from_numpy(liked),
            "log_share": torch.from_numpy(np.log(share).astype(np.float32)),
        }
    rated = np.concatenate([records["liked"], records["disliked"]], axis=1).astype(np.int64)
    features["rated"] = torch.from_numpy(np.where(rated == PADDING, ITEMS, rated - 1))
    if mode == "predict":
        return features, None
    return features, torch.from_numpy(np.where(records["label"] == 1, item - 1, -1))


def _ids(items: NDArray[Any]) -> NDArray[np.int64]:
    return np.where(items == PADDING, PADDING, hash64("item", items))


def metrics() -> dict[str, Metric]:
    return {"recall_at_10": RecallAtK(10), "recall_at_50": RecallAtK(50)}
