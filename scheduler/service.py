"""The service: looks at the jobs, makes a plan, and acts by it, round after round.

What it last thought stands in one file, for `edl schedule status`, `plan` and `why`. It holds no
state that matters: it may be killed at any moment, and jobs go on as they are meanwhile. Two of
them on one machine cannot be: the second is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..common import paths, storage
from ..common.errors import UsageError
from ..common.foreign import must_be, parse, read_plain
from .jobs import Plan
from .local import Seen, Tell
from .policy import Policy

_PLAN = "plan.json"


class Place(Protocol):
    """Where jobs are seen and changed."""

    def look(self) -> Seen: ...

    def act(self, plan: Plan, seen: Seen, tell: Tell) -> None: ...


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
        text = json.dumps(_told(plan, seen, now), indent=1)
        storage.write_file(folder() / _PLAN, text.encode())

    def serve(self, every_s: float, stop: threading.Event) -> None:
        """Make a round every so often, until told to stop."""
        while True:
            self.round()
            if stop.wait(every_s):
                return


def folder() -> Path:
    """Return the folder of the scheduler of this machine."""
    return paths.home() / "schedule"


def claim() -> int:
    """Be the only scheduler of this machine; return the lock's descriptor.

    Raises UsageError where another one runs.
    """
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return paths.lock(folder())
    except BlockingIOError as error:
        raise UsageError(
            "Another `edl schedule serve` runs on this machine: `edl schedule status`."
        ) from error


def serves() -> bool:
    """Tell whether a scheduler of this machine runs."""
    return paths.is_locked(folder())


def last_plan() -> dict[str, Any]:
    """Return the last plan: {"at": s since the epoch, "jobs": [{name, held, workers, why, …}]}.

    Raises UsageError where there is none, or none that can be read.
    """
    path = folder() / _PLAN
    try:
        values = parse(read_plain(path))
        must_be(values, {"at": int, "jobs": [{"name": str, "workers": int, "why": str}]})
    except FileNotFoundError as error:
        raise UsageError("No plan was made yet: `edl schedule serve` makes them.") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is no plan: {error}. `edl schedule serve` writes it anew."
        ) from error
    found: dict[str, Any] = values
    return found


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
    return {"at": int(now), "jobs": rows}
