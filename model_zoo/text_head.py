"""Few labels for taught_text: draw them, and fit the head of its teacher on them.

    python -m edl.model_zoo.text_head --texts data/bbc-news/train --labels 5 --seed 0 \
        --encoder FOLDER --out few

Writes in `few`: texts.csv (all texts; the label is -1 where it was not drawn), labelled.csv (the
drawn ones alone, for a student without a teacher), and head.safetensors: a logistic regression of
the encoder's vectors of the drawn ones.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ..common.errors import DataError, EdlError, UsageError
from ..data.open import open_reader
from ..data.reader import Columns
from .taught_text import Encoder

_C = 100.0  # of scikit-learn's LogisticRegression: vectors of length 1 need little of a bound
_STEPS = 500


def draw(labels: NDArray[np.int64], number: int, seed: int) -> NDArray[np.int64]:
    """Return the labels, -1 but for `number` of each class.

    Raises UsageError where a class has fewer.
    """
    rng = np.random.default_rng(seed)
    few = np.full_like(labels, -1)
    for label in np.unique(labels):
        there = np.flatnonzero(labels == label)
        if len(there) < number:
            raise UsageError(f"--labels {number}: class {label} has {len(there)} texts only.")
        few[rng.choice(there, number, replace=False)] = label
    return few


def fit(vectors: Tensor, labels: Tensor) -> nn.Linear:
    """Return the logistic regression of labels 0, 1, ... by vectors [N, D], regularised by L2."""
    classes = int(labels.max()) + 1
    head = nn.Linear(vectors.shape[1], classes).double()
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    search = torch.optim.LBFGS(
        head.parameters(), max_iter=_STEPS, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def far() -> Tensor:
        search.zero_grad()
        missed = functional.cross_entropy(head(vectors.double()), labels, reduction="sum")
        value: Tensor = missed + head.weight.square().sum() / (2 * _C)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(far)  # type: ignore[no-untyped-call]
    return head.float()


def read(path: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the texts and labels of data with these two columns. Raises DataError."""
    reader = open_reader(path)
    texts: list[str] = []
    labels: list[NDArray[np.int64]] = []
    for source in reader.sources():
        records = reader.read(source.name, 0, source.records)
        if not isinstance(records, Columns) or not {"text", "label"} <= set(records.names):
            raise DataError(f"{path} has no columns `text` and `label`.")
        texts += [" ".join(str(text).split()) for text in records["text"]]
        labels.append(np.asarray(records["label"]).astype(np.int64))
    return texts, np.concatenate(labels)


def write(path: Path, texts: Sequence[str], labels: NDArray[np.int64]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["text", "label"])
        rows.writerows(zip(texts, labels.tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="text_head", description=__doc__)
    parser.add_argument("--texts", required=True, help="data with the columns text and label")
    parser.add_argument("--encoder", required=True, help="folder of a sentence encoder")
    parser.add_argument("--tokens", type=int, default=128, help="read of a text")
    parser.add_argument("--labels", type=int, default=5, help="of each class")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    texts, labels = read(given.texts)
    few = draw(labels, given.labels, given.seed)
    known = np.flatnonzero(few >= 0)
    drawn = [texts[number] for number in known]
    with torch.no_grad():
        vectors = Encoder(given.encoder, given.tokens).eval()(drawn)
    head = fit(vectors, torch.from_numpy(few[known]))
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "texts.csv", texts, few)
    write(given.out / "labelled.csv", drawn, few[known])
    save_file(head.state_dict(), given.out / "head.safetensors")
    print(f"{given.out}: texts.csv ({len(texts)}), labelled.csv ({len(drawn)}), head.safetensors")


if __name__ == "__main__":
    try:
        main()
    except EdlError as error:
        sys.exit(str(error))
