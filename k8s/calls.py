"""Calls that one thread makes, one after the other, each when it is due."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Calls:
    """A queue of calls with its thread. Any thread may put a call; nobody waits for one."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # so that calls of one moment keep their order
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to make the calls."""
        self._thread.start()

    def put(self, call: Callable[[], None], after_s: float = 0.0) -> None:
        """Make a call in so many seconds; after `close` it is dropped."""
        with self._lock:
            if not self._closed:
                number = next(self._numbers)
                heapq.heappush(self._due, (time.monotonic() + after_s, number, call))
                self._lock.notify_all()

    def close(self) -> None:
        """Make no call any more, without waiting for the one that is being made."""
        with self._lock:
            self._closed = True
            self._due.clear()
            self._lock.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the last call."""
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._closed and not (self._due and self._due[0][0] <= time.monotonic()):
                    wait_s = self._due[0][0] - time.monotonic() if self._due else None
                    self._lock.wait(wait_s)
                if self._closed:
                    return
                _, _, call = heapq.heappop(self._due)
            call()
