"""The queued jobs of this machine, as the scheduler sees them, and what it does to them.

The machine has room for so many workers, by default as many as cores. Servers are counted as
workers are where a job may have other ones (`--max_ps`), else they are not, nor are jobs that were
not queued. A job that runs is never suspended here. One that may have other servers grows, and
changes them, only once what it has was measured. One whose master ends before it serves is begun
again after a pause, a few times (jobs/tries.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common import paths, storage
from ..common.errors import EdlError, JobError, UsageError
from ..common.foreign import read_plain
from ..jobs import queue, tries
from ..jobs.job import Status
from ..jobs.local import LocalJob, all_jobs
from ..jobs.local_source import how_it_died
from .cluster import Node, Resources
from .jobs import Job, Plan, Shape
from .place import Seen, Tell, read_plan, seconds, write_plan
from .speed import Told

NODE = "here"
_RUNS = ("running", "waiting")  # states of a job whose workers may be changed
_RESIZE_S = 3.0  # that a change of the workers costs until one was measured
_SERVERS_RESIZE_S = 15.0  # and one of the servers
_OVER = ("left", "failed", "lost")  # states of a worker that is none any more
_MOST_LOOKS = 60  # until servers that were asked for are not waited for any more
_SERVES = ("serving", "waiting")  # states of a server that is ready
_PLAN = "plan.json"
_END_S = 5.0  # who has let go of the job's lock is gone in a moment


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

    def __init__(self, workers: int, clock: Callable[[], float] = time.time) -> None:
        """Take the number of workers that all jobs may have together.

        `clock`: seconds since the epoch.
        """
        self._clock = clock
        self._nodes = [Node(NODE, Resources(cpu=float(workers)))]
        self._wanted: dict[str, tuple[int, int]] = {}  # what each running job was told last
        self._fixed: set[str] = set()  # jobs that have refused other servers
        self._awaited: dict[str, int] = {}  # looks at which what a job was told was not there
        self._resizes: dict[str, int] = {}
        self._found: dict[str, LocalJob] = {}
        self._begun: dict[str, subprocess.Popen[bytes]] = {}  # kept until each has ended
        self._died: dict[str, tries.Tries] = {}  # at their start: those that nobody has told of yet

    def look(self) -> Seen:
        """Return the jobs that have not ended."""
        seen = Seen([], self._nodes, {})
        self._found, self._died = {}, {}
        for job in all_jobs():
            try:
                ask = queue.ask_of(job) if job.result() is None else None
                if ask is None:
                    continue
                status = job.status()
                why = self._why_not_yet(job) if status.get("state") == "queued" else ""
            except EdlError as error:
                seen.ignored[job.name] = f"is left alone: {error}"
                continue
            self._found[job.name] = job
            if why:
                seen.ignored[job.name] = why
            elif status.get("state") != "dead" and status.get("exit_code") is None:
                seen.jobs.append(self._job(job, ask, status, seen.ignored))
        ended = [name for name, child in self._begun.items() if child.poll() is not None]
        for name in ended:
            del self._begun[name]
        self._wanted = {job.name: _pair(job.held) for job in seen.jobs if job.held.workers}
        return seen

    def act(self, plan: Plan, seen: Seen, tell: Tell) -> None:
        """Begin jobs, and change their workers; what fails is told, and tried again next time."""
        for name, tried in self._died.items():
            self._end_start(self._found[name], tried, tell)

        def grows(job: Job) -> bool:  # those that give something up come first
            return plan[job.name].shape.workers > job.held.workers

        for job in sorted(seen.jobs, key=grows):
            given = plan[job.name].shape
            if job.is_pinned or not given.workers or _pair(given) == _pair(job.held):
                continue
            try:
                if job.held.workers:
                    others = given.servers if given.servers != job.held.servers else 0
                    self._found[job.name].scale(given.workers, others)
                    self._resizes[job.name] = self._resizes.get(job.name, 0) + 1
                else:
                    self._begin(self._found[job.name], *_pair(given))
            except (EdlError, OSError) as error:
                tell(f"{job.name}: {error}")
                if isinstance(error, JobError) and given.servers != job.held.servers:
                    self._fixed.add(job.name)
                continue
            self._wanted[job.name] = _pair(given)
            what = f"{job.held.workers} -> {given.workers} workers"
            if given.servers != job.held.servers:
                what += f", {job.held.servers} -> {given.servers} servers"
            tell(f"{job.name}: {what}: {plan[job.name].why}")

    def keep(self, plan: dict[str, Any], tell: Tell) -> None:
        """Keep the plan in a file."""
        try:
            storage.write_file(folder() / _PLAN, write_plan(plan).encode())
        except OSError as error:  # a full disk, say: the next round keeps the next plan
            tell(f"the plan is not kept: {error}")

    def _begin(self, job: LocalJob, workers: int, servers: int) -> None:
        now = int(self._clock())
        try:
            self._begun[job.name] = queue.begin(job, workers, servers, now)
        except (EdlError, OSError) as error:  # it counts as a start, where it was one
            if (tried := tries.read(job.folder)).number and paths.is_queued(job.folder):
                code = error.exit_code if isinstance(error, EdlError) else tried.exit_code
                tries.write(job.folder, dataclasses.replace(tried, why=str(error), exit_code=code))
            raise

    def _why_not_yet(self, job: LocalJob) -> str:
        """Return why a job that is queued is not to be begun now; "": it is.

        Raises UsageError where nobody knows how often it was.
        """
        tried = tries.read(job.folder)
        if not tried.number:
            return ""
        if not tried.why:
            error = how_it_died(job, self._code(job.name))
            tried = dataclasses.replace(tried, why=str(error), exit_code=error.exit_code)
            self._died[job.name] = tried
        if tried.are_over:
            self._died[job.name] = tried
            return "is over: it died at each of its starts"
        return f"waits: {tried.told()}" if self._clock() < tried.again_at else ""

    def _code(self, name: str) -> int | None:
        """Return how the process that this scheduler has begun a job with ended, where it knows."""
        child = self._begun.get(name)
        if child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_END_S)
        return None

    def _end_start(self, job: LocalJob, tried: tries.Tries, tell: Tell) -> None:
        """Keep how a start ended, and end the job where it was the last one."""
        try:
            tries.write(job.folder, tried)
            if tried.are_over:
                job.give_up(tried.exit_code, tried.told())
                tell(f"{job.name}: {tried.told()}")
        except OSError as error:  # it is tried again
            tell(f"{job.name}: {error}")

    def _job(self, job: LocalJob, ask: queue.Ask, status: Status, ignored: dict[str, str]) -> Job:
        told = Told.by(status.get("report"))
        if told.problem:
            ignored[job.name] = told.problem
        state = status.get("state")
        is_queued = state == "queued"
        held, servers = self._held(job.name, ask, status)
        resize = told.resize
        is_pinned = not is_queued and state not in _RUNS
        maximum = ask.maximum
        if ask.wishes.max_ps:
            is_pinned = is_pinned or not (is_queued or self._are_there(job.name, status, servers))
            if not is_queued and not told.is_measured(held):
                maximum = max(ask.minimum, held.workers)
            elif told.is_known and job.name not in self._fixed:
                servers = tuple(range(1, ask.wishes.max_ps + 1))
        return Job(
            name=job.name,
            speed=told.speed,
            worker=Resources(cpu=1.0),
            server=Resources(cpu=1.0 if ask.wishes.max_ps else 0.0),
            submitted=float(ask.submitted),
            user=ask.wishes.user,
            priority=ask.wishes.priority,
            deadline=seconds(ask.wishes.deadline) if ask.wishes.deadline else None,
            minimum=ask.minimum,
            maximum=maximum,
            servers=servers,
            left=told.left,
            held=held,
            resize_s=_RESIZE_S if resize.workers is None else resize.workers,
            servers_resize_s=_SERVERS_RESIZE_S if resize.servers is None else resize.servers,
            resizes=self._resizes.get(job.name, 0),
            served_s=told.served_s,
            waits_since=float(ask.submitted) if is_queued else None,
            is_pinned=is_pinned,
            is_nearly_done=told.is_nearly_done,
            may_be_suspended=False,
            is_preemptible=ask.preemptible,
            workers_on={NODE: held.workers} if held.workers else {},
            servers_on={NODE: held.servers} if held.servers else {},
        )

    def _are_there(self, name: str, status: Status, servers: tuple[int, ...]) -> bool:
        """Tell whether the job has the servers that it was told to have, and they serve.

        One that never comes to have them keeps those that it has.
        """
        states = [row["state"] for row in status.get("servers") or [] if row["state"] not in _OVER]
        are_there = servers == (len(states),) and set(states) <= set(_SERVES)
        looks = 0 if are_there else self._awaited.get(name, 0) + 1
        self._awaited[name] = looks
        if looks >= _MOST_LOOKS:
            self._fixed.add(name)
        return are_there

    def _held(self, name: str, ask: queue.Ask, status: Status) -> tuple[Shape, tuple[int, ...]]:
        """Return what the job has, or was told to have, and its servers as the one choice.

        Servers are counted (else 0) where a job may have others.
        """
        stated = ask.servers if ask.wishes.max_ps else 0
        if status.get("state") == "queued":
            return Shape(), (stated,)
        told_workers, told_servers = self._wanted.get(name, (0, 0))
        if name in self._fixed:
            told_servers = 0
        workers = told_workers or _count(status, "workers") or ask.minimum
        servers = stated and (told_servers or _count(status, "servers") or stated)
        return Shape(workers, servers, min(workers, 1)), (servers,)


def _pair(shape: Shape) -> tuple[int, int]:
    return shape.workers, shape.servers


def _count(status: Status, role: str) -> int:
    """Return how many of a role there are, or come."""
    return sum(row["state"] not in _OVER for row in status.get(role) or [])
