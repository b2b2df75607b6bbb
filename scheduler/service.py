"""The service: looks at the jobs, makes a plan, and acts by it, round after round.

What it last thought is kept by the place, for `edl schedule status` and `why`. It holds no state
that matters: it may be killed at any moment, and jobs go on as they are meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .jobs import Plan
from .place import Place, Seen, Tell
from .policy import Policy


class Service:
    """A scheduler of the jobs of one place."""

    def __init__(
        self, place: Place, policy: Policy, clock: Callable[[], float], tell: Tell
    ) -> None:
        """Take the parts. `clock`: seconds since the epoch. `tell` says what was done, in words."""
        self._place = place
        self._policy = policy
        self._clock = clock
        self._tell = tell
        self._ignored: dict[str, str] = {}  # what was not believed, by job

    def plan(self) -> dict[str, Any]:
        """Return the plan of now (as `last_plan` does), and change nothing."""
        seen, now = self._place.look(), self._clock()
        return _told(self._policy.plan(seen.jobs, seen.nodes, now), seen, now)

    def round(self) -> None:
        """Look, plan and act once, and write the plan down.

        Raises UsageError where there is no sense in what there is.
        """
        seen, now = self._place.look(), self._clock()
        for name, why in seen.ignored.items():
            if self._ignored.get(name) != why:
                self._tell(f"{name} {why}")
        self._ignored = seen.ignored
        plan = self._policy.plan(seen.jobs, seen.nodes, now)
        self._place.act(plan, seen, self._tell)
        self._place.keep(_told(plan, seen, now), self._tell)

    def serve(self, every_s: float, wake: threading.Event, is_over: Callable[[], bool]) -> None:
        """Make a round every so often, and when `wake` is set, until it is over."""
        while not is_over():
            wake.clear()
            self.round()
            wake.wait(every_s)


def _told(plan: Plan, seen: Seen, now: float) -> dict[str, Any]:
    rows = [
        {
            "name": job.name,
            "held": job.held.workers,
            "workers": plan[job.name].shape.workers,
            "minimum": job.minimum,
            "maximum": job.maximum,
            "records_left": job.left,
            "why": plan[job.name].why,
        }
        for job in seen.jobs
    ]
    return {"at": int(now), "jobs": rows, "ignored": seen.ignored}
