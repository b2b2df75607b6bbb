"""The sources of a job's status: its master where it has one, else what is left in its folder.

A source runs in a thread of its own. A job of this machine is asked by long polls, each of which
waits for a newer status; one of a cluster is looked at, for its status is an object there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..common import paths
from ..common.errors import EdlError, Unreachable, UsageError
from ..jobs.history import Line, Reader
from ..jobs.job import ENDED, Job, Status
from ..jobs.local import LocalJob
from .asides import Asides, Found
from .model import Model

if TYPE_CHECKING:
    from ..master.client import MasterClient

_NEWER_S = 2.0  # a long poll; a thread that is to end waits for it
_PAUSE_S = 0.02  # between two status, of which a master makes four a second at most
_LOOK_S = 1.0  # where no master is: a folder has no event in the standard library


@dataclass(frozen=True)
class Heard:
    """A word of a job. `at`: when its master said it; None: it did not. `anew`: another job's.

    `asides`: what others say of it.
    """

    status: Status
    lines: Sequence[Line] = field(default=())
    at: float | None = None
    anew: bool = False
    asides: Found = (None, None)


class Source(Protocol):
    """A source of what is heard of one job."""

    def run(self, tell: Callable[[Heard], None], over: threading.Event) -> None:
        """Tell whatever is new, until `over`."""

    def close(self) -> None:
        """Let go of the job. From any thread: a call that waits for news ends."""


class LocalSource:
    """A job of this machine, in any condition."""

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._folder = _identity(job.folder)
        self._history = Reader(job.folder)
        self._client: MasterClient | None = None
        self._revision = 0
        self._left: tuple[str, Status, str] | None = None  # of which journal, what, why not

    def run(self, tell: Callable[[Heard], None], over: threading.Event) -> None:
        before: Status | None = None
        try:
            while not over.is_set():
                heard, pause_s = self.hear(_NEWER_S)
                if over.is_set():  # what is heard while all is let go of is no news
                    return
                if heard.anew or heard.lines or heard.status != before:
                    tell(heard)
                    before = heard.status
                over.wait(pause_s)
        finally:
            self.close()

    def hear(self, wait_s: float = 0.0) -> tuple[Heard, float]:
        """Return what is heard now, and how long to wait before the next time."""
        anew = self._is_another()
        status, answered = self._status(wait_s)
        at = time.time() if answered else None
        pause_s = _PAUSE_S if answered else _LOOK_S
        return Heard(status, self._history.lines(), at, anew), pause_s

    def _is_another(self) -> bool:
        """Tell whether another job has taken the folder's name since."""
        found = _identity(self._job.folder)
        if found == self._folder:
            return False
        self._folder, self._history, self._revision = found, Reader(self._job.folder), 0
        self.close()
        return True

    def _status(self, wait_s: float) -> tuple[Status, bool]:
        """Return the status, and whether a master answered it."""
        job = self._job
        try:
            if (result := job.result()) is not None:
                return result, False
            if job.is_over() or job.address() is None:
                return self._without_master(), False
            client = self._client  # which `close` may take away meanwhile
            if client is None:
                client = self._client = job.client()
                self._revision = 0
            self._revision, status = client.status(self._revision, wait_s)
            return status, True
        except Unreachable as error:
            self.close()
            return self._without_master(str(error)), False
        except EdlError as error:
            return {"job_name": job.name, "state": "dead", "message": str(error)}, False

    def _without_master(self, silence: str = "") -> Status:
        """Return the status of a job whose master does not serve yet, or is gone."""
        job = self._job
        if (result := job.result()) is not None:
            return result
        if silence and not job.is_over():
            return {"job_name": job.name, "state": "silent", "message": silence}
        if job.address() is None:
            status = job.status()
        else:
            message = f"its master is gone; see {job.log}"
            status = {"job_name": job.name, "state": "dead", "message": message}
            status |= job.left_to_go_on()
        return self._dead(status) if status["state"] == "dead" else status

    def _dead(self, status: Status) -> Status:
        """Return the status of a job whose processes are gone, out of its journal, read once."""
        from ..master.remains import status_left  # with much of a master, for a job that is dead

        journal = self._job.folder / paths.JOURNAL
        stamp = str([_identity(Path(f"{journal}{suffix}")) for suffix in ("", "-wal")])
        if self._left is None or self._left[0] != stamp:
            left, why = {}, ""
            try:
                left = status_left(self._job.folder) or {}
            except EdlError as error:
                why = f"; {error}"
            self._left = stamp, left, why
        _, left, why = self._left
        return {**left, **status, "message": f"{status['message']}{why}"}

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class LookedAt:
    """A job that is looked at every `every_s`."""

    def __init__(self, job: Job, every_s: float) -> None:
        self._job = job
        self._every_s = every_s

    def run(self, tell: Callable[[Heard], None], over: threading.Event) -> None:
        before: Status | None = None
        while not over.is_set():
            heard = self.hear()
            if heard.status != before:
                tell(heard)
                before = heard.status
            over.wait(self._every_s)

    def close(self) -> None:
        """Do nothing: a look waits for no news."""

    def hear(self) -> Heard:
        """Return what is heard now."""
        try:
            status = self._job.look()
        except Unreachable as error:
            return Heard({"job_name": self._job.name, "state": "silent", "message": str(error)})
        except EdlError as error:
            return Heard({"job_name": self._job.name, "state": "dead", "message": str(error)})
        if status is None:
            gone = {"job_name": self._job.name, "state": "dead", "message": "it was deleted"}
            return Heard(gone)
        return Heard(status, at=None if status.get("state") in ENDED else time.time())


def source_of(job: Job, every_s: float) -> LocalSource | LookedAt:
    """Return the source of a job, wherever it runs."""
    return LocalSource(job) if isinstance(job, LocalJob) else LookedAt(job, every_s)


def model_of(job: Job, asides: Asides | None = None) -> Model:
    """Return what is known of a job now, heard once."""
    model = Model()
    source = source_of(job, 0.0)
    if isinstance(source, LookedAt):
        heard = source.hear()
    else:
        try:
            heard = source.hear()[0]
        finally:
            source.close()
    if asides is not None:
        heard = replace(heard, asides=asides.of(job, heard.status))
    take(model, heard)
    return model


def take(model: Model, heard: Heard) -> None:
    """Have a model know what was heard. The status of a job that says nothing is the last one."""
    model.history(heard.lines)
    silent = heard.status.get("state") == "silent"
    model.hear({**(model.status if silent else {}), **heard.status}, heard.at, *heard.asides)


class FolderJobs:
    """The one job in a folder, which may lie anywhere."""

    starting = "train"
    goals = ("done", "failed", "stopped", "ended")
    look_every_s = _LOOK_S

    def __init__(self, folder: Path) -> None:
        """Find the job. Raises UsageError where there is none."""
        found = folder.absolute()
        if not (found / "settings.json").is_file():
            raise UsageError(
                f"--from {folder} is no folder of a job: it has no settings.json. Those of this "
                f"machine are in {paths.jobs_folder()}."
            )
        self._job = LocalJob(found)
        self._source = LocalSource(self._job)

    @property
    def place(self) -> str:
        return str(self._job.folder)

    def find(self, name: str | None) -> LocalJob:
        if name not in (None, self._job.name):
            raise UsageError(f"There is no job {name!r} here, but {self._job.name!r}.")
        return self._job

    def names(self) -> list[str]:
        return [self._job.name]

    def statuses(self) -> list[Status]:
        try:
            return [{**self._source.hear()[0].status, "job_name": self._job.name}]
        finally:
            self._source.close()


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what tells a folder or a file from another that has taken its name."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino, 0 if path.is_dir() else found.st_mtime_ns
    return None
