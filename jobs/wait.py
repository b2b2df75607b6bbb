"""Wait until a job is in some state, wherever it runs; for scripts."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..common.errors import JobError, Unreachable
from .job import ENDED, Status

GOALS = ("done", "running", "suspended", "failed", "stopped", "ended", "deleted")


class TooLate(JobError, TimeoutError):
    """What was waited for has not come in time."""


def not_written(timeout_s: float) -> TooLate:
    """Return the error of a checkpoint that is not there in time."""
    return TooLate(
        f"The checkpoint is not written after {timeout_s:g} s; it still may be: the job's events "
        "tell what it waits for."
    )


def wait(look: Callable[[], Status | None], goal: str, timeout_s: float, pause_s: float) -> Status:
    """Look until the job is in the state of that name (GOALS); return its status.

    `look` gives None where the job is gone. Who waits for running is content with done: it has run.
    Raises JobError where that cannot come any more, TooLate where not in time.
    """
    give_up = time.monotonic() + timeout_s
    status: Status | None = {}
    trouble = ""
    while True:
        try:
            status, trouble = look(), ""
        except Unreachable as error:
            trouble = f" ({error})"
        if not trouble and _is_there(status, goal):
            return status or {}
        state = (status or {}).get("state", "?")
        if time.monotonic() + pause_s > give_up:
            raise TooLate(f"It is not {goal} after {timeout_s:g} s, but {state}{trouble}.")
        time.sleep(pause_s)


def _is_there(status: Status | None, goal: str) -> bool:
    """Tell whether the goal is reached. Raises JobError where it cannot come any more."""
    if status is None:
        if goal == "deleted":
            return True
        raise JobError(f"It is not {goal}: it was deleted.")
    state = status.get("state")
    if state == goal or (goal == "ended" and state in ENDED):
        return True
    if goal == "running" and state in ("stopping", "done"):
        return True
    if goal != "deleted" and (state in ENDED or state == "dead"):
        why = f": {status['message']}" if status.get("message") else ""
        raise JobError(f"It is not {goal}, but {state}{why}")
    return False
