"""Try again: growing pauses, and a driver that ends in time. Pure but for what is passed in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")

_DOUBLINGS = 64  # beyond these any pause is the longest one


@dataclass(frozen=True)
class Backoff:
    """Pauses that double with each failure, from `first_s` up to `longest_s`."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row; 0 after none."""
        if failures < 1:
            return 0.0
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS))


def retry(
    attempt: Callable[[float], Value],
    backoff: Backoff,
    patience_s: float,
    *,
    on: tuple[type[Exception], ...],
    wait: Callable[[float], object],
    clock: Callable[[], float] = time.monotonic,
    jitter: Callable[[], float] = lambda: 1.0,
) -> Value:
    """Call `attempt` until it returns; return its value.

    `attempt` is told how many seconds are left. Of its errors those in `on` are tried again, and
    the last is raised once the next pause would end after `patience_s`, or where `wait` says that
    nobody waits any more (True). An error may say itself how long to wait, by an attribute
    `after_s`. `jitter` draws the part of a pause that is waited.
    """
    give_up = clock() + patience_s
    failures = 0
    while True:
        try:
            return attempt(give_up - clock())
        except on as error:
            failures += 1
            pause_s = getattr(error, "after_s", None) or backoff.after(failures)
            if clock() + pause_s > give_up or wait(pause_s * jitter()):
                raise
