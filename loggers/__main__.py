"""`python -m edl.loggers --job-dir DIR`: write the job in DIR to its loggers, until it has ended.

What runs is a supervisor, which imports next to nothing; it starts the process that writes
(`--write`), and again when that is killed. When all is told or was given up, DIR/loggers/ended says
so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_COMMAND = (sys.executable, "-m", "edl.loggers", "--write")
_MOST_DEATHS = 5  # in a row, each within
_SHORT_LIFE_S = 10.0  # of its start


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m edl.loggers", description="A job's loggers.")
    parser.add_argument("--job-dir", required=True, type=Path, help="the job's folder")
    parser.add_argument("--write", action="store_true", help="without a supervisor")
    given = parser.parse_args(arguments)
    job_dir = given.job_dir.absolute()
    if not given.write:
        return supervise(job_dir)
    from ..common.errors import EdlError
    from .process import write

    try:
        return write(job_dir)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


def supervise(job_dir: Path, command: Sequence[str] = _COMMAND) -> int:
    """Have the job written; return the exit code. `command` writes it; a test gives another."""
    from ..jobs import notes
    from ..jobs.loggers import ENDED, FOLDER

    # The folder itself, whatever becomes of its name: a new job of that name moves it away.
    descriptor = os.open(job_dir, os.O_RDONLY)
    here = Path(f"/proc/self/fd/{descriptor}")
    deaths = 0
    while True:
        started = time.monotonic()
        code = subprocess.call(
            [*command, "--job-dir", str(here)], stdin=subprocess.DEVNULL, pass_fds=(descriptor,)
        )
        if code >= 0:
            break
        print(f"the loggers' process was killed by signal {-code}", file=sys.stderr, flush=True)
        deaths = deaths + 1 if time.monotonic() - started < _SHORT_LIFE_S else 0
        if deaths == _MOST_DEATHS:
            break
    if code not in (0, 1):
        notes.leave(here, "the loggers' process has ended: logs/loggers.log; training goes on")
    (here / FOLDER / ENDED).touch()
    os.close(descriptor)
    return code


if __name__ == "__main__":
    from ..common.process import end_with

    end_with(main)
