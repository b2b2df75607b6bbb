"""The process that writes a job of this machine to its loggers, as those see it who start the job.

It is `python -m edl.loggers`, nobody's child: it outlives who starts and who cancels the job, so
that a run is always ended, and goes by itself once it has told what is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from . import notes

FOLDER = "loggers"  # in the job's folder
ENDED = "ended"  # in that: all is told, or was given up
LOG = "loggers.log"
_LOOK_S = 0.05
_PATIENCE_S = 10.0  # of who follows a job, after its end
_COMMAND = (sys.executable, "-m", "edl.loggers")
# A shell that ends at once leaves it to init, so that nobody has to take its end.
_NOBODYS = ("/bin/sh", "-c", '"$@" &', "sh")


def start(job_dir: Path) -> None:
    """Start it, for a job whose lock is held. One that still runs goes on, and this one waits."""
    folder = job_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / ENDED).unlink(missing_ok=True)
    # Without the job's own variables: it is none of those that end with the job.
    environment = {k: v for k, v in os.environ.items() if k not in ("EDL_JOB_DIR", "EDL_TOKEN")}
    try:
        with open(job_dir / "logs" / LOG, "ab") as output:
            subprocess.run(
                [*_NOBODYS, *_COMMAND, "--job-dir", str(job_dir)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.SubprocessError) as error:  # the job has begun, and is worth more
        notes.leave(job_dir, f"the loggers' process does not start: {error}; training goes on")
        (folder / ENDED).touch()


def wait_for_end(job_dir: Path, patience_s: float = _PATIENCE_S) -> list[str]:
    """Wait, after the job's end, until all is told; return what its people are to be told."""
    folder = job_dir / FOLDER
    if not folder.is_dir():
        return []
    until = time.monotonic() + patience_s
    while not (folder / ENDED).exists():
        if time.monotonic() > until:
            late = f"its loggers still write, and end by themselves: {job_dir / 'logs' / LOG}"
            return [*notes.take(job_dir), late]
        time.sleep(_LOOK_S)
    return notes.take(job_dir)
