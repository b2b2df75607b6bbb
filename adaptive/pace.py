"""The pace of exchanges between replicas: after how many steps the next one follows.

An exchange costs each replica about a millisecond of a busy machine, so where steps are that short
there is one each PACE_S only: with it replicas agree, by the least that one proposes, after how
many steps the next but one follows.
"""

from __future__ import annotations

from ..common.clock import Clock

PACE_S = 0.05  # between exchanges: nobody minds leaving a tenth of a second late
_MOST_STEPS = 100  # between exchanges


class Pace:
    """The pace of exchanges: after how many steps the next follows, the same on all replicas."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Let the next boundary exchange, and the one after it."""
        self._steps = 1  # from the last exchange to the next,
        self._proposed = 1  # at most so many from that to the one after it
        self._left = 0
        self._last_s: float | None = None

    def due(self) -> bool:
        """Tell, at each boundary, whether it exchanges."""
        self._left -= 1
        return self._left < 0

    def reaches(self, surely: float) -> bool:
        """Tell whether `surely` steps from now may be over at the next exchange."""
        return surely <= self._proposed

    def propose(self, surely: float) -> int:
        """Return the steps from the next exchange to the one after it, if this replica is asked.

        That one is then at most `surely` steps from now.
        """
        now, before, most = self._clock.now(), self._last_s, surely - self._proposed
        self._last_s = now
        if before is not None:
            step_s = max((now - before) / self._steps, 1e-6)
            self._proposed = int(max(1, min(PACE_S / step_s, most, _MOST_STEPS)))
        return self._proposed

    def agree(self, steps: int) -> None:
        self._steps = steps
        self._left = steps - 1
