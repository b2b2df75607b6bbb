"""The end of a worker that was told to go, where it cannot hand its leases back.

It finishes its minibatch and hands back to the master, by patient calls that survive a master's or
a server's replacement. But where the job itself is being taken away (suspended, deleted), nobody
will ever answer, and the room that this worker holds is wanted now. What is not handed back costs
nothing but time: its lease is fenced, and it is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..common.errors import EdlError

_GONE_S = 3.0  # a master that does not answer for so long is taken for gone; a guess
_AGAIN_S = 1.0


def leave_in_time(
    ask: Callable[[float], object],
    end: Callable[[str], object],
    grace_s: float,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """End this process when its grace is over or its master has gone.

    `end` does it, and says why. `ask(patience_s)` raises EdlError where the master does not answer
    for so long. Whoever leaves in order does so meanwhile, and this with it.
    """
    until = now() + grace_s
    while (left_s := until - now()) > 0:
        try:
            ask(min(_GONE_S, left_s))
        except EdlError as error:
            end(f"there is nobody to hand back to ({error})")
            return
        wait(min(_AGAIN_S, left_s))
    end(f"the grace of {grace_s:g} s is over")
