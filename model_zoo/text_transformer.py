r"""A small transformer that sorts texts into classes; words are ids of a server-side table.

Data: BBC News (2,225 articles of 5 topics, research use), a folder of texts per topic; any CSV with
the columns `text` and `label` will do. No vocabulary is built: the table grows with the words.
Vaswani et al. 2017, with the norms first, and the mean of all places as the text's vector.

Expected: accuracy >= 0.93 on BBC News after 4 epochs (TF-IDF with logistic regression: 0.973).

    edl data prepare bbc-news --out data
    edl train --model_def text_transformer --training_data data/bbc-news/train \
        --validation_data data/bbc-news/validation --num_epochs 4 --minibatch_size 32
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import PADDING, Accuracy, Adam, Embedding, Metric, hash64

TOPICS = ("business", "entertainment", "politics", "sports", "tech")  # labels that are no numbers
LENGTH = 160  # words read of a text
_WORD = re.compile(r"[a-z]{2,24}|[0-9]+")


class TextTransformer(nn.Module):
    """Logits [N, classes] of word ids [N, L], filled up with PADDING."""

    def __init__(self, dim: int, heads: int, layers: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.words = Embedding("words", dim, feature="ids", initializer="normal", scale=0.1)
        self.places = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        ids_NL = features["ids"]
        empty_NL = ids_NL == PADDING
        x_NLD = self.words(ids_NL) + self.places[: ids_NL.shape[1]]
        x_NLD = self.encoder(x_NLD, src_key_padding_mask=empty_NL)
        kept_NL1 = (~empty_NL).unsqueeze(2)
        mean_ND = (x_NLD * kept_NL1).sum(dim=1) / kept_NL1.sum(dim=1).clamp(min=1)
        logits: Tensor = self.out(self.norm(mean_ND))
        return logits


def model(
    dim: int = 64, heads: int = 4, layers: int = 1, classes: int = 5, dropout: float = 0.5
) -> nn.Module:
    return TextTransformer(dim, heads, layers, classes, dropout)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels)


def optimizer() -> Adam:
    return Adam(lr=2e-3)


def feed(records: Any, mode: str) -> tuple[dict[str, Tensor], Tensor | None]:
    # A text without a word is the one word "": attention over nothing would be NaN.
    texts = [_WORD.findall(str(text).lower())[:LENGTH] or [""] for text in records["text"]]
    lengths = np.array([len(words) for words in texts])
    ids = np.full((len(texts), int(lengths.max(initial=1))), PADDING, np.int64)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = hash64(
        "word", [w for words in texts for w in words]
    )
    features = {"ids": torch.from_numpy(ids)}
    if mode == "predict":
        return features, None
    labels = np.asarray(records["label"])
    if labels.dtype.kind not in "iu":
        labels = np.array([TOPICS.index(label) for label in labels.tolist()])
    return features, torch.from_numpy(labels.astype(np.int64))


def metrics() -> dict[str, Metric]:
    return {"accuracy": Accuracy()}
