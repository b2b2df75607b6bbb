"""`python -m edl.master --job-dir DIR`: the master of one job, from DIR/settings.json to its end.

What runs is a supervisor (supervisor.py), which imports next to nothing; it starts the master
itself (`--serve`, serve.py) as a process of its own, and again when that is killed. Exit codes: 0
done, 1 failed, 2 usage, 3 finished with quarantined data, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.nursery import Nursery


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m edl.master", description="The master of a job."
    )
    parser.add_argument("--job-dir", required=True, type=Path, help="folder with settings.json")
    parser.add_argument("--serve", action="store_true", help="without a supervisor")
    parser.add_argument("--after", default="", help="how the master before this one ended")
    parser.add_argument("--stop", default="", help="stop the job at once, for this reason")
    parser.add_argument("--settings", type=Path, help="folder with settings.json, in a pod")
    parser.add_argument("--checked", type=Path, help="folder that check.py has filled, in a pod")
    parser.add_argument("--check", action="store_true", help="whether it can go on; no more")
    given = parser.parse_args(arguments)
    job_dir = given.job_dir.absolute()
    if given.check:
        return _check(job_dir)
    if given.serve:
        # First of all: it imports torch while we import the master, and that is what takes longest.
        nursery = None if given.settings else _nursery(job_dir)
        from .serve import serve

        try:
            return serve(job_dir, given.after, given.stop, given.settings, given.checked, nursery)
        finally:
            if nursery is not None:
                nursery.close()
    from ..durable.supervisor import COMMAND, supervise

    told = ["--settings", str(given.settings)] if given.settings else []
    told += ["--checked", str(given.checked)] if given.checked else []
    return supervise(job_dir, [*COMMAND, *told], ends_with_pod=bool(told))


def _check(job_dir: Path) -> int:
    """Tell why a job that stands cannot be gone on with, if so; nothing of it is touched."""
    from ..common.errors import EdlError
    from .opening import check

    try:
        check(job_dir)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _nursery(job_dir: Path) -> Nursery | None:
    """Return the nursery of a local job's workers; None where `serve` tells what is wrong."""
    from ..common.errors import EdlError
    from ..common.settings import JobSettings
    from ..runtime.nursery import Nursery

    try:
        return Nursery.of_job(JobSettings.of_job(job_dir), job_dir)
    except EdlError:
        return None


if __name__ == "__main__":
    from ..common.process import end_with

    end_with(main)
