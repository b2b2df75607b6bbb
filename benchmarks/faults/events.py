"""Events that a program tells of itself: a line of JSON each.

Nothing but the standard library: it runs in the rivals' environments too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

RECORDS, BATCH, BATCHES = 8192, 16, 8
TASK = BATCH * BATCHES  # records of a task
DELAY_S = 0.02  # that a minibatch computes


def say(event: str, **more: Any) -> None:
    """Tell an event. `at` is the machine's monotonic clock, the same one for all processes."""
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)


def batches(start: int, end: int) -> list[tuple[int, int]]:
    """Return the minibatches of a range of records."""
    return [(first, min(first + BATCH, end)) for first in range(start, end, BATCH)]


def hear() -> str:
    """Return the next line of the standard input; "" when there are no more."""
    return sys.stdin.readline().strip()
