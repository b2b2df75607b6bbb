"""The status of a job whose processes are all gone, out of the journal that its master left.

A copy of the journal is read, as its next master would: the job's own stays as it is, and can be
gone on with.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from ..common import finite, paths
from ..common.clock import MonotonicClock
from ..common.identity import Identity
from ..common.settings import JobSettings
from . import opening
from .core import MEMORY
from .groups.servers import RemoteServers
from .master import Master

_FILES = ("settings.json", "describe.json", paths.JOURNAL, f"{paths.JOURNAL}-wal")


def status_left(job_dir: Path) -> dict[str, Any] | None:
    """Return the last status that the journal tells; None where no master had begun.

    Raises EdlError where the journal cannot be read.
    """
    if not paths.can_go_on(job_dir):
        return None
    with tempfile.TemporaryDirectory(prefix="edl-remains-") as made:
        copy = Path(made)
        for name in _FILES:
            if (path := job_dir / name).is_file() and not path.is_symlink():
                shutil.copyfile(path, copy / name)
        settings = JobSettings.of_job(copy)
        books = opening.resume(settings, copy)
        if books is None:
            return None
        try:
            return _status(settings, copy, books)
        finally:
            books.journal.close()


def _status(settings: JobSettings, folder: Path, books: opening.Books) -> dict[str, Any] | None:
    memory = books.journal.get(MEMORY)
    if memory is None:
        return None
    master = Master(
        settings=settings,
        job_dir=folder,
        books=books,
        connect=lambda addresses: RemoteServers(addresses, "", 0),  # which nobody calls
        clock=MonotonicClock(),
        identity=Identity(""),
    )
    try:
        master.resume("", memory)
        status: dict[str, Any] = finite.loads(master.status_json())
    except opening.UNREADABLE as error:
        raise opening.not_of_this_version(folder, error) from error
    finally:
        master.loop.close()
        master.group.close()
    return _as_left(status)


def _as_left(status: dict[str, Any]) -> dict[str, Any]:
    """Take out of a status what its reading has put there: that a master runs, and hears others."""
    events = status["events"][:-1]  # the last: another master has begun
    for row in (*status["workers"], *status["servers"], *status["teachers"]):
        row |= {"state": "gone", "heartbeat_age_s": None, "pid": None}
    masters = status["restarts"]["master"] - 1
    return {
        **status,
        "state": "dead",
        "events": events,
        "restarts": {**status["restarts"], "master": masters},
        "records_per_s": 0.0,
        "started_s_ago": max((each["t"] for each in events), default=0.0),
    }
