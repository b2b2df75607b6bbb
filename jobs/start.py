"""Start the master of a job of this machine: of a new one, or of one that stands."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ..common import paths, storage
from ..common.errors import JobError, UsageError
from ..common.identity import Identity, given_identity
from . import loggers
from .local import LocalJob

_MASTER = (sys.executable, "-m", "edl.master")


class Settings(Protocol):
    """The part of settings that all jobs have, whatever they do."""

    @property
    def job_name(self) -> str: ...
    def to_json(self) -> str: ...


def start(
    settings: Settings,
    master: Sequence[str] = _MASTER,
    identity: Identity | None = None,
    prepare: Callable[[Path], Settings] | None = None,
) -> tuple[LocalJob, subprocess.Popen[bytes]]:
    """Make the job's folder and start its master.

    `master`: what runs it. `identity`: by default the one in the environment, or a new one for this
    host. `prepare`: puts into the folder what the job begins with, and returns the settings that
    say so; where it raises there is no job.
    """
    job, lock = make(settings, identity, prepare)
    return _launch(job, lock, master)


def make(
    settings: Settings,
    identity: Identity | None = None,
    prepare: Callable[[Path], Settings] | None = None,
) -> tuple[LocalJob, int]:
    """Make a new job's folder; return the job, and its lock for the caller to leave or close."""
    folder, lock = paths.claim(settings.job_name)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock)
        (identity or given_identity() or Identity(secrets.token_hex(16))).save(folder)
        _write(folder, settings)
        if prepare is not None:
            undo.callback(shutil.rmtree, folder)
            _write(folder, prepare(folder))
        undo.pop_all()
    return LocalJob(folder), lock


def _write(folder: Path, settings: Settings) -> None:
    storage.write_file(folder / "settings.json", settings.to_json().encode())


def go_on(job: LocalJob) -> tuple[LocalJob, subprocess.Popen[bytes]]:
    """Start the master of a job that is queued, or that stands: from its journal, with snapshots.

    What still runs is adopted. Raises UsageError where it was started meanwhile or there is no room
    on the disk, and JobError where this version cannot read its journal: then its folder is as it
    was.
    """
    paths.check_room()
    try:
        lock = paths.lock(job.folder)
    except BlockingIOError as error:
        raise UsageError(f"The job {job.name!r} runs already: `edl status {job.name}`.") from error
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock)
        if paths.can_go_on(job.folder):
            _check(job)
        paths.put_aside_failure(job.folder)
        undo.pop_all()
    return _launch(job, lock, _MASTER)


def _check(job: LocalJob) -> None:
    command = [*_MASTER, "--job-dir", str(job.folder), "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2]
        raise JobError(last.removeprefix("edl: error: ") or f"the check of {job.folder} has ended")


def _launch(
    job: LocalJob, lock: int, master: Sequence[str]
) -> tuple[LocalJob, subprocess.Popen[bytes]]:
    """Start the master, which leaves with the lock, and beside it what writes to loggers."""
    try:
        child = spawn(job, [*master, "--job-dir", str(job.folder)], job.log, (lock,))
        if json.loads((job.folder / "settings.json").read_bytes()).get("logger"):
            loggers.start(job.folder)
        return job, child
    finally:
        os.close(lock)


def spawn(
    job: LocalJob, command: Sequence[str], log: Path, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a process of the job, which writes to the end of `log`.

    It has a session of its own: neither Ctrl-C nor a terminal that closes reaches it.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            env={
                **os.environ,
                **Identity.of_folder(job.folder).variables(),
                "EDL_JOB_DIR": str(job.folder),
                "EDL_JOB_NAME": job.name,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=pass_fds,
        )
