"""The jobs that somebody watches: each has a thread that hears of it, a model and a feed.

A watch begins with its first reader and ends some time after the last one has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from ..jobs.job import Job, Jobs
from .asides import Asides
from .feed import Feed
from .model import Model, Snapshot
from .sources import Heard, Source, model_of, source_of, take

RETRY_MS = 500  # after which a browser comes back whose line was cut
COMMENT_S = 15.0  # so that proxies let an idle line be
_LINGER_S = 30.0  # a page that is loaded anew comes back within this
_SWEEP_S = 5.0
_TICK_S = 2.0  # between two snapshots of a job that says nothing: how long it has not
_JOIN_S = 5.0

Allowed = Callable[[Job], Sequence[str]]


class Watch:
    """One job that is watched, of the event loop's thread. `allowed`: the actions on it."""

    def __init__(self, job: Job, source: Source, asides: Asides, allowed: Sequence[str]) -> None:
        self._job = job
        self._source = source
        self._asides = asides
        self._allowed = allowed
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._model = Model()
        self.feed = Feed(secrets.token_hex(4), time.monotonic)
        self.readers = 0
        self.left_at = time.monotonic()  # when the last reader did
        self._thread = threading.Thread(target=self._run, name="dashboard-watch", daemon=True)
        self._thread.start()
        self._ticks = asyncio.create_task(self._tick())

    async def messages(self, last_id: str) -> AsyncGenerator[str]:
        """Yield what a reader is sent, who had `last_id` as the last one."""
        self.readers += 1
        after = self.feed.known(last_id)
        try:
            yield f"retry: {RETRY_MS}\n\n"
            while not self._over.is_set():
                found = await self.feed.next(after, COMMENT_S)
                if found is None:
                    yield ": still here\n\n"
                else:
                    after, text = found
                    yield text
        finally:
            self.readers -= 1
            self.left_at = time.monotonic()

    async def first(self, wait_s: float) -> Snapshot | None:
        """Return the snapshot of now, once there is one; None: not in time."""
        await self.feed.next(-1, wait_s)
        return self.feed.snapshot

    async def close(self) -> None:
        self._over.set()
        self._source.close()
        self.feed.wake()
        self._ticks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticks
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _run(self) -> None:
        def tell(heard: Heard) -> None:
            heard = dataclasses.replace(heard, asides=self._asides.of(self._job, heard.status))
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._heard, heard)

        self._source.run(tell, self._over)

    def _heard(self, heard: Heard) -> None:
        if heard.anew:
            self._model = Model()
        take(self._model, heard)
        self._put()

    def _put(self) -> None:
        self.feed.put(self._model.snapshot(time.time(), self._allowed))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self.feed.snapshot is not None and not self._model.is_over:
                self._put()


class Watches:
    """All watches of one place of jobs."""

    def __init__(self, jobs: Jobs, asides: Asides, allowed: Allowed) -> None:
        self._jobs = jobs
        self._asides = asides
        self._allowed = allowed
        self._all: dict[str, Watch] = {}

    async def of(self, name: str) -> Watch:
        """Return the watch of a job. Raises UsageError where there is no such job."""
        if name not in self._all:
            job = await asyncio.to_thread(self._jobs.find, name)
            if name not in self._all:  # another reader may have come meanwhile
                source = source_of(job, self._jobs.look_every_s)
                self._all[name] = Watch(job, source, self._asides, self._allowed(job))
        return self._all[name]

    async def snapshot(self, name: str) -> Snapshot:
        """Return the snapshot of a job now. Raises UsageError where there is no such job."""
        watch = self._all.get(name)
        if watch is not None and watch.feed.snapshot is not None:
            return watch.feed.snapshot
        job = await asyncio.to_thread(self._jobs.find, name)
        model = await asyncio.to_thread(model_of, job, self._asides)
        return model.snapshot(time.time(), self._allowed(job))

    async def close(self) -> None:
        for watch in self._all.values():
            await watch.close()
        self._all.clear()

    async def sweep(self) -> None:
        """End the watches that nobody reads any more, for ever."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            for name, watch in list(self._all.items()):
                if not watch.readers and now - watch.left_at > _LINGER_S:
                    del self._all[name]
                    await watch.close()
