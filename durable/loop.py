"""The loop of one thread that decides: events in an inbox, and scripts that wait.

All state of the master belongs to this thread. Other threads post functions and get futures. A
*script* is a generator that runs on the loop's thread and yields what it waits for: a Future (it is
resumed with its result, or its exception is raised in it), or a predicate that is asked again after
every event. So a course of actions with remote calls in it reads from top to bottom, and between
two yields nothing else happens.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from ..common import background
from ..common.clock import Clock
from ..common.errors import EdlError

Wait = Future[Any] | Callable[[], bool]
Result = TypeVar("Result")
Script = Generator[Wait, Any, Result]

_LONGEST_WAIT_S = 60.0
_BATCH = 256  # events between two looks at the scripts


class Loop:
    """A loop of events and scripts, which one thread runs.

    `clock` decides what time it is; the inbox wakes the thread.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._scripts: list[tuple[Script[Any], Wait]] = []
        self._wakes: list[float] = []
        self._held: list[Callable[[], None]] = []  # background work that was not begun
        self._lock = threading.Lock()
        self._closed = False

    # -- from any thread

    def post(self, event: Callable[[], None]) -> bool:
        """Run `event` on the loop's thread; False where the loop is closed.

        An EdlError that it raises is raised by `run`.
        """
        with self._lock:
            if not self._closed:
                self._inbox.put(event)
            return not self._closed

    # -- on the loop's thread

    def background(self, work: Callable[[], Result]) -> Future[Result]:
        """Run blocking work elsewhere; the loop wakes when it is done.

        It begins when `settle` has returned: it tells others of decisions, which are on disk then.
        A call to a server that is gone must not keep the process from ending.
        """
        future, thread = background.prepare("master-background", work)
        future.add_done_callback(lambda _: self.post(_nothing))
        self._held.append(thread.start)
        return future

    def spawn(self, script: Script[Any]) -> None:
        """Start a script; it runs up to its first wait before this returns."""
        self._resume(script, None)

    def wake_at(self, when: float) -> None:
        """Ask predicates again at this time."""
        heapq.heappush(self._wakes, when)

    def sleep(self, seconds: float) -> Script[None]:
        until = self.clock.now() + seconds
        self.wake_at(until)
        yield lambda: self.clock.now() >= until

    def run(self, settle: Callable[[], float], over: Callable[[], bool]) -> None:
        """Take events until `over`.

        `settle` is called after each batch of events and says when it wants to be called again.
        """
        while True:
            again = self._settled(settle)
            while self._advance():
                again = self._settled(settle)
            if over():
                return
            self._take(again)

    def close(self) -> None:
        """Take the last events and drop the scripts; background work is not waited for."""
        with self._lock:
            self._closed = True
        while not self._inbox.empty():
            with contextlib.suppress(EdlError):  # whoever asked has it already
                self._inbox.get_nowait()()
        for script, _ in self._scripts:
            script.close()
        self._scripts.clear()

    def _settled(self, settle: Callable[[], float]) -> float:
        again = settle()
        held, self._held = self._held, []
        for begin in held:
            begin()
        return again

    def _take(self, again: float) -> None:
        now = self.clock.now()
        while self._wakes and self._wakes[0] <= now:
            heapq.heappop(self._wakes)
        wake = min(again, self._wakes[0]) if self._wakes else again
        try:
            self._inbox.get(timeout=min(max(wake - now, 0.0), _LONGEST_WAIT_S))()
            for _ in range(_BATCH):
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _advance(self) -> bool:
        """Resume one script whose wait is over (it may undo another's).

        Returns whether there was one.
        """
        for number, (script, wait) in enumerate(self._scripts):
            if isinstance(wait, Future):
                if wait.done():
                    del self._scripts[number]
                    self._resume(script, wait)
                    return True
            elif wait():
                del self._scripts[number]
                self._resume(script, None)
                return True
        return False

    def _resume(self, script: Script[Any], done: Future[Any] | None) -> None:
        error = done.exception() if done is not None else None
        try:
            if error is not None:
                wait = script.throw(error)
            else:
                wait = script.send(done.result() if done is not None else None)
        except StopIteration:
            return
        self._scripts.append((script, wait))


def _nothing() -> None:
    """Do nothing but wake the loop."""
