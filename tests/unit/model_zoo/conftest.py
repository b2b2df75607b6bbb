"""One process that trains a definition, row by row: no servers, no workers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from edl.data.datasets import prepare
from edl.data.open import open_reader
from edl.data.reader import Columns, take
from edl.model_zoo.spec import Definition
from edl.nn import LocalRows, attach, torch_optimizer
from edl.nn.metrics import values
from edl.nn.optimizers import learning_rate


def read_all(path) -> Columns:
    reader = open_reader(str(path))
    (source,) = reader.sources()
    return reader.read(source.name, 0, source.records)


def fit(definition: Definition, train: Columns, test: Columns, epochs: int, batch: int) -> dict:
    """Train for `epochs` over `train`, and return the metrics on `test`."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, rows, spec = definition.model(), LocalRows(), definition.optimizer()
    attach(model, rows)
    optimizer = torch_optimizer(spec, [*model.parameters(), torch.nn.Parameter(torch.zeros(1))])
    shuffle, version = np.random.default_rng(0), 0
    model.train()
    for _ in range(epochs):
        order = shuffle.permutation(len(train))
        for start in range(0, len(order), batch):
            optimizer.zero_grad()
            features, labels = definition.feed(take(train, order[start : start + batch]), "train")
            definition.loss(model(features), labels).backward()
            optimizer.param_groups[0]["params"] += rows.new_parameters()
            optimizer.param_groups[0]["lr"] = learning_rate(spec, version)
            optimizer.step()
            version += 1
    metrics = definition.metrics()
    model.eval()
    with torch.no_grad():
        for start in range(0, len(test), 1024):
            features, labels = definition.feed(take(test, slice(start, start + 1024)), "evaluate")
            outputs = model(features)
            for metric in metrics.values():
                metric.update(outputs, labels)
    return values(metrics)


@pytest.fixture
def train() -> Callable[..., dict]:
    return fit


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Callable[[str], tuple[Columns, Columns]]:
    """Return the training and validation records of a data set that needs no download."""
    out = tmp_path_factory.mktemp("data")

    def load(name: str) -> tuple[Columns, Columns]:
        folder = prepare(name, out, echo=lambda line: None)
        suffix = ".csv" if (folder / "train.csv").exists() else ".npz"
        return read_all(folder / f"train{suffix}"), read_all(folder / f"validation{suffix}")

    return load


@pytest.fixture
def write(tmp_path) -> Callable[..., str]:
    """Return a function that writes a definition file and answers its path."""

    def write_file(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write_file
