"""Waits that end in a moment unless something is wrong: they say so, and end in an error."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from threading import Condition
from typing import TypeVar

from .errors import EdlError

log = logging.getLogger(__name__)

LIMIT_S = 600.0  # beyond any honest step, compaction or compilation; a guess
_LOOK_S = 10.0  # how often the log says what is waited for

Result = TypeVar("Result")


class Patience:
    """The patience of one wait for `what`. A stop of this process counts as one look at most."""

    def __init__(self, what: str, limit_s: float = LIMIT_S) -> None:
        self._what, self._limit_s = what, limit_s
        self._waited_s = 0.0
        self._tell_at_s = min(_LOOK_S, limit_s)

    def wait(self, condition: Condition, look_s: float = _LOOK_S) -> None:
        """Wait until somebody notifies, or for a while. Raises EdlError once that was too often."""
        began = time.monotonic()
        if not condition.wait(min(look_s, self._limit_s)):
            self._count(look_s)
        else:
            self._count(min(time.monotonic() - began, look_s))

    def result(self, future: Future[Result]) -> Result:
        """Return the result of a future that is nearly done. Raises as it does, or EdlError."""
        while True:
            try:
                return future.result(min(_LOOK_S, self._limit_s))
            except TimeoutError:
                if future.done():
                    raise
                self._count(_LOOK_S)

    def _count(self, waited_s: float) -> None:
        self._waited_s += waited_s
        if self._waited_s < self._tell_at_s:
            return
        if self._waited_s >= self._limit_s:
            raise EdlError(f"gave up waiting for {self._what} after {self._waited_s:.0f} s")
        self._tell_at_s += _LOOK_S
        log.warning("waiting for %s for %.0f s", self._what, self._waited_s)
