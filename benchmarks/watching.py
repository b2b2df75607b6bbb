"""A job that a benchmark watches: by its status, and by the times in its logs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

from edl.jobs import local as jobs


def follow(
    job: jobs.LocalJob, until: Callable[[jobs.Status], object], deadline_s: float
) -> jobs.Status:
    """Return the first status for which `until` holds.

    Raises TimeoutError where none comes in time or can any more, Unreachable where nobody answers.
    """
    give_up = time.monotonic() + deadline_s
    while job.address() is None and not job.is_over() and time.monotonic() < give_up:
        time.sleep(0.05)
    client = job.client(patience_s=30.0)
    revision, status = 0, jobs.Status()
    try:
        while time.monotonic() < give_up and status.get("exit_code") is None:
            revision, status = client.status(revision, wait_s=1.0)
            if until(status):
                return status
    finally:
        client.close()
    raise TimeoutError(f"waited {deadline_s:g} s in vain: {status}\n{job.last_words()}")


def timed(log: Path | Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield the time of a line (seconds since the epoch), and its rest.

    Lines without a time are passed over.
    """
    lines = log.read_text(errors="replace").splitlines() if isinstance(log, Path) else log
    for line in lines:
        stamp, _, rest = line.partition(" ")
        try:
            yield datetime.fromisoformat(stamp).timestamp(), rest
        except ValueError:
            continue


def first(
    log: Iterable[tuple[float, str]], pattern: str, since: float
) -> tuple[float, re.Match[str]] | None:
    """Return the first line from then on (to the millisecond) in which the pattern is found."""
    for at, rest in log:
        if at >= since - 0.001 and (found := re.search(pattern, rest)):
            return at, found
    return None
