"""Memory for the bodies of requests and replies, under a budget."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...common.errors import Unreachable
from ...common.patience import Patience
from ..books.parameters import Invalid
from ..rows.memory import HUGE, huge_pages
from .frames import Bytes

_LOOK_S = 0.05  # while the budget is used up: whether a pin needs the push has no signal


class Buffers:
    """Page-aligned memory for bodies, lent and used again: at most `limit_nbytes` in all."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0  # lent or kept
        self.waiting = 0  # connections that wait for the budget
        self._kept: list[Bytes] = []
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def take(self, nbytes: int, needed: Callable[[], bool] = lambda: False) -> Bytes:
        """Lend at least `nbytes`, and wait until the budget has them.

        Raises Unreachable once closed.

        `needed()`: what holds the budget waits for this one, so it does not wait for the budget.
        """
        unit = HUGE if nbytes > HUGE >> 1 else HUGE >> 1
        size = nbytes + unit - 1 & -unit
        if size > self.limit_nbytes:
            raise Invalid(f"{nbytes} bytes in one request: this server takes {self.limit_nbytes}")
        patience: Patience | None = None
        with self._lock:
            if self._kept and nbytes <= len(self._kept[-1]) <= 4 * size and not self._closed:
                return self._kept.pop()  # the last one given: what caches have
            while not self._closed:
                fit = min((b for b in self._kept if len(b) >= nbytes), key=len, default=None)
                if fit is not None and (len(fit) <= 4 * size or not self._room(size)):
                    self._kept = [b for b in self._kept if b is not fit]
                    return fit
                while self._kept and not self._room(size):
                    self.nbytes -= len(self._kept.pop(0))
                if self._room(size) or needed():
                    self.nbytes += size
                    return huge_pages(size)
                patience = patience or Patience("memory for pushes, which others have")
                self.waiting += 1
                try:
                    patience.wait(self._changed, _LOOK_S)
                finally:
                    self.waiting -= 1
        raise Unreachable("the server is closing")

    @property
    def kept(self) -> int:
        """Return how many bytes are not lent."""
        with self._lock:
            return sum(len(buffer) for buffer in self._kept)

    def give(self, buffer: Bytes) -> None:
        """Take memory back, at which nobody may look any more."""
        with self._lock:
            if self._room(0):
                self._kept.append(buffer)
            else:
                self.nbytes -= len(buffer)
            self._changed.notify()  # one: of a thousand that wait, one may have it

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _room(self, size: int) -> bool:
        return self.nbytes + size <= self.limit_nbytes
