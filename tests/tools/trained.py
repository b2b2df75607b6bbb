"""A model with tables (tests/zoo/ranker.py), trained a little on servers of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edl.common import storage
from edl.model_zoo.spec import Definition, load_definition
from edl.nn.by_name import Optimizers
from edl.ps.books.store import Store
from edl.ps.snapshots import cut as snapshot
from edl.worker.model import model_spec
from edl.worker.servers.trainer import PsTrainer

from .jobs import ZOO
from .servers import empty, serving, write_checkpoint

CPU, SEED, KNOWN = torch.device("cpu"), 7, 40


@dataclass
class Trained:
    """A checkpoint, and what wrote it."""

    checkpoint: Path
    stores: list[Store]
    definition: Definition

    def make_model(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.definition.model()

    def predicted(self, features: Any, shards: int = 1) -> Tensor:
        """Return what `edl predict` computes of these."""
        optimizer = self.definition.optimizer()
        return predicted(self.checkpoint, self.make_model, optimizer, features, shards)


def predicted(
    checkpoint: Path,
    make_model: Callable[[], nn.Module],
    optimizer: Optimizers,
    features: Any,
    shards: int = 1,
) -> Tensor:
    """Return what `edl predict` computes: a trainer's outputs, on servers that have restored it."""
    stores = empty(shards)
    for store in stores:
        snapshot.restore(store, storage.load(checkpoint), new_job=True)
    spec = model_spec(make_model(), optimizer, SEED)
    with serving(shards, spec, stores=stores) as client:
        trainer = PsTrainer(make_model, None, client, spec, device=CPU)
        outputs: Tensor = trainer.outputs(features, trainer.prepare(features), "")
        return outputs


def records_of(definition: Definition, numbers: NDArray[np.int64]) -> Any:
    """Return the records of these numbers: for the ranker, one of the zoo, or by its `records`."""
    if own := getattr(definition.module, "records", None):
        return own(numbers)
    columns = getattr(definition.module, "COLUMNS", ())
    found: dict[str, Any] = {name: numbers * 3 + place for place, name in enumerate(columns)}
    if texts := getattr(definition.module, "CATEGORIES", ()):  # the census
        found = {name: (numbers * 3 + place).astype(np.str_) for place, name in enumerate(texts)}
        others = (*definition.module.NUMBERS, "capital_gain", "capital_loss")
        found |= {name: numbers * 5 % 90 + place for place, name in enumerate(others)}
    return {**found, "record": numbers, "label": numbers % 2}


def features_of(definition: Definition, first: int, last: int) -> Any:
    """Return the features of the records [first, last); those from KNOWN on were never trained."""
    return definition.feed(records_of(definition, np.arange(first, last)), "predict")[0]


def train(
    folder: Path,
    shards: int,
    steps: int = 4,
    model_def: str = "ranker",
    optimizer: Optimizers | None = None,
    more: Mapping[str, Any] | None = None,
    **params: Any,
) -> Trained:
    """Train a definition on the records below KNOWN; its checkpoint has so many shards.

    `more`: settings of the job.
    """
    definition = load_definition(model_def, str(ZOO), params)
    made = Trained(storage.version_directory(folder, steps), empty(shards), definition)
    train_on(made, range(steps), optimizer)
    settings = {
        "job_name": "ranker",
        "strategy": "ps",
        "model_def": model_def,
        "model_zoo": str(ZOO),
        "model_params": params,
        **(more or {}),
    }
    write_checkpoint(made.stores, made.checkpoint, {"settings": settings})
    return made


def train_on(made: Trained, numbers: Iterable[int], optimizer: Optimizers | None = None) -> None:
    """Train what is on the stores for steps of these numbers, which nobody has made yet."""
    definition = made.definition
    spec = model_spec(made.make_model(), optimizer or definition.optimizer(), SEED)
    with serving(len(made.stores), spec, stores=made.stores) as client:
        trainer = PsTrainer(made.make_model, definition.loss, client, spec, device=CPU)
        for number in numbers:
            records = records_of(definition, (np.arange(16) * 7 + 3 * number) % KNOWN)
            features, labels = definition.feed(records, "train")
            prepared = trainer.prepare(features)
            pull = trainer.begin(prepared, None)
            gradients = trainer.gradients(features, labels, prepared, pull, (number,))
            trainer.push(number, 1, 0, 16, gradients)
