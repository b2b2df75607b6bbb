"""`edl train --init_dense --init_rows`: a job begins with what was trained elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common.errors import UsageError
from ..common.settings import JobSettings
from .checkpoint import values_from

if TYPE_CHECKING:
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
            type=click.Path(path_type=Path),
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

    definition = load_definition(settings.model_def, settings.model_zoo, settings.model_params)
    where, threshold = folder / "begin", settings.table_threshold
    make(definition, given, where, threshold_bytes=threshold, seed=settings.seed)
    return dataclasses.replace(settings, checkpoint_dir_for_init=str(where))
