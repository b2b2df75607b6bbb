"""Time, passed in: `Clock` is the machine's, `FakeClock` is a test's.

State machines take `now` (seconds, monotonic) as an argument and never ask for it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds. Wall-clock jumps never move it."""

    def now(self) -> float: ...


class MonotonicClock:
    """`time.monotonic`."""

    def now(self) -> float:
        return time.monotonic()


class FakeClock:
    """A clock that a test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, seconds
        self._now += seconds
