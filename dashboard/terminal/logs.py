"""A log that is read in a thread of its own, for as long as somebody looks at it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...common.errors import EdlError
from ...jobs.job import Jobs
from .events import Follow, Lines
from .machine import LINES

_TAIL = 1000
_LONGEST = 4000  # characters of a line; the rest of it is not shown


class LogReader:
    """The lines of one log. `tell` is called in the thread, and `take` returns what is new."""

    def __init__(self, jobs: Jobs, job: str, log: Follow, tell: Callable[[], None]) -> None:
        self._jobs = jobs
        self._job = job
        self._log = log
        self._tell = tell
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._fresh: deque[str] = deque(maxlen=LINES)  # who is slow misses the oldest
        self._ended = False

    def start(self) -> None:
        threading.Thread(target=self._read, name="top-log", daemon=True).start()

    def take(self) -> Lines:
        """Return the lines since the last time."""
        with self._lock:
            lines = tuple(self._fresh)
            self._fresh.clear()
            return Lines(self._log.of, lines, self._ended)

    def close(self) -> None:
        """Let the thread end, at the latest with the next line."""
        self._over.set()

    def _read(self) -> None:
        role, index = self._log.role, self._log.index
        try:
            job = self._jobs.find(self._job)
            for line in job.lines(
                role=role, index=index, tail=_TAIL, follow=True, until=self._over.is_set
            ):
                if self._over.is_set():
                    return
                self._put(line[:_LONGEST])
        except (EdlError, OSError) as error:
            self._put(f"(this log cannot be read: {error})")
        self._ended = True
        if not self._over.is_set():
            self._tell()

    def _put(self, line: str) -> None:
        with self._lock:
            first = not self._fresh
            self._fresh.append(line)
        if first:  # of many lines at once the loop is told once
            self._tell()
