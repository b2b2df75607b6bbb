"""The actions on a job that the page offers, where --allow_actions lets it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..common.errors import JobError, UsageError
from ..jobs.job import Job
from ..jobs.local import LocalJob

if TYPE_CHECKING:
    from ..k8s.outside.job import ClusterJob

_ANYWHERE = ("scale", "checkpoint", "stop")
_WRITTEN_S = 20.0  # then the page is told to look at the events
_ROWS = {"worker": "workers", "server": "servers", "teacher": "teachers"}


class Actions:
    """The actions on jobs. `demo`: processes of a job of this machine may be killed, too.

    `who` acts, as the job's events say.
    """

    def __init__(self, allowed: bool, demo: bool = False, who: str = "the dashboard") -> None:
        self._allowed = allowed
        self._demo = demo
        self._who = who

    def on(self, job: Job) -> tuple[str, ...]:
        """Return the names of what may be done to a job."""
        if not self._allowed:
            return ()
        if isinstance(job, LocalJob):
            return (*_ANYWHERE, "kill") if self._demo else _ANYWHERE
        return (*_ANYWHERE, "suspend", "resume")

    def act(self, job: Job, asked: Mapping[str, Any]) -> str:
        """Do what is asked; return what happens, in words. Raises EdlError, UsageError."""
        name = str(asked.get("action", ""))
        if name not in self.on(job):
            there = ", ".join(self.on(job)) or "nothing: start it with --allow-actions"
            raise UsageError(f"The dashboard may not {name or 'do that'}; it may: {there}.")
        if name == "scale":
            return _scale(job, asked)
        if name == "checkpoint":
            return f"{job.name}: {job.checkpoint(_WRITTEN_S)} is written"
        if name == "stop":
            return f"{job.name} {job.stop(self._who)}"
        if name == "kill":
            assert isinstance(job, LocalJob)
            return _kill(job, str(asked.get("role")), _number(asked, "index", 0))
        return _of_cluster(job, name)


def _scale(job: Job, asked: Mapping[str, Any]) -> str:
    workers, servers = _number(asked, "num_workers", 0), _number(asked, "num_ps", 0)
    teachers = _number(asked, "num_teachers", 0) if "num_teachers" in asked else None
    if not workers and not servers and teachers is None:
        raise UsageError("Say how many: num_workers, num_ps or num_teachers.")
    before = job.scale(workers, servers, teachers)
    told = [f"{before} -> {workers} workers"] if workers else []
    told += [f"{servers} servers"] if servers else []
    told += [f"{teachers} teachers"] if teachers is not None else []
    return f"{job.name}: {', '.join(told)} wanted"


def _number(asked: Mapping[str, Any], name: str, default: int) -> int:
    value = asked.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise UsageError(f"{name} must be a whole number from 0, not {value!r}.")
    return value


def _kill(job: LocalJob, role: str, index: int) -> str:
    """Send SIGKILL to a process of the job, as a machine that fails would do it."""
    if role == "master":
        found = job.address()
        pid = found[1] if found else None
    else:
        rows = job.status().get(_ROWS.get(role, "")) or []
        pid = next((row.get("pid") for row in rows if row.get("index") == index), None)
    if not isinstance(pid, int) or pid <= 1:
        raise JobError(f"There is no process of {role} {index} now.")
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError as error:
        raise JobError(f"{role} {index} is gone already.") from error
    return f"{role} {index} (pid {pid}) is killed"


def _of_cluster(job: Job, name: str) -> str:
    from ..k8s.outside.job import ClusterJob

    if not isinstance(job, ClusterJob):
        raise UsageError(f"{name} is of jobs in a cluster.")
    return _suspend(job) if name == "suspend" else _resume(job)


def _suspend(job: ClusterJob) -> str:
    job.suspend()
    return f"{job.name} is suspended"


def _resume(job: ClusterJob) -> str:
    job.resume()
    return f"{job.name} goes on"
