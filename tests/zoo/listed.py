"""Films whose genres and tags are lists of any length, and a reader that has some of them."""

import numpy as np
import torch
from torch import nn

from edl.common.hashing import hash64
from edl.common.ragged import Ragged
from edl.data.reader import Columns, Source
from edl.nn import Adagrad, Embedding

NAMES = np.array(["Drama", "Crime", "War", "Film-Noir", "007", "", "Übel", "7"])


def records(numbers):
    """Return the films of these numbers, of none to three genres each."""
    numbers = np.asarray(numbers, np.int64)
    lengths = numbers % 4
    owners = np.repeat(numbers, lengths)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Columns(
        {
            "user": numbers * 7 % 31,
            "genres": Ragged.of(NAMES[(owners + 3 * places) % len(NAMES)], lengths),
            "seen": Ragged.of(owners * 5 % 40 + places, lengths),
            "score": Ragged.of((owners / 8 + places).astype(np.float32), lengths),
            "label": (numbers % 5).astype(np.float64),
        }
    )


class Films:
    """A reader of 64 films, wherever it is pointed to."""

    def sources(self):
        return [Source("films", 64)]

    def read(self, source, start, end, skip=()):
        return records([n for n in range(start, end) if n not in skip])


def reader(path, **params):
    return Films()


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = Embedding("users", 3)
        self.genres = Embedding("genres", 4, combiner="mean")
        self.seen = Embedding("seen", 2, combiner="sum")
        self.out = nn.Linear(10, 1)

    def forward(self, features):
        parts = [self.users(features["user"]), self.genres(features["genres"])]
        parts += [self.seen(features["seen"]), features["score"].sum(1, keepdim=True)]
        return self.out(torch.cat(parts, dim=1)).squeeze(1)


def model():
    return Listed()


def loss(outputs, labels):
    return nn.functional.mse_loss(outputs, labels)


def optimizer():
    return Adagrad(lr=0.5)


def feed(records, mode):
    """Return each list element by element: ids of genres by their names, the scores as they are."""
    genres = records["genres"]
    features = {
        "user": torch.from_numpy(np.array(records["user"])),
        "genres": genres.replace(hash64("genre", genres.values)).padded(),
        "seen": records["seen"].padded(),
        "score": records["score"].padded(0.0),
    }
    return features, torch.from_numpy(np.array(records["label"], np.float32))
