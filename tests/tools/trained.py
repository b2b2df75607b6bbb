"""A model with tables (tests/zoo/ranker.py), trained a little on servers of this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edl.common import storage
from edl.model_zoo.spec import Definition, load_definition
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
        """Return what `edl predict` computes: a trainer's outputs, on servers that restored it."""
        stores = empty(shards)
        for store in stores:
            snapshot.restore(store, storage.load(self.checkpoint), new_job=True)
        spec = model_spec(self.make_model(), self.definition.optimizer(), SEED)
        with serving(shards, spec, stores=stores) as client:
            trainer = PsTrainer(self.make_model, None, client, spec, device=CPU)
            outputs: Tensor = trainer.outputs(features, trainer.prepare(features), "")
            return outputs


def features_of(definition: Definition, first: int, last: int) -> Any:
    """Return the features of the records [first, last); those from KNOWN on were never trained."""
    return definition.feed({"record": np.arange(first, last)}, "predict")[0]


def train(folder: Path, shards: int, steps: int = 4, **params: Any) -> Trained:
    """Train the ranker on the records below KNOWN; its checkpoint has so many shards."""
    definition = load_definition("ranker", str(ZOO), params)
    made = Trained(storage.version_directory(folder, steps), empty(shards), definition)
    spec = model_spec(made.make_model(), definition.optimizer(), SEED)
    with serving(shards, spec, stores=made.stores) as client:
        trainer = PsTrainer(made.make_model, definition.loss, client, spec, device=CPU)
        for number in range(steps):
            records = {"record": (np.arange(16) * 7 + 3 * number) % KNOWN}
            features, labels = definition.feed(records, "train")
            prepared = trainer.prepare(features)
            pull = trainer.begin(prepared, None)
            gradients = trainer.gradients(features, labels, prepared, pull, (number,))
            trainer.push(number, 1, 0, 16, gradients)
    settings = {
        "job_name": "ranker",
        "strategy": "ps",
        "model_def": "ranker",
        "model_zoo": str(ZOO),
        "model_params": params,
    }
    write_checkpoint(made.stores, made.checkpoint, {"settings": settings})
    return made
