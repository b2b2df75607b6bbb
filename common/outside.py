"""Check what a job needs of this machine: files, folders, checkpoints, a name that is free.

Everything is only looked at: nothing is started here, and what is written, to see whether it can
be, is removed at once.
"""

from __future__ import annotations

import dataclasses
import glob
import importlib.util
import json
import os
import secrets
from pathlib import Path
from typing import Any

from . import claims, paths, storage
from .contradictions import Say
from .errors import CheckpointError, UsageError
from .extras import install
from .locations import DATA, is_file, is_local, parts
from .places import Place
from .settings import JobSettings
from .watching_settings import LOGGERS


def check_outside(settings: JobSettings, say: Say) -> None:
    """Refuse what cannot be read, written or found. Raises UsageError."""
    if is_file(settings.model_def) and not Path(settings.model_def).is_file():
        raise UsageError(
            f"{say('model_def')}: there is no file {settings.model_def}; `edl zoo list` shows the "
            "definitions that are there."
        )
    for name in settings.loggers:
        if (library := LOGGERS[name]) and importlib.util.find_spec(library) is None:
            raise UsageError(
                f"{say('logger')} {name} needs {library}, which is not installed: {install(name)}."
            )
    if settings.model_zoo and not Path(settings.model_zoo).is_dir():
        raise UsageError(
            f"{say('model_zoo')}: {settings.model_zoo} is no folder; `edl zoo init` makes one."
        )
    for name in DATA.values():
        for path in parts(getattr(settings, name)):
            _check_readable(path, say(name))
    for name in ("output", "checkpoint_dir", "snapshot_dir", "delta_dir"):
        path = getattr(settings, name)
        if path and is_local(path) and (why := paths.why_unwritable(path)):
            raise UsageError(f"{say(name)}: {why}: choose another folder.")
        if path and not is_local(path):
            _check_store(path, say(name))
    own = paths.job_folder(settings.job_name)
    if settings.resume and Path(settings.resume).is_relative_to(own.absolute()):
        raise UsageError(
            f"{say('job_name')}: the checkpoint {settings.resume} lies in the folder of a job of "
            "that name, which the new one would replace: choose another name, or give none."
        )
    check_alone(settings, say)
    _check_unused(settings, say)
    if settings.checkpoint_dir_for_init:
        _check_checkpoint(settings.checkpoint_dir_for_init, say("checkpoint_dir_for_init"))
    if paths.is_locked(own):
        raise UsageError(
            f"{say('job_name')}: a job named {settings.job_name!r} is running already: choose "
            f"another name, watch it (`edl status {settings.job_name}`) or end it "
            f"(`edl stop {settings.job_name}`)."
        )


def written(job_folder: Path) -> dict[str, Any]:
    """Return the settings in a job's folder, of any version. Raises UsageError."""
    path = job_folder / "settings.json"
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error


def check_alone(settings: JobSettings, say: Say) -> None:
    """Refuse a folder to which another job writes. Raises UsageError."""
    places = claims.folders(dataclasses.asdict(settings))
    claims.check_alone(places, paths.job_folder(settings.job_name), say)


def _check_unused(settings: JobSettings, say: Say) -> None:
    """Refuse a folder that another job's checkpoints are in.

    Those of two jobs in one folder would be taken for each other's. Raises UsageError.
    """
    folder = settings.checkpoint_dir
    begun_from = settings.resume or settings.checkpoint_dir_for_init
    there = _found(folder, say("checkpoint_dir")) if folder else []
    if settings.command != "train" or not there:
        return
    here = Place(folder)
    begun = Place(begun_from) if begun_from else None
    if begun is not None and here in (begun, begun.parent, begun.parent.parent):
        if begun in (here, there[-1]):
            return
        newest = storage.latest(folder)  # the last one may be torn
        if newest is not None and newest.place == begun:
            return
        raise UsageError(
            f"{say('checkpoint_dir')}: {folder} holds newer checkpoints than {begun_from}, and "
            "those of this job would be taken for older ones: name another folder, or remove the "
            "newer."
        )
    raise UsageError(
        f"{say('checkpoint_dir')}: {folder} holds the checkpoints of an earlier job: go on with "
        f"it (`edl train --resume {folder}`), begin anew from its parameters "
        f"(--checkpoint_dir_for_init {folder}), name another folder, or remove it."
    )


def _check_store(url: str, said: str) -> None:
    """Refuse a URL of a kind that nothing here can open, or where nothing can be written."""
    name = f".edl-{secrets.token_hex(4)}"
    try:
        place = Place(url)
        place.write(name, b"edl looks whether it can write here")
        place.remove([name])
    except UsageError as error:
        raise UsageError(f"{said}: {error}") from error
    except OSError as error:
        raise UsageError(f"{said}: {error}.") from error


def _found(folder: str, said: str) -> list[Place]:
    try:
        return storage.find_checkpoints(folder)
    except OSError as error:
        raise UsageError(f"{said}: {error}.") from error


def _check_checkpoint(path: str, said: str) -> None:
    """Check that one of the checkpoints is whole; checksums are for the servers, which read all."""
    problem: CheckpointError | None = None
    for directory in reversed(_found(path, said) or [Place(path)]):
        try:
            storage.read_manifest(directory, checksums=False)
        except CheckpointError as error:
            problem = problem or error
        else:
            return
    raise UsageError(
        f"{said}: {problem}. Name a folder of checkpoints (the --checkpoint_dir of an earlier "
        "job), or one version-... in it."
    ) from problem


def _check_readable(path: str, said: str) -> None:
    if not path or not is_local(path):
        return
    if not os.path.lexists(path) and glob.has_magic(path):
        if not glob.glob(path, recursive=True):
            raise UsageError(f"{said}: no file matches {path}.")
    elif not os.path.exists(path):
        raise UsageError(f"{said}: there is no file or folder {path}.")
    elif not os.access(path, os.R_OK):
        raise UsageError(f"{said}: {path} cannot be read: check its permissions.")
