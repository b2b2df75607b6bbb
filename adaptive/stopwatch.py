"""A stopwatch for a stretch of work, on the device that does it.

On a CUDA device marks are events in the stream: the host runs ahead of the device, so its own clock
would measure how fast work is queued. Events are read when they have passed, so nothing waits for
the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from ..common.clock import Clock

Add = Callable[[float], None]
Moment = float | torch.cuda.Event


class Stopwatch:
    """A stopwatch that marks moments, and tells the seconds between two once they are known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event, Add]] = deque()

    def mark(self) -> Moment:
        """Mark this moment. CUDA counts where the process has used it."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return self._clock.now()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def measure(self, begun: Moment, ended: Moment, add: Add) -> None:
        """Call `add(seconds)` from one mark to the other: now, or in a later call of this."""
        if isinstance(begun, float) and isinstance(ended, float):
            add(ended - begun)
        elif not isinstance(begun, float) and not isinstance(ended, float):
            self._open.append((begun, ended, add))
        self.collect()

    def collect(self) -> None:
        """Tell the seconds that have become known."""
        while self._open and self._open[0][1].query():  # type: ignore[no-untyped-call]
            begun, ended, add = self._open.popleft()
            add(begun.elapsed_time(ended) / 1000)
