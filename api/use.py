"""`edl.evaluate` and `edl.predict`: jobs that use a checkpoint, as the commands of these names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from ..common.errors import UsageError
from ..common.ragged import concatenated
from ..common.settings import JobSettings
from ..data.reader import Columns
from ..data.schema import NO_SCHEMA, Schema
from .job import Job
from .result import Result
from .run import ended

if TYPE_CHECKING:
    from numpy.typing import NDArray


def evaluate(
    checkpoint: object = None,
    validation_data: object = None,
    *,
    definition: object = None,
    **given: Any,
) -> dict[str, Any]:
    """Return the metrics of a checkpoint on validation_data, as `edl evaluate` tells them.

    `checkpoint`: a Result, a Job, or a path, a URL or a job's name. `definition`, as of edl.train:
    by default the one that it was trained with. The rest are the flags of `edl evaluate`. Raises
    UsageError and TypeError before anything is started, JobFailed.
    """
    given = _given(checkpoint, {"validation_data": validation_data}, given)
    return ended("evaluate", definition, given).metrics


def predict(
    checkpoint: object = None,
    prediction_data: object = None,
    *,
    definition: object = None,
    **given: Any,
) -> Predictions:
    """Return what a checkpoint's model answers for prediction_data, as `edl predict` writes it.

    Without `output` it is written into the job's folder. `id_columns`: columns of the data that
    stand beside the outputs. The rest is as of `edl.evaluate`.
    """
    given = _given(checkpoint, {"prediction_data": prediction_data}, given)
    result = ended("predict", definition, given)
    path = str(result.status.get("predictions") or "")
    return Predictions(path, int(result.status["records_done"]), result)


def _given(checkpoint: object, data: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the flags with the two that have places of their own."""
    if isinstance(checkpoint, Result):
        in_pods = given.get("runtime") == "kubernetes"
        checkpoint = checkpoint.checkpoint if in_pods else checkpoint.reachable()
    elif isinstance(checkpoint, Job):
        checkpoint = checkpoint.name
    elif checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise UsageError(
            f"checkpoint is a {type(checkpoint).__name__}: give a Result, a Job, a path, a URL or "
            "a job's name."
        )
    if checkpoint is not None:
        if given.get("checkpoint_dir_for_init"):
            raise UsageError("--checkpoint_dir_for_init and a checkpoint: leave out one of them.")
        given = {**given, "checkpoint_dir_for_init": os.fspath(checkpoint)}
    return {**given, **data}


_IN_TEXT = ("text", "int64", "float64")  # types that are read from CSV as they were written


@dataclass(frozen=True)
class Predictions:
    """The predictions of a job: their folder, and what stands there.

    An iteration yields them part by part, in the order of the data, each as columns by name: source
    and record (which record of which file it is), those of id_columns, and the model's outputs.
    """

    path: str
    records: int
    result: Result = field(repr=False)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        folder = Path(self.path)
        if not self.result.path or not folder.is_dir():
            raise UsageError(
                f"The predictions of job {self.result.name!r} are not here ({self.path or '-'}): "
                "copy them from its pods (`edl cp`)."
            )
        for file in sorted(folder.glob("records-*.npy")):
            who = np.load(file)
            part = {"source": who["source"], "record": who["record"]}
            task = file.stem.removeprefix("records-")
            for start in (f"ids-{task}", f"part-{task}"):
                for array in sorted(folder.glob(f"{start}*.npy")):
                    name = array.stem.removeprefix(start).removeprefix(".")
                    part[unquote(name) or "output"] = np.load(array)
            yield part
        for form in ("csv", "parquet"):
            if next(folder.glob(f"part-*.{form}"), None) is not None:
                yield from _read(folder, form, self._schema())

    def _schema(self) -> Schema:
        """Return what the job knows of the columns of the data that stand beside the outputs."""
        path = Path(self.result.path)
        try:
            told = json.loads((path / "describe.json").read_bytes()).get("schema")
        except FileNotFoundError:
            return NO_SCHEMA
        names = JobSettings.of_job(path).id_columns.split(",")
        known = Schema.from_json(told).only(names) if told else NO_SCHEMA
        return known.only(each.name for each in known if str(each.type) in _IN_TEXT)

    def table(self) -> dict[str, NDArray[Any]]:
        """Return all of them as columns by name."""
        parts = list(self)
        return {name: concatenated([part[name] for part in parts]) for name in parts[0]}


def _read(folder: Path, form: str, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the tables of a folder, all with the same types."""
    from ..data.open import open_reader

    reader = open_reader(str(folder), format=form, partitions=False, schema=schema)
    for source in reader.sources():
        found = reader.read(source.name, 0, source.records)
        assert isinstance(found, Columns)  # as all tables are read
        yield dict(found)
