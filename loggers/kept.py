"""The cursor of one logger in the job's folder, and that of the job which this one goes on with.

In the job's folder, `loggers`:

- `run`: the run's id
- `<logger>.json`: its cursor, replaced as a whole; `<logger>.told`: that it does not work was told
- `<run>.jsonl`, `tensorboard/<run>/`: what these two write where there is no --output
- `lock`: held by the one process that writes; `ended`: all is told, or was given up
- `notes/`: what is to be told to the job's people (jobs/notes.py)
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..common import paths, storage
from ..jobs.loggers import FOLDER
from .core import Cursor
from .logger import State

log = logging.getLogger(__name__)

LOCK = "lock"
RUN = "run"
_OTHER_ENDS_S = 60.0  # the process of the job before tells what is left within (process.py)
_LOOK_S = 0.1


@dataclass(frozen=True)
class Kept:
    """A cursor, of which job's history it is, and what its logger wants to know again."""

    job: str = ""
    cursor: Cursor = field(default_factory=Cursor)
    state: State = field(default_factory=dict)

    def of(self, job: str) -> Kept:
        """Return what is kept for the history of this job: another's begins at its beginning."""
        if self.job == job:
            return self
        return dataclasses.replace(self, job=job, cursor=dataclasses.replace(self.cursor, offset=0))


def load(folder: Path, name: str) -> Kept:
    """Return what is kept of a logger; nothing where there is none or it is torn."""
    try:
        found = json.loads((folder / f"{name}.json").read_bytes())
        return Kept(**{**found, "cursor": Cursor(**found["cursor"])})
    except FileNotFoundError:
        return Kept()
    except (ValueError, TypeError, KeyError) as error:
        log.warning("cursor -> begun anew logger=%s error=%s", name, error)
        return Kept()


def save(folder: Path, name: str, kept: Kept) -> None:
    storage.write_file(folder / f"{name}.json", json.dumps(dataclasses.asdict(kept)).encode())


def is_first_time(folder: Path, name: str) -> bool:
    """Note that it was told that a logger does not work; return whether it was not before."""
    try:
        (folder / f"{name}.told").touch(exist_ok=False)
    except OSError:
        return False
    return True


def begin(job_dir: Path, run: str) -> Path:
    """Return the folder of a job's loggers, with what the job before has left of the same run."""
    folder = job_dir / FOLDER
    if (folder / RUN).exists():
        return folder
    before = _before(job_dir, run)
    if before is not None:
        with locked(before, time.monotonic() + _OTHER_ENDS_S):
            for path in before.iterdir():
                if path.suffix in (".json", ".jsonl"):
                    shutil.copyfile(path, folder / path.name)
                elif path.name == "tensorboard":
                    shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    storage.write_file(folder / RUN, run.encode())  # last: what was killed before is begun anew
    return folder


def _before(job_dir: Path, run: str) -> Path | None:
    """Return the folder of the last job's loggers that wrote to this run; None: it is the first."""
    found = []
    for place in ("jobs", "old"):
        for path in (paths.home() / place).glob(f"*/{FOLDER}/{RUN}"):
            with contextlib.suppress(OSError):
                if not path.parent.parent.samefile(job_dir) and path.read_text() == run:
                    found.append((path.stat().st_mtime, path.parent))
    return max(found)[1] if found else None


@contextlib.contextmanager
def locked(folder: Path, until: float) -> Iterator[None]:
    """Hold the lock of a folder; from `until` on, by the monotonic clock, go on without it."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOOK_S)
        else:
            log.warning("lock -> not free folder=%s", folder)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process writes, and be the one that does.

    A process that waits is ready to go on where the one that writes is killed.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
