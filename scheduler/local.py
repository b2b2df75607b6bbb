"""The queued jobs of this machine, as the scheduler sees them, and what it does to them.

The machine has room for so many workers, by default as many as cores. Servers, and jobs that were
not queued, are not counted. A job that runs is never suspended here.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ..common import paths, storage
from ..common import report as reports
from ..common.errors import EdlError, UsageError
from ..common.foreign import read_plain
from ..jobs import queue
from ..jobs.job import Status
from ..jobs.local import LocalJob, all_jobs
from .cluster import Node, Resources
from .jobs import Job, Plan, Shape
from .place import Seen, Tell, read_plan, seconds
from .speed import served_s, speed_of

NODE = "here"
_RUNS = ("running", "waiting")  # states of a job whose workers may be changed
_RESIZE_S = 3.0  # that a change of the workers costs until one was measured
_OVER = ("left", "failed", "lost")  # states of a worker that is none any more
_PLAN = "plan.json"


def folder() -> Path:
    """Return the folder of the scheduler of this machine."""
    return paths.home() / "schedule"


def claim() -> int:
    """Be the only scheduler of this machine; return the lock's descriptor.

    Raises UsageError where another one runs.
    """
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return paths.lock(folder())
    except BlockingIOError as error:
        raise UsageError(
            "Another `edl schedule serve` runs on this machine: `edl schedule status`."
        ) from error


def serves() -> bool:
    """Tell whether a scheduler of this machine runs."""
    return paths.is_locked(folder())


def last_plan() -> dict[str, Any]:
    """Return the last plan of this machine (place.read_plan).

    Raises UsageError where there is none, or none that can be read.
    """
    path = folder() / _PLAN
    try:
        text = read_plain(path)
    except FileNotFoundError as error:
        raise UsageError("No plan was made yet: `edl schedule serve` makes them.") from error
    return read_plan(text, str(path))


class LocalPlace:
    """The jobs of this machine that were queued."""

    def __init__(self, workers: int) -> None:
        """Take the number of workers that all jobs may have together."""
        self._nodes = [Node(NODE, Resources(cpu=float(workers)))]
        self._wanted: dict[str, int] = {}  # what each running job was told last
        self._resizes: dict[str, int] = {}
        self._found: dict[str, LocalJob] = {}
        self._begun: list[subprocess.Popen[bytes]] = []  # kept until each has ended

    def look(self) -> Seen:
        """Return the jobs that have not ended."""
        self._begun = [each for each in self._begun if each.poll() is None]
        seen = Seen([], self._nodes, {})
        self._found = {}
        for job in all_jobs():
            try:
                ask = queue.ask_of(job) if job.result() is None else None
            except EdlError as error:
                seen.ignored[job.name] = f"is left alone: {error}"
                continue
            if ask is None:
                continue
            self._found[job.name] = job
            status = job.status()
            if status.get("state") != "dead" and status.get("exit_code") is None:
                seen.jobs.append(self._job(job, ask, status, seen.ignored))
        self._wanted = {job.name: job.held.workers for job in seen.jobs if job.held.workers}
        return seen

    def act(self, plan: Plan, seen: Seen, tell: Tell) -> None:
        """Begin jobs, and change their workers; what fails is told, and tried again next time."""

        def grows(job: Job) -> bool:  # those that give something up come first
            return plan[job.name].shape.workers > job.held.workers

        for job in sorted(seen.jobs, key=grows):
            workers = plan[job.name].shape.workers
            if job.is_pinned or workers in (0, job.held.workers):
                continue
            try:
                if job.held.workers:
                    self._found[job.name].scale(workers)
                    self._resizes[job.name] = self._resizes.get(job.name, 0) + 1
                else:
                    self._begun.append(queue.begin(self._found[job.name], workers))
            except EdlError as error:
                tell(f"{job.name}: {error}")
                continue
            self._wanted[job.name] = workers
            tell(f"{job.name}: {job.held.workers} -> {workers} workers: {plan[job.name].why}")

    def keep(self, plan: str, _tell: Tell) -> None:
        """Keep the plan in a file."""
        storage.write_file(folder() / _PLAN, plan.encode())

    def _job(self, job: LocalJob, ask: queue.Ask, status: Status, ignored: dict[str, str]) -> Job:
        report = None
        try:
            if status.get("report") is not None:
                report = reports.read(status["report"])
        except EdlError as error:
            ignored[job.name] = f"has a report that is ignored: {error}"
        state, rows = status.get("state"), status.get("workers") or []
        here = sum(row["state"] not in _OVER for row in rows)
        is_queued = state == "queued"
        held = 0 if is_queued else self._wanted.get(job.name) or here or ask.minimum
        speed, is_known = speed_of(report)
        cost_s = report.resize.workers if report is not None else None
        return Job(
            name=job.name,
            speed=speed,
            worker=Resources(cpu=1.0),
            submitted=float(ask.submitted),
            user=ask.wishes.user,
            priority=ask.wishes.priority,
            deadline=seconds(ask.wishes.deadline) if ask.wishes.deadline else None,
            minimum=ask.minimum,
            maximum=ask.maximum,
            left=report.records_left if report is not None and is_known else None,
            held=Shape(held, 0, min(held, 1)),
            resize_s=_RESIZE_S if cost_s is None else cost_s,
            resizes=self._resizes.get(job.name, 0),
            served_s=served_s(report),
            waits_since=float(ask.submitted) if is_queued else None,
            is_pinned=not is_queued and state not in _RUNS,
            is_nearly_done=report is not None and report.nearly_done,
            may_be_suspended=False,
            workers_on={NODE: held} if held else {},
        )
