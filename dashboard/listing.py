"""The list of jobs, asked for at most once a second however many look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ..jobs.job import Jobs, Status

_LIST_S = 1.0  # how old a list of jobs may be


class JobList:
    """The list of the jobs of one place, of the event loop's thread."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._at = float("-inf")
        self._found: list[Status] = []
        self._lock = asyncio.Lock()
        self._over = asyncio.Event()

    async def now(self) -> list[Status]:
        """Return the status of each job, at most a second old."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._at >= _LIST_S:
                self._found = await asyncio.to_thread(self._jobs.statuses)
                self._at = loop.time()
        return self._found

    async def changes(self, quiet_s: float) -> AsyncIterator[list[Status] | None]:
        """Yield the list whenever it is another, None where it has been the same for `quiet_s`."""
        loop = asyncio.get_running_loop()
        told: list[Status] | None = None
        told_at = loop.time()
        while not self._over.is_set():
            found = await self.now()
            if found != told:
                told, told_at = found, loop.time()
                yield found
            elif loop.time() - told_at >= quiet_s:
                told_at = loop.time()
                yield None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _LIST_S)

    def close(self) -> None:
        """End all `changes`."""
        self._over.set()
