r"""A small GPT that tells which byte of a text comes next; without tables: servers or all-reduce.

Data: Shakespeare's works (5 MB, public domain) in windows of 256 bytes; a fifth of the works is for
validation. Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3:
norms before each part and one at the end, the weights of the last layer of a residual branch
smaller by the number of branches; the output layer is the embedding (Press and Wolf 2017), and
attention is causal. Places are told by rotations of queries and keys (Su et al. 2021, "RoFormer",
section 3.2) instead of learnt vectors, with which so short a training stays at pairs of bytes.

Expected: at most 1.83 nats a byte, accuracy >= 0.45, after an epoch, of works that nobody trained
on (a count of four bytes each: 1.84 nats; gzip -9: 2.20).

    edl data prepare shakespeare --out data
    edl train --model_def gpt --training_data data/shakespeare/train.npz --num_epochs 1 \
        --validation_data data/shakespeare/validation.npz --minibatch_size 16 --strategy allreduce
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
_BASE = 1000.0  # the slowest turn takes 6,283 places: for texts of this length


class Block(nn.Module):
    """Attention to what is before, then a layer of its own for each place: x [N, L, D].

    Shapes: N texts, L bytes, D numbers of a byte, H heads of K numbers each.
    """

    turns: Tensor

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        rates = _BASE ** -torch.linspace(0, 1, dim // heads // 2 + 1)[:-1]
        angles_LK = torch.arange(LENGTH)[:, None] * rates  # half of the K
        self.register_buffer(
            "turns", torch.stack([angles_LK.cos(), angles_LK.sin()]), persistent=False
        )
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
            self._turned(query),
            self._turned(key),
            value,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return mixed_NHLK.transpose(1, 2).flatten(2)

    def _turned(self, x_NHLK: Tensor) -> Tensor:
        """Rotate each pair of numbers by an angle that grows with the place."""
        cos_LK, sin_LK = self.turns[:, : x_NHLK.shape[2]].to(x_NHLK.dtype)
        one, other = x_NHLK.chunk(2, dim=3)
        return torch.cat([one * cos_LK - other * sin_LK, one * sin_LK + other * cos_LK], dim=3)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class GPT(nn.Module):
    """Logits [N, L, BYTES] of bytes [N, L], of at most LENGTH."""

    def __init__(self, dim: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.bytes.weight, std=0.02)
        for name, module in self.blocks.named_modules():
            if isinstance(module, nn.Linear):
                is_last = name.endswith(("mixed", "narrow"))
                nn.init.normal_(module.weight, std=0.02 / (math.sqrt(2 * layers) if is_last else 1))
                nn.init.zeros_(module.bias)

    def forward(self, text_NL: Tensor) -> Tensor:
        x_NLD = self.bytes(text_NL)
        for block in self.blocks:
            x_NLD = block(x_NLD)
        return functional.linear(self.norm(x_NLD), self.bytes.weight)  # tied


def model(dim: int = 128, heads: int = 4, layers: int = 3, dropout: float = 0.0) -> nn.Module:
    return GPT(dim, heads, layers, dropout)


def shard_plan(model: GPT) -> list[nn.Module]:
    """Return the blocks: the embedding is used at both ends, so it is the model's own."""
    return list(model.blocks)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def optimizer() -> AdamW:
    # An epoch has 1,002 steps.
    schedule = Cosine(lr=2e-3, total_steps=1002, warmup_steps=100, min_lr=1e-4)
    return AdamW(lr=schedule, betas=(0.9, 0.95), weight_decay=0.1)


def feed(records: Any, mode: str) -> tuple[Tensor, Tensor | None]:
    text = torch.from_numpy(np.asarray(records["text"]).astype(np.int64))
    if mode == "predict":
        return text, None
    return text, torch.from_numpy(np.asarray(records["label"]).astype(np.int64))


class ByteAccuracy(Accuracy):
    """The share of bytes that were told right."""

    def update(self, outputs: Any, labels: Any, weight: Any = None) -> None:
        if weight is not None:  # of a record, so of each of its bytes
            weight = np.repeat(np.asarray(weight).reshape(-1), labels.shape[1])
        super().update(outputs.flatten(0, 1), labels.flatten(), weight)


def metrics() -> dict[str, Metric]:
    return {"nats_per_byte": Mean(loss), "accuracy": ByteAccuracy()}
