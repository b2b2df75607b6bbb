"""The end of an EdlJob by its own spec: its deadline, and how long it is kept after it. Pure.

Both are counted from what its status says, so that a controller may be killed at any time. As of a
batch Job, the deadline runs while the job is not suspended, from its begin or its last resumption.
"""

from __future__ import annotations

import json
import math

from . import names, objects
from .api import Object
from .job_status import DEADLINE, age_s

GIVES_S = 120.0  # beyond the deadline to a job that stops in order; a drain and a checkpoint
_FIELD = "spec.activeDeadlineSeconds"


def left_s(job: Object, now: str) -> float | None:
    """Return for how long a job may go on; None: as long as it likes. `now`: RFC 3339."""
    spec, status = job["spec"], job.get("status") or {}
    most, since = spec.get("activeDeadlineSeconds"), _condition(status, "Suspended")
    if most is None or spec.get("suspend") or since.get("status") != "False":
        return None
    return _left_s(float(most), str(since.get("lastTransitionTime") or ""), now)


def words(spec: Object) -> str:
    """Say why a job is stopped at its deadline."""
    most = spec.get("activeDeadlineSeconds")
    return f"{_FIELD}: {most} s are over" if most else f"{_FIELD} was over"


def is_stopped(config: Object | None) -> bool:
    """Tell whether a job's master was told to stop because of the deadline."""
    try:
        said = json.loads(config["data"][objects.WANTED])["stop"] if config else ""
    except (KeyError, TypeError, ValueError):  # somebody has written into it
        return False
    return str(said).startswith(_FIELD)


def has_lapsed(status: Object) -> bool:
    """Tell whether a job was ended at its deadline by the controller: it never goes on."""
    failed = _condition(status, "Failed")
    return (
        status.get("phase") == "Failed"
        and failed.get("reason") == DEADLINE
        and "exitCode" not in status
    )


def kept_s(job: Object, now: str) -> float | None:
    """Return how long a job that is over is still kept; None: for good, or it is not over."""
    status, most = job.get("status") or {}, job["spec"].get("ttlSecondsAfterFinished")
    if most is None or status.get("phase") not in names.OVER or "completionTime" not in status:
        return None
    return _left_s(float(most), str(status["completionTime"]), now)


def _condition(status: Object, kind: str) -> Object:
    found: list[Object] = status.get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def _left_s(most: float, since: str, now: str) -> float | None:
    passed_s = age_s(since, now)
    return None if math.isinf(passed_s) else most - passed_s  # somebody has written no time there
