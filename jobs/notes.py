"""Notes to the people of a job from processes that are none of its own, such as its loggers.

Each is a file in the job's folder, whole or not there; the master tells it as an event and removes
it. What comes after the master has ended is told by who follows the job.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ..common.files import write_file

_FOLDER = Path("loggers", "notes")
_MOST_NBYTES = 2000


def leave(job_dir: Path, text: str) -> None:
    """Leave a note. What cannot be written is lost: its writer has it in a log as well."""
    folder = job_dir / _FOLDER
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{time.time_ns()}.txt", text.encode()[:_MOST_NBYTES])


def take(job_dir: Path) -> list[str]:
    """Return the notes, in their order, and remove them."""
    taken: list[str] = []
    try:
        there = sorted((job_dir / _FOLDER).glob("[0-9]*.txt"))
        for path in there:
            text = path.read_text(errors="replace")
            path.unlink()
            taken.append(text)
    except OSError:  # the rest is there the next time
        pass
    return taken
