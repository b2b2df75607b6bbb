"""`edl top` as it runs: keys and news go into the state machine, and its effects are done.

One event loop: the terminal, and the watches of jobs (dashboard/watch.py) that the page has, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ...common.errors import EdlError
from ...jobs.job import Jobs
from ..actions import Actions
from ..asides import Asides
from ..listing import JobList
from ..watch import COMMENT_S, Watches
from . import events
from .draw import frame
from .events import Event
from .keys import Keys
from .logs import LogReader
from .machine import State, step
from .terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

WHO = "edl top"
_ESC_S = 0.05  # within which a terminal sends the rest of a sequence
_FRAME_S = 0.04  # between two frames
_SHARE = 40  # news take one in so many parts of a core to draw; a key is answered at once
_AGAIN_S = 2.0  # after which what could not be read is asked for again


def run(jobs: Jobs, job: str, asides: Asides, keyboard: int, console: Console) -> None:
    """Show the jobs, or one of them, until the user has seen enough."""
    with asyncio.Runner() as runner:
        runner.run(Top(jobs, job, asides, Terminal(keyboard, console)).run())


class Top:
    """A terminal that shows jobs. `job`: only this one; "": all of them."""

    def __init__(self, jobs: Jobs, job: str, asides: Asides, terminal: Terminal) -> None:
        self._jobs = jobs
        self._terminal = terminal
        self._actions = Actions(True, who=WHO)
        self._watches = Watches(jobs, asides, self._actions.on)
        self._state = State(job=job, alone=bool(job))
        self._keys = Keys()
        self._changed = asyncio.Event()
        self._changed.set()
        self._pressed = asyncio.Event()  # since the last frame
        self._over = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None  # at the list, or at a job
        self._log: LogReader | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run until the user quits, a signal comes or the terminal is gone."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._over.set)
        loop.add_signal_handler(signal.SIGWINCH, self._resized)
        loop.add_signal_handler(signal.SIGTSTP, self._pause)
        try:
            with self._terminal:
                loop.add_reader(self._terminal.fileno(), self._typed)
                try:
                    self._spawn(self._draw())
                    self._spawn(self._watches.sweep())
                    self._look()
                    await self._over.wait()
                finally:
                    loop.remove_reader(self._terminal.fileno())
        finally:
            await self._close()
        if self._error is not None:
            raise self._error

    async def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._watches.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._over.set()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End with the error of a callback, which the loop would only log."""
        self._error = context.get("exception") or RuntimeError(context["message"])
        self._over.set()

    # -- what comes in

    def _typed(self) -> None:
        data = self._terminal.read()
        if not data:  # the terminal is gone
            self._over.set()
            return
        self._press(self._keys.feed(data))
        if self._keys.waits:
            asyncio.get_running_loop().call_later(_ESC_S, self._flush)

    def _flush(self) -> None:
        self._press(self._keys.flush())

    def _press(self, keys: list[str]) -> None:
        self._pressed.set()
        for key in keys:
            if key == "redraw":
                self._terminal.forget()
            self._step(events.Key(key))

    def _resized(self) -> None:
        self._pressed.set()
        self._changed.set()

    def _pause(self) -> None:
        self._terminal.pause()
        self._resized()

    def _step(self, event: Event) -> None:
        self._state, effects = step(self._state, event)
        self._changed.set()
        for effect in effects:
            match effect:
                case events.Quit():
                    self._over.set()
                case events.Open() | events.Close():
                    self._look()
                case events.Follow():
                    self._follow(effect)
                case events.Act():
                    self._spawn(self._act(effect))

    async def _draw(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._pressed.clear()
            began = loop.time()
            width, height = self._terminal.size
            if height != self._state.height:
                self._state, _ = step(self._state, events.Height(height))
            lines = frame(self._state, width, time.time(), self._terminal.ascii_only)
            try:
                self._terminal.draw(lines, width)
            except OSError:  # the terminal is gone
                self._over.set()
                return
            await asyncio.sleep(_FRAME_S)
            with contextlib.suppress(TimeoutError):
                pause_s = _SHARE * (loop.time() - began - _FRAME_S)
                await asyncio.wait_for(self._pressed.wait(), max(0.0, pause_s))

    # -- what is looked at

    def _look(self) -> None:
        """Look at what is open now, and at nothing else."""
        if self._looking is not None:
            self._looking.cancel()
        job = self._state.job
        self._looking = self._spawn(self._watch(job) if job else self._list())

    async def _list(self) -> None:
        listing = JobList(self._jobs)
        while True:
            try:
                async for found in listing.changes(COMMENT_S):
                    if found is not None:
                        self._step(events.Listed(found))
            except EdlError as error:
                self._step(events.Told(str(error)))
            await asyncio.sleep(_AGAIN_S)

    async def _watch(self, job: str) -> None:
        while True:
            try:
                watch = await self._watches.of(job)
                async with contextlib.aclosing(watch.messages("")) as messages:
                    async for _ in messages:
                        if watch.feed.snapshot is not None:
                            self._step(events.Seen(job, watch.feed.snapshot))
            except EdlError as error:
                self._step(events.Told(str(error)))
            await asyncio.sleep(_AGAIN_S)

    def _follow(self, log: events.Follow) -> None:
        if self._log is not None:
            self._log.close()
        self._log = None
        if log.role is None:
            return
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._logged, reader)

        self._log = reader = LogReader(self._jobs, self._state.job, log, tell)
        reader.start()

    def _logged(self, reader: LogReader) -> None:
        if reader is self._log:
            self._step(reader.take())

    async def _act(self, effect: events.Act) -> None:
        try:
            job = await asyncio.to_thread(self._jobs.find, effect.job)
            told = await asyncio.to_thread(self._actions.act, job, effect.asked)
        except EdlError as error:
            told = str(error)
        self._step(events.Told(told))
