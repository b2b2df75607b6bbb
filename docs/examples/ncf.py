"""The common part of plain_ncf.py and adaptive_ncf.py.

It has ratings, negatives, NeuMF (He et al. 2017, WWW).

A rating, however good, is an interaction; a film that a user has not rated is a negative. Of each
user the last interaction is kept for the test: is it among the first 10 of it and 99 negatives? How
often it is, is the hit rate.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from edl.data.datasets import prepare

NEGATIVES = 4  # of training, for each interaction
TEST_NEGATIVES = 99
FIRST = 10


def ratings(file: str | None) -> np.ndarray:
    """Return int64[N, 3]: user and item from 0 on, time.

    `file`: lines of user, item, rating and time, as in MovieLens' u.data, ratings.dat and
    ratings.csv. Without one: ml-100k, fetched as `edl data prepare` does.
    """
    if file:
        rows = [re.split(r"::|[\t,]", line) for line in Path(file).read_text().splitlines()]
        told = [(int(user), int(item), int(when)) for user, item, _, when in rows if user.isdigit()]
        found = np.array(told)
    else:
        folder = prepare("ml-100k", echo=lambda _: None)
        parts = [np.load(folder / f"{part}.npz") for part in ("train", "validation")]
        names = ("user_id", "item_id", "timestamp")
        found = np.stack([np.concatenate([part[name] for part in parts]) for name in names], 1)
    for column in (0, 1):
        found[:, column] = np.unique(found[:, column], return_inverse=True)[1]
    return found


class Interactions(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """(user, item, label) of the training: each interaction, and NEGATIVES negatives with it."""

    def __init__(self, rated: np.ndarray) -> None:
        self.users, self.items = rated[:, 0].max() + 1, rated[:, 1].max() + 1
        self._known = np.zeros((self.users, self.items), bool)
        self._known[rated[:, 0], rated[:, 1]] = True
        by_time = rated[np.lexsort((rated[:, 2], rated[:, 0]))]
        last = np.append(by_time[1:, 0] != by_time[:-1, 0], True)
        self._last, self._others = by_time[last], by_time[~last]
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Draw negatives, others in each epoch, the same in every process."""
        random = np.random.default_rng((1, epoch))
        user = self._others[:, 0].repeat(1 + NEGATIVES)
        item = self._others[:, 1].repeat(1 + NEGATIVES)
        label = np.arange(len(user)) % (1 + NEGATIVES) == 0
        item[~label] = self._unknown(user[~label], random)
        self._columns = torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(label)

    def test(self) -> TensorDataset:
        """Return user and items [1 + TEST_NEGATIVES]; the first is the one that was kept."""
        user, item = self._last[:, 0], self._last[:, 1:2]
        negatives = self._unknown(user.repeat(TEST_NEGATIVES), np.random.default_rng(0))
        items = np.hstack([item, negatives.reshape(-1, TEST_NEGATIVES)])
        return TensorDataset(torch.from_numpy(user), torch.from_numpy(items))

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        user, item, label = self._columns
        return user[index], item[index], label[index]

    def _unknown(self, user: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return for each user an item without interaction."""
        item = random.integers(0, self.items, len(user))
        while (again := self._known[user, item]).any():
            item[again] = random.integers(0, self.items, again.sum())
        return item


class NeuMF(nn.Module):
    """A generalised matrix factorisation beside a perceptron of three layers."""

    def __init__(self, users: int, items: int, width: int = 16) -> None:
        super().__init__()
        sizes = (users, width), (items, width), (users, 2 * width), (items, 2 * width)
        self.tables = nn.ModuleList(nn.Embedding(*size) for size in sizes)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.01)
        layers = [(nn.Linear(8 * width >> n, 4 * width >> n), nn.ReLU()) for n in (1, 2, 3)]
        self.perceptron = nn.Sequential(*(part for layer in layers for part in layer))
        self.last = nn.Linear(width + width // 2, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return logits of users and items of one shape."""
        one, two, three, four = (t(x) for t, x in zip(self.tables, (user, item) * 2, strict=True))
        deep = self.perceptron(torch.cat([three, four], -1))
        return self.last(torch.cat([one * two, deep], -1)).squeeze(-1)


def hits(scores: Tensor) -> int:
    """Return in how many rows [N, items] the first is among the FIRST best.

    Fewer than FIRST others are then at least as good as it.
    """
    return int(((scores[:, 1:] >= scores[:, :1]).sum(1) < FIRST).sum())
