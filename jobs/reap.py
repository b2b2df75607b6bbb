"""Children of this process that nobody follows: jobs that a program started and goes on without.

A child whose end nobody takes stays as a zombie; and who ends before it serves, over a definition
that is broken for example, leaves the reason to whoever started it.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from .job import INTERRUPTED
from .local import LocalJob
from .local_source import died

_reapers: dict[Path, threading.Thread] = {}


def reap(job: LocalJob, child: subprocess.Popen[bytes]) -> None:
    """Take the end of a job's child when it comes, in a thread, and leave a result if it did not.

    The job outlives this process all the same.
    """

    def run() -> None:
        code = child.wait()
        if code > 0 and code != INTERRUPTED and job.result() is None and job.address() is None:
            died(job, code)
        _reapers.pop(job.folder, None)

    thread = threading.Thread(target=run, name=f"reap {job.name}", daemon=True)
    _reapers[job.folder] = thread
    thread.start()


def settle(job: LocalJob, timeout_s: float) -> None:
    """Wait until what is to be said of a job that has ended has been said, if we started it."""
    thread = _reapers.get(job.folder)
    if thread is not None:
        thread.join(timeout_s)
