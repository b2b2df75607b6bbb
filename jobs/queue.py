"""Jobs of this machine that wait for the scheduler to begin them (`edl train --queue`)."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from dataclasses import dataclass

from ..common import paths, storage
from ..common.errors import EdlError, UsageError
from ..common.foreign import must_be, parse, read_plain
from ..common.settings import JobSettings
from .local import LocalJob
from .start import go_on, make


@dataclass(frozen=True)
class Ask:
    """The wishes of a queued job to the scheduler."""

    submitted: int  # seconds since the epoch
    minimum: int  # workers without which it does not begin
    maximum: int
    servers: int = 1  # that it begins with
    most_servers: int = 0  # that it may be given; 0: it keeps those


def put(settings: JobSettings, submitted: int, most_servers: int = 0) -> LocalJob:
    """Put a job into the queue. Its `num_workers` are the most that it is given.

    `most_servers`: that it may be given; 0: it keeps its `num_ps`. Raises UsageError where a job of
    its name runs, or it wants more workers, or servers, at least than at most, or has no servers
    that could change.
    """
    minimum = max(1, settings.min_workers)
    if minimum > settings.num_workers:
        raise UsageError(
            f"--min_workers {minimum} is above --num_workers {settings.num_workers}, the most that "
            "a queued job is given: raise one or lower the other."
        )
    if most_servers:
        _check_servers(settings, most_servers)
    job, lock = make(settings)
    try:
        workers, servers = settings.num_workers, max(1, settings.num_ps)
        ask = Ask(submitted, minimum, workers, servers, most_servers)
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
        must_be(values, dict)
        values = {"servers": 1, "most_servers": 0, **values}  # which nobody asked for before
        must_be(values, dict.fromkeys(Ask.__annotations__, int))
    except FileNotFoundError:
        return None
    except (ValueError, EdlError) as error:
        raise UsageError(f"{path} is no ask of a queued job: {error}") from error
    return Ask(**{name: values[name] for name in Ask.__annotations__})


def begin(job: LocalJob, num_workers: int, num_ps: int = 0) -> subprocess.Popen[bytes]:
    """Begin a queued job with so many workers and servers; 0 servers are those that it stated.

    Raises UsageError where it was begun, or taken back, meanwhile.
    """
    if not paths.is_queued(job.folder):
        raise UsageError(f"The job {job.name!r} is not in the queue any more.")
    settings = dataclasses.replace(JobSettings.of_job(job.folder), num_workers=num_workers)
    settings = dataclasses.replace(settings, num_ps=num_ps or settings.num_ps)
    storage.write_file(job.folder / "settings.json", settings.to_json().encode())
    return go_on(job)[1]
