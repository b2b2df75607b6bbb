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

from ..common import paths
from ..common.criterion import criterion
from ..common.errors import CheckpointError, DataError, DefinitionError, EdlError, UsageError
from ..common.identity import Identity
from ..common.settings import JobSettings
from ..common.storage import Manifest
from ..common.storage import load as load_manifest
from ..common.teacher_address import split_addresses
from ..data.content import contents
from ..data.reader import RecordReader, schema_of
from ..distill import cache
from ..distill.kserve.link import check_addresses
from ..distill.roll_call import call_roll
from ..model_zoo.check import check_definition
from ..model_zoo.reading import open_data
from ..model_zoo.spec import SIGNATURES, Definition, load_definition
from ..nn.by_name import to_dict
from ..nn.device import others_seeded
from ..nn.model_spec import ModelSpec, another_model
from ..nn.optimizers import SGD
from ..nn.replace import prepare
from ..proto import master_pb2 as pb
from ..registry.identity import VARIABLE, teachers_identity
from . import id_columns, schemas
from .model import model_spec
from .predictions import check_output

_KINDS: dict[str, int] = {
    "training": pb.TRAIN,
    "validation": pb.EVALUATE,
    "prediction": pb.PREDICT,
}


def load(settings: JobSettings) -> Definition:
    """Return the job's definition.

    Raises DefinitionError.
    """
    return load_definition(
        settings.model_def,
        settings.model_zoo,
        settings.model_params,
        training=settings.command == "train",
        optimizer_params=settings.optimizer_params,
        teacher_params=settings.teacher_params,
    )


def open_readers(definition: Definition, settings: JobSettings) -> dict[int, RecordReader]:
    """Return the readers that the command needs, by task kind, with the job's columns.

    Raises UsageError or DataError.
    """
    schema = schemas.of_settings(settings)
    return {
        _KINDS[name]: open_data(definition, path, settings.data_reader_params, schema)
        for name, path in settings.data.items()
    }


def model_maker(definition: Definition, settings: JobSettings) -> Callable[[], torch.nn.Module]:
    """Return a function that makes the model, with the same first values each time."""
    stay: set[str] = set()
    if settings.command != "train" and settings.checkpoint_dir_for_init:
        # What all-reduce has trained is no table, however big.
        manifest = load_manifest(settings.checkpoint_dir_for_init)
        stay = {tensor["name"] for tensor in manifest.model["dense"]}

    def make_model() -> torch.nn.Module:
        torch.manual_seed(settings.seed)
        with others_seeded(settings.seed):
            model = definition.model()
        prepare(model, settings.table_threshold, stay)
        return model

    return make_model


def be_deterministic() -> None:
    """Have torch compute the same numbers each time: in one thread, by steady operations."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what CUDA's matrices ask for
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def _begin(job_dir: Path, what: str) -> None:
    """Write what is done now, so that the master can say what it waits for."""
    (job_dir / paths.DESCRIBING).write_text(what, encoding="utf-8")


def describe(settings: JobSettings, job_dir: Path) -> None:
    """Write `job_dir`/describe.json: the sources and their records, what the definition has."""
    _begin(job_dir, f"importing the definition {settings.model_def}")
    definition = load(settings)
    if settings.batch_rule == "adaptive" and definition.has("batch_rule"):
        raise UsageError(
            f"{definition.name} has a batch_rule of its own, which goes before --batch_rule "
            "adaptive: leave out one of them"
        )
    _begin(job_dir, f"making the model of {settings.model_def}")
    notes = _check(definition, settings)
    _begin(job_dir, paths.COUNTING)
    path = settings.resume or settings.checkpoint_dir_for_init
    manifest = load_manifest(path) if path else None
    result = _counted(definition, settings, manifest, notes)
    result["notes"] = notes
    result["has"] = list(definition.optional)
    result["optimizer"] = _check_checkpoint(definition, settings, manifest)
    if settings.command == "train":
        result["metrics"] = _metrics(definition, settings)
    partial = job_dir / ".describe.json"
    partial.write_text(json.dumps(result))
    os.replace(partial, job_dir / "describe.json")


def _counted(
    definition: Definition, settings: JobSettings, manifest: Manifest | None, notes: list[str]
) -> dict[str, object]:
    """Return the sources and their records, and the schema of them all, which is found once.

    What is found on the data to train on holds for those that are read beside it. `notes` get what
    the user should know of it. Raises UsageError, DataError.
    """
    result: dict[str, object] = {}
    known = schemas.known(settings, manifest)
    schema = known.schema
    for name, path in settings.data.items():
        reader = open_data(definition, path, settings.data_reader_params, schema)
        sources = reader.sources()
        if not sum(source.records for source in sources):
            raise DataError(f"the {name} data has no records: check the path and the format")
        result[name] = [[source.name, source.records] for source in sources]
        if name == "training":
            schema = schema_of(reader).joined(schema)
            schemas.check_resumed(settings, known, schema)
            notes += schemas.strange(settings, known, reader, sources)
        schema = schema.joined(schema_of(reader))
        if name == "training" and definition.reader is None:
            format = settings.data_reader_params.get("format")
            result["contents"] = contents(path, format, [each.name for each in sources])
        if settings.id_columns:
            first = schemas.first_of(reader, sources)
            names = settings.id_columns.split(",")
            id_columns.check(names, first, schema, settings.prediction_format)
    notes += schemas.notes_of(settings, known, schema)
    result["schema"] = schema.to_json()
    return result


def _check(definition: Definition, settings: JobSettings) -> list[str]:
    """Check all that needs no records, and return what the user should know.

    Raises DefinitionError, and UsageError where predictions would go nowhere.
    """
    trains = settings.command == "train"
    if trains:
        _check_teachers(definition, settings)
    found = check_definition(
        definition,
        strategy=settings.strategy,
        threshold_bytes=settings.table_threshold,
    )
    for each in found:
        if each.level == "error":
            # Some sentences begin with the place already.
            told = each.detail if definition.file in each.detail else f"{each.what}: {each.detail}"
            raise DefinitionError(told)
    if settings.command == "predict":
        if settings.output:
            check_output(Path(settings.output), settings.prediction_format)
        elif settings.id_columns:
            raise UsageError("--id_columns are written beside the outputs: give --output too.")
        elif definition.process_predictions is None:
            raise UsageError(
                "the predictions would go nowhere: give --output, or the definition a "
                "process_predictions"
            )
    return [f.detail for f in found if trains and f.level == "warning" and f.what != "feed"]


def _check_teachers(definition: Definition, settings: JobSettings) -> None:
    """Check that the teachers and the definition fit each other. Raises UsageError."""
    fixed = split_addresses(settings.teachers)
    check_addresses(fixed)
    where = definition.file
    if settings.most_teachers and not definition.has("teacher"):
        raise DefinitionError(
            f"{where}: --num_teachers {settings.most_teachers}, but the definition lacks teacher. "
            f"Expected: {SIGNATURES['teacher']}"
        )
    if settings.has_teachers and not definition.takes_teacher:
        raise DefinitionError(
            f"{where}: loss takes no teacher's answers. Expected: def loss(outputs, labels, "
            "teacher) -> Tensor"
        )
    if settings.teacher_cache:
        _check_cache(
            Path(settings.teacher_cache), bool(settings.most_teachers or settings.teachers)
        )
    alone = not settings.has_teachers and settings.without_teachers != "hard_labels"
    if alone and definition.has("teacher"):
        raise DefinitionError(
            f"{where}: the definition has a teacher, and the job has none: give --num_teachers N, "
            "or --without_teachers hard_labels to train without"
        )
    if settings.has_teachers:
        identity = teachers_identity()
        # Of pods, those of workers alone may have the variable.
        if os.environ.get(VARIABLE) or settings.runtime == "local":
            _call_roll(fixed, identity)


def _call_roll(fixed: list[str], identity: Identity) -> None:
    try:
        call_roll(fixed, identity)
    except EdlError as error:
        raise UsageError(f"--teachers: {error}") from error


def _check_cache(folder: Path, has_teachers: bool) -> None:
    """Check that there is a cache to learn from, or to write to. Raises UsageError."""
    if not has_teachers:
        cache.only(folder)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--teacher_cache {folder} is not to be had: {error.strerror}: give another folder"
        ) from error


def _check_checkpoint(
    definition: Definition, settings: JobSettings, manifest: Manifest | None
) -> object:
    """Check that the checkpoint that the job begins with is of this model.

    Returns what the master should know of the optimizer. Raises CheckpointError.
    """
    optimizer = definition.optimizer() if definition.has("optimizer") else SGD(lr=0.0)
    if manifest is not None:
        mine = model_spec(model_maker(definition, settings)(), optimizer, settings.seed)
        theirs = ModelSpec.of_checkpoint(manifest.model, manifest.place)
        if (mine.dense, mine.tables) != (theirs.dense, theirs.tables):
            raise CheckpointError(another_model(str(manifest.place), mine, theirs))
        if settings.resume and mine.optimizer != theirs.optimizer:
            raise CheckpointError(
                f"--resume goes on with the optimizer of {manifest.place}, {theirs.optimizer}, "
                f"and the definition says {mine.optimizer}: make it as it was, or start a new job "
                "from the checkpoint's parameters with --checkpoint_dir_for_init"
            )
    return to_dict(optimizer)


def _metrics(definition: Definition, settings: JobSettings) -> dict[str, str]:
    """Return min or max, whichever is best, of each metric that says so.

    Raises UsageError where one must say it and does not.
    """
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
