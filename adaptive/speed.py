"""The speed of training, told to whoever launched this process: `edl status`, and a scheduler.

Rank 0 tells the records a second of the last TELL_S of a loop that trains. What passes between
loops, and the first step of one, do not count.
"""

from __future__ import annotations

from ..common import told
from ..common.clock import Clock
from . import collective

TELL_S = 2.0  # between two words; a coordinator hears of it within a beat


class Speed:
    """The rate at which a loop trains."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._records = 0

    def begin(self) -> None:
        """Begin a loop: what was before it does not count."""
        self._since, self._records = None, 0

    def step(self, records: int, left: int | None = None) -> None:
        """Note a step of so many records, over all replicas; `left` are still to come, if known."""
        now = self._clock.now()
        if self._since is None:
            self._since = now
            return
        self._records += records
        passed_s = now - self._since
        if passed_s < TELL_S:
            return
        if collective.place()[0] == 0 and told.is_heard():
            rate = self._records / passed_s
            told.tell(throughput=rate, remaining_s=None if left is None else left / rate)
        self._since, self._records = now, 0
