"""`python -m edl.worker --describe`: check the definition, count the data, before anything starts.

The master runs this once, so that it never runs user code itself and a mistake in the definition or
the data is one line at once, not a crash of every worker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

from ..common.criterion import criterion
from ..common.errors import DataError, UsageError
from ..common.settings import JobSettings
from ..data.reader import RecordReader
from ..model_zoo.spec import Definition, load_definition
from ..nn.replace import replace_big_embeddings
from ..proto import master_pb2 as pb


def load(settings: JobSettings) -> Definition:
    """The job's definition. Raises DefinitionError."""
    return load_definition(
        settings.model_def,
        settings.model_zoo,
        settings.model_params,
        training=settings.command == "train",
    )


def open_readers(definition: Definition, settings: JobSettings) -> dict[int, RecordReader]:
    """The readers that the command needs, by task kind. Raises UsageError or DataError."""
    from ..data.open import open_reader

    paths = {
        pb.TRAIN: settings.training_data if settings.command == "train" else "",
        pb.EVALUATE: settings.validation_data if settings.command != "predict" else "",
        pb.PREDICT: settings.prediction_data if settings.command == "predict" else "",
    }
    make = definition.reader if definition.reader is not None else open_reader
    return {kind: make(path, **settings.data_reader_params) for kind, path in paths.items() if path}


def model_maker(definition: Definition, settings: JobSettings) -> Callable[[], torch.nn.Module]:
    """Makes the model, with the same first values each time."""

    def make_model() -> torch.nn.Module:
        torch.manual_seed(settings.seed)
        model = definition.model()
        if settings.ps_embedding_threshold:
            replace_big_embeddings(model, settings.ps_embedding_threshold)
        return model

    return make_model


def be_deterministic() -> None:
    """The same numbers each time: one thread, and no operation that is known to vary."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what CUDA's matrices ask for
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def describe(settings: JobSettings, job_dir: Path) -> None:
    """Write `job_dir`/describe.json: the sources and their records, what the definition has."""
    definition = load(settings)
    if settings.batch_rule == "adaptive" and definition.has("batch_rule"):
        raise UsageError(
            f"{definition.name} has a batch_rule of its own, which goes before --batch_rule adaptive: "
            "leave out one of them"
        )
    definition.model()
    result: dict[str, object] = {}
    names: dict[int, str] = {
        pb.TRAIN: "training",
        pb.EVALUATE: "validation",
        pb.PREDICT: "prediction",
    }
    for kind, reader in open_readers(definition, settings).items():
        sources = reader.sources()
        if not sum(source.records for source in sources):
            raise DataError(f"the {names[kind]} data has no records: check the path and the format")
        result[names[kind]] = [[source.name, source.records] for source in sources]
    result["has"] = list(definition.optional)
    if settings.command == "train":
        result["metrics"] = _metrics(definition, settings)
    partial = job_dir / ".describe.json"
    partial.write_text(json.dumps(result))
    os.replace(partial, job_dir / "describe.json")


def _metrics(definition: Definition, settings: JobSettings) -> dict[str, str]:
    """What is best of each, as far as it says: min or max. Raises UsageError where it must, and
    does not."""
    asked = {
        name: criterion(text, f"--{name}", patience)
        for name, text, patience in (
            ("keep_best", settings.keep_best, False),
            ("early_stopping", settings.early_stopping, True),
        )
        if text
    }
    if not asked:
        return {}
    metrics = definition.metrics()
    known = {name: getattr(metric, "best", "") for name, metric in metrics.items()}
    for flag, wanted in asked.items():
        name = wanted.metric if wanted.metric in metrics else wanted.metric.partition("/")[0]
        if name not in metrics:
            raise UsageError(
                f"--{flag} {wanted.metric}: {definition.name} has no such metric; "
                f"metrics() has {', '.join(metrics) or 'none'}"
            )
        if not wanted.best and known[name] not in ("min", "max"):
            raise UsageError(
                f"--{flag} {wanted.metric}: the metric does not say which value is best: write "
                f"{wanted.metric}:min or {wanted.metric}:max"
            )
    return known
