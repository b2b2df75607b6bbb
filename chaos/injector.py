"""The injector: it delivers a schedule's signals to a job's processes, and writes down each.

Who is there is the job's status, asked before each injection; while the master does not answer (it
may be the one that was hit) what it said last holds. A replica that is not there at its moment is
written down as missed, never silently passed over. A process that was stopped is always continued,
also when the injector ends first.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from ..common.errors import EdlError, JobError
from ..jobs.local import LocalJob
from .schedule import Injection

Pids = Mapping[str, Mapping[int, int]]  # by role, then index

_LOOK_S = 0.5  # how late the end of the job may be noticed: no event of another process says so


class Processes:
    """The pids of a job's replicas."""

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        self._last: dict[str, dict[int, int]] = {}

    def __call__(self) -> Pids:
        status: dict[str, Any] = {}
        with contextlib.suppress(EdlError):  # it is being started again: they are those of before
            status = self._job.status()
        for role, rows in (("worker", "workers"), ("ps", "servers"), ("teacher", "teachers")):
            if rows in status:
                self._last[role] = {r["index"]: r["pid"] for r in status[rows] if r["pid"]}
        if (address := self._job.address()) is not None:
            self._last["master"] = {0: address[1]}
        return self._last


@dataclass(frozen=True)
class Line:
    """One line of the log. `t` is the wall clock, as the logs of the job have it."""

    t: float
    at_s: float
    role: str
    index: int | None
    pid: int | None
    signal: str
    missed: str = ""

    def __str__(self) -> str:
        who = f"{self.role} {self.index}" if self.index is not None else self.role
        if self.missed:
            return f"{self.at_s:8.2f} s  {self.signal} {who}: missed, {self.missed}"
        return f"{self.at_s:8.2f} s  {self.signal} {who} (pid {self.pid})"


class Injector:
    """A sender of scheduled signals.

    `wait(seconds)` returns True where the job has ended meanwhile.
    """

    def __init__(
        self,
        schedule: Iterable[Injection],
        processes: Callable[[], Pids],
        *,
        wait: Callable[[float], bool],
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        send: Callable[[int, int], None] = os.kill,
        tell: Callable[[Line], None] = lambda _line: None,
    ) -> None:
        self._schedule = schedule
        self._processes = processes
        self._wait = wait
        self._now = now
        self._clock = clock
        self._send = send
        self._tell = tell
        self._asleep: list[tuple[float, int, Line]] = []  # when to continue whom
        self._numbers = itertools.count()
        self.lines: list[Line] = []

    def run(self, for_s: float = float("inf")) -> list[Line]:
        """Inject until the schedule, the job or `for_s` ends; return the lines written."""
        self._began = self._now()
        try:
            for injection in self._schedule:
                if injection.at_s > for_s:
                    self._pass_until(for_s)
                    break
                if self._pass_until(injection.at_s):
                    break
                self._inject(injection)
            else:
                self._pass_until(for_s if for_s < float("inf") else self._last_wake())
        finally:
            while self._asleep:
                self._continue(heapq.heappop(self._asleep)[2])
        return self.lines

    def _pass_until(self, at_s: float) -> bool:
        """Wait, and continue who has slept enough; True where the job has ended."""
        while True:
            if self._asleep and self._asleep[0][0] <= at_s:
                wake_s, _, line = self._asleep[0]
                if self._wait(max(0.0, wake_s - self._passed())):
                    return True
                heapq.heappop(self._asleep)
                self._continue(line)
                continue
            return self._wait(max(0.0, at_s - self._passed()))

    def _last_wake(self) -> float:
        return max((wake_s for wake_s, _, _ in self._asleep), default=0.0)

    def _inject(self, injection: Injection) -> None:
        there = self._processes().get(injection.role, {})
        index = injection.pick(sorted(there))
        if index is None:
            wanted = injection.index
            self._write(injection.role, wanted, None, injection.number, "it is not there now")
            return
        pid = there[index]
        try:
            self._send(pid, injection.number)
        except ProcessLookupError:
            self._write(injection.role, index, pid, injection.number, "it has ended already")
            return
        line = self._write(injection.role, index, pid, injection.number)
        if injection.for_s:
            wake_s = self._passed() + injection.for_s
            heapq.heappush(self._asleep, (wake_s, next(self._numbers), line))

    def _continue(self, stopped: Line) -> None:
        assert stopped.pid is not None
        try:
            self._send(stopped.pid, signal.SIGCONT)
        except ProcessLookupError:
            why = "it was killed in its sleep"
            self._write(stopped.role, stopped.index, stopped.pid, signal.SIGCONT, why)
            return
        self._write(stopped.role, stopped.index, stopped.pid, signal.SIGCONT)

    def _passed(self) -> float:
        return self._now() - self._began

    def _write(
        self,
        role: str,
        index: int | None,
        pid: int | None,
        number: signal.Signals,
        missed: str = "",
    ) -> Line:
        at_s = round(self._passed(), 3)
        line = Line(round(self._clock(), 3), at_s, role, index, pid, number.name, missed)
        self.lines.append(line)
        self._tell(line)
        return line


def inject(
    job: LocalJob,
    schedule: Iterable[Injection],
    for_s: float,
    log: TextIO,
    say: Callable[[str], None],
) -> list[Line]:
    """Hit a running job until it, the schedule or `for_s` ends. Raises JobError: it is over."""
    if job.is_over():
        raise JobError(f"Job {job.name!r} is over: {job.status().get('state')}.")

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not job.is_over():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, _LOOK_S))
        return True

    def tell(line: Line) -> None:
        log.write(json.dumps(vars(line)) + "\n")
        log.flush()
        say(str(line))

    return Injector(schedule, Processes(job), wait=wait, tell=tell).run(for_s)


def strike(
    job: LocalJob,
    schedule: Iterable[Injection],
    for_s: float = float("inf"),
    say: Callable[[str], None] = lambda _line: None,
    log: str | None = None,
) -> tuple[str, list[Line]]:
    """Do as `inject`, with the lines appended to `log`, or to chaos.jsonl of the job's folder.

    Returns that file's path, and the lines.
    """
    path = log or str(job.folder / "chaos.jsonl")
    with open(path, "a") as file:
        return path, inject(job, schedule, for_s, file, say)
