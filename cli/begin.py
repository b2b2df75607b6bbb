"""How a job begins: its settings, the values that it begins with, its place in the queue.

Whoever starts jobs comes by here: the command line, and `edl.train` in Python (api/run.py).
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common import paths
from ..common.errors import UsageError
from ..common.listen import own_host
from ..common.outside import check_alone
from ..common.resolve import resolve
from ..common.settings import JobSettings
from .checkpoint import values_from
from .output import say
from .paths import LocalPath

if TYPE_CHECKING:
    from ..jobs.local import LocalJob
    from ..jobs.queue import Wishes
    from ..serve.make import Given


def begin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about values that were trained elsewhere."""
    for option in (
        click.option(
            "--init_partial", is_flag=True, help="What --init_dense lacks has first values."
        ),
        click.option(
            "--init_rows",
            multiple=True,
            metavar="TABLE=FILE",
            help="Begin with these rows of a table: Parquet (id, weight), safetensors or .npz "
            "(ids, weight).",
        ),
        click.option(
            "--init_dense",
            type=LocalPath(path_type=Path),
            metavar="FILE",
            help="Begin with these dense values: safetensors, by the names of state_dict().",
        ),
    ):
        command = option(command)
    return command


def values_given(flags: dict[str, Any]) -> Given | None:
    """Take the values that a job begins with out of the flags; None: there are none."""
    names = ("init_dense", "init_rows", "init_partial")
    dense, rows, partial = (flags.pop(name, None) for name in names)
    return values_from(dense, rows or (), bool(partial), "init_")


def check_begin(settings: JobSettings, stands: bool, is_queued: bool) -> None:
    """Raise UsageError where a job cannot begin with values of files of this machine."""
    if stands or settings.resume or settings.checkpoint_dir_for_init:
        raise UsageError(
            "--init_dense and --init_rows are of a job that begins with nothing else: leave out "
            "--resume and --checkpoint_dir_for_init."
        )
    if settings.runtime == "kubernetes" or is_queued:
        raise UsageError(
            "--init_dense and --init_rows are of a job that begins here and now: make a checkpoint "
            "of the files (`edl checkpoint make`), and give --checkpoint_dir_for_init."
        )


def begin_with(settings: JobSettings, given: Given, folder: Path) -> JobSettings:
    """Put the values into a job's folder, and return the settings with which it begins so."""
    from ..model_zoo.spec import load_definition
    from ..serve.make import make

    definition = load_definition(
        settings.model_def,
        settings.model_zoo,
        settings.model_params,
        optimizer_params=settings.optimizer_params,
    )
    where, threshold = folder / "begin", settings.table_threshold
    make(definition, given, where, threshold_bytes=threshold, seed=settings.seed)
    return dataclasses.replace(settings, checkpoint_dir_for_init=str(where))


def settled(
    command: str, values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[JobSettings, LocalJob | None]:
    """Return a job's settings, and the job that stands and goes on; None: a new one begins.

    Raises UsageError.
    """
    from ..jobs.local import LocalJob

    resumed = str(values.get("resume") or "")
    before = LocalJob((paths.named_job(resumed) or Path(resumed)).absolute())
    if command == "train" and [*values] == ["resume"] and paths.stands(before.folder):
        return JobSettings.of_job(before.folder), before
    return resolve(command, values, origins), None


def begin_here(
    settings: JobSettings,
    before: LocalJob | None,
    init: Given | None,
    prepare: Callable[[Path], JobSettings] | None = None,
) -> tuple[LocalJob, subprocess.Popen[bytes]]:
    """Start a job on this machine, or go on with the one that stands.

    `prepare`: puts more into the new job's folder, and returns the settings that say so.
    """
    from ..jobs.start import go_on, start

    own_host()  # where it has none, nothing is begun that could only wait
    if before is not None:
        check_alone(settings, "--{}".format)
        _check_data(before.folder, settings)
        _find_schema(before.folder, settings)
        return go_on(before)

    def put(folder: Path) -> JobSettings:
        made = settings if prepare is None else prepare(folder)
        return made if init is None else begin_with(made, init, folder)

    return start(settings, prepare=put)


def _check_data(folder: Path, settings: JobSettings) -> None:
    """Compare a standing job's data with what was counted. Raises UsageError, DataError."""
    from ..common.contents import compared
    from ..data.content import contents
    from ..data.files import forget_seen

    try:
        described = json.loads((folder / "describe.json").read_bytes())
        before = [(str(name), str(what), str(when)) for name, what, when in described["contents"]]
    except (OSError, ValueError, TypeError, KeyError):  # of an earlier version, or not so far
        return
    format = settings.data_reader_params.get("format")
    now = contents(settings.training_data, format, [source for source, _, _ in before])
    for note in compared(
        before,
        now,
        "the job has counted its records",
        "Put back what was there. Or go on with a checkpoint of the job (`edl train --resume "
        "CHECKPOINT --allow_changed_data`), if you mean it.",
    ):
        say(note, err=True)
    forget_seen(folder)


def _find_schema(folder: Path, settings: JobSettings) -> None:
    """Find the columns' types of a standing job that a version before began, which found none.

    Raises UsageError, DataError.
    """
    from ..common.files import write_file
    from ..data.open import open_reader
    from ..data.reader import schema_of
    from ..data.schema_given import schema_given

    try:
        described = dict(json.loads((folder / "describe.json").read_bytes()))
    except (OSError, ValueError, TypeError):  # not so far, or damaged, which its master says
        return
    if "schema" in described or "reader" in described.get("has", ["reader"]):
        return
    schema = schema_given(settings.schema)
    for path in settings.data.values():
        reader = open_reader(path, schema=schema, **settings.data_reader_params)
        schema = schema.joined(schema_of(reader))
    write_file(
        folder / "describe.json", json.dumps({**described, "schema": schema.to_json()}).encode()
    )
    if schema:
        say(
            f"{folder.name} was begun by a version that kept no types of columns: they are those "
            "that its data have now, and stay so from here on",
            err=True,
        )


def wishes_given(flags: dict[str, Any]) -> Wishes | None:
    """Take a queued job's wishes out of the flags; None: it is not queued. Raises UsageError."""
    given = {name: flags.pop(name) for name in ("priority", "deadline", "user", "max_ps")}
    if not flags.pop("queue"):
        if said := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"--{said[0]} is of the queue: add --queue, or leave it out.")
        return None
    from ..jobs.queue import Wishes

    return Wishes.of(
        given["priority"] or 0, given["deadline"], given["user"] or "", given["max_ps"] or 0
    )
