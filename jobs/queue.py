"""Jobs of this machine that wait for the scheduler to begin them (`edl train --queue`)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..common import paths, storage
from ..common.errors import EdlError, UsageError
from ..common.foreign import must_be, parse, read_plain
from ..common.settings import JobSettings
from ..common.times import rfc3339
from . import tries
from .local import LocalJob
from .start import go_on, make

_MOST_PRIORITY = 10**9  # of Kubernetes' classes; pieces of Kueue's come 10^9 below


@dataclass(frozen=True)
class Wishes:
    """The place of a job among others. `deadline`: RFC 3339; None: there is none."""

    priority: int = 0  # those of a higher one come first
    deadline: str | None = None
    user: str = ""  # whose quota it counts for
    max_ps: int = 0  # servers that it may be given; 0: it keeps those that it begins with

    @classmethod
    def of(cls, priority: int, deadline: str | None, user: str, max_ps: int) -> Wishes:
        """Return wishes as a user says them; the deadline in any form of ISO 8601.

        Raises UsageError for a deadline that is no time, and a priority that no class could have.
        """
        if abs(priority) > _MOST_PRIORITY:
            raise UsageError(
                f"--priority {priority}: give a number from {-_MOST_PRIORITY} to {_MOST_PRIORITY}."
            )
        if deadline is None:
            return cls(priority, None, user, max_ps)
        try:
            when = datetime.datetime.fromisoformat(deadline).timestamp()
        except ValueError as error:
            raise UsageError(
                f"--deadline {deadline} is no time: write 2026-12-24T18:00:00Z, for example."
            ) from error
        return cls(priority, rfc3339(when), user, max_ps)


@dataclass(frozen=True)
class Ask:
    """The wishes of a queued job to the scheduler."""

    submitted: int  # seconds since the epoch
    minimum: int  # workers without which it does not begin
    maximum: int
    servers: int = 1  # that it begins with
    wishes: Wishes = Wishes()
    preemptible: bool = True  # else it keeps what it has once it runs


def bounds(settings: JobSettings, wishes: Wishes) -> tuple[int, int]:
    """Return the fewest and the most workers of a queued job, whose most is `num_workers`.

    Raises UsageError where it wants more workers, or servers, at least than at most, or has no
    servers that could change.
    """
    if wishes.max_ps:
        _check_servers(settings, wishes.max_ps)
    minimum = max(1, settings.min_workers)
    if minimum > settings.num_workers:
        raise UsageError(
            f"--min_workers {minimum} is above --num_workers {settings.num_workers}, the most that "
            "a queued job is given: raise one or lower the other."
        )
    return minimum, settings.num_workers


def put(
    settings: JobSettings,
    submitted: int,
    wishes: Wishes = Wishes(),
    prepare: Callable[[Path], JobSettings] | None = None,
) -> LocalJob:
    """Put a job into the queue. Its `num_workers` are the most that it is given.

    `prepare`: as of jobs/start.py.

    Raises UsageError where a job of its name runs, and as `bounds` does.
    """
    minimum, maximum = bounds(settings, wishes)
    job, lock = make(settings, prepare=prepare)
    try:
        servers, may_lose = max(1, settings.num_ps), settings.preemptible
        ask = Ask(submitted, minimum, maximum, servers, wishes, may_lose)
        storage.write_file(job.folder / paths.QUEUED, json.dumps(dataclasses.asdict(ask)).encode())
    finally:
        os.close(lock)
    return job


def _check_servers(settings: JobSettings, most: int) -> None:
    if settings.command != "train" or settings.strategy != "ps" or settings.deterministic:
        raise UsageError(
            "--max_ps is of jobs that train with --strategy ps, and are not --deterministic: only "
            "these can go on with other servers: leave it out."
        )
    if most < settings.num_ps:
        raise UsageError(
            f"--max_ps {most} is below --num_ps {settings.num_ps}, that the job begins with: raise "
            "one or lower the other."
        )


def ask_of(job: LocalJob) -> Ask | None:
    """Return what the job asked when it was queued; None for one that never was.

    Raises UsageError, which names the file, where that cannot be read.
    """
    path = job.folder / paths.QUEUED
    try:
        values = parse(read_plain(path))
        numbers = dict.fromkeys(("submitted", "minimum", "maximum", "servers"), int)
        must_be(values, {**numbers, "wishes": dict})
        return Ask(**{**values, "wishes": Wishes(**values["wishes"])})
    except FileNotFoundError:
        return None
    except (TypeError, ValueError, EdlError) as error:
        raise UsageError(f"{path} is no ask of a queued job: {error}") from error


def begin(
    job: LocalJob, num_workers: int, num_ps: int = 0, now: int = 0
) -> subprocess.Popen[bytes]:
    """Begin a queued job with so many workers and servers; 0 servers are those that it stated.

    `now`: s since the epoch. Raises UsageError where it was begun, or taken back, meanwhile.
    """
    if not paths.is_queued(job.folder):
        raise UsageError(f"The job {job.name!r} is not in the queue any more.")
    # First: one that cannot be begun, or ends the scheduler with it, was begun all the same.
    tries.write(job.folder, tries.Tries(tries.read(job.folder).number + 1, now))
    settings = dataclasses.replace(JobSettings.of_job(job.folder), num_workers=num_workers)
    settings = dataclasses.replace(settings, num_ps=num_ps or settings.num_ps)
    storage.write_file(job.folder / "settings.json", settings.to_json().encode())
    return go_on(job)[1]
