r"""A small GPT that tells which byte of a text comes next; without tables, for every strategy.

Data: Shakespeare's works (5 MB, public domain) in windows of 256 bytes; a fifth of the works is for
validation. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3:
norms before each part and one at the end, the weights of the last layer of a residual branch
smaller by the number of branches; the output layer is the embedding (Press and Wolf 2017), and
attention is causal.

Expected: at most 1.75 nats a byte after an epoch (its share of a byte: 2.52 bits; gzip -9: 3.4).

    edl data prepare shakespeare --out data
    edl train --model_def gpt --training_data data/shakespeare/train.npz --num_epochs 1 \
        --validation_data data/shakespeare/validation.npz --minibatch_size 32 --strategy allreduce
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edl.nn import Accuracy, AdamW, Cosine, Mean, Metric

BYTES, LENGTH = 256, 256  # kinds of bytes, and the most that are read


class Block(nn.Module):
    """Attention to what is before, then a layer of its own for each place: x [N, L, D].

    Shapes: N texts, L bytes, D numbers of a byte, H heads of K numbers each.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mixed = nn.Linear(dim, dim)
        self.wide = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(self, x_NLD: Tensor) -> Tensor:
        x_NLD = x_NLD + self._drop(self.mixed(self._attend(self.norm1(x_NLD))))
        deep = self.narrow(functional.gelu(self.wide(self.norm2(x_NLD))))
        return x_NLD + self._drop(deep)

    def _attend(self, x_NLD: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)  # [N, H, L, K]
            for part in self.qkv(x_NLD).chunk(3, dim=2)
        )
        mixed_NHLK = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return mixed_NHLK.transpose(1, 2).flatten(2)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class GPT(nn.Module):
    """Logits [N, L, BYTES] of bytes [N, L], of at most LENGTH."""

    def __init__(self, dim: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, dim)
        self.places = nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.bytes.weight, std=0.02)
        for name, module in self.blocks.named_modules():
            if isinstance(module, nn.Linear):
                is_last = name.endswith(("mixed", "narrow"))
                nn.init.normal_(module.weight, std=0.02 / (math.sqrt(2 * layers) if is_last else 1))
                nn.init.zeros_(module.bias)

    def forward(self, text_NL: Tensor) -> Tensor:
        x_NLD = self.bytes(text_NL) + self.places[: text_NL.shape[1]]
        for block in self.blocks:
            x_NLD = block(x_NLD)
        return functional.linear(self.norm(x_NLD), self.bytes.weight)  # tied


def model(dim: int = 128, heads: int = 4, layers: int = 4, dropout: float = 0.0) -> nn.Module:
    return GPT(dim, heads, layers, dropout)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def optimizer() -> AdamW:
    # An epoch has 501 steps.
    schedule = Cosine(lr=2e-3, total_steps=501, warmup_steps=100, min_lr=1e-4)
    return AdamW(lr=schedule, betas=(0.9, 0.95), weight_decay=0.1)


def feed(records: Any, mode: str) -> tuple[Tensor, Tensor | None]:
    text = torch.from_numpy(np.asarray(records["text"]).astype(np.int64))
    if mode == "predict":
        return text, None
    return text, torch.from_numpy(np.asarray(records["label"]).astype(np.int64))


class ByteAccuracy(Accuracy):
    """The share of bytes that were told right."""

    def update(self, outputs: Any, labels: Any) -> None:
        super().update(outputs.flatten(0, 1), labels.flatten())


def metrics() -> dict[str, Metric]:
    return {"nats_per_byte": Mean(loss), "accuracy": ByteAccuracy()}
