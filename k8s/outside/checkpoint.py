"""A checkpoint of a cluster's job that somebody asks for.

The question goes into the job's ConfigMap, which its master watches, and how it ended stands in the
status: nothing outside the cluster can call a pod.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from ...common.errors import JobError, Unreachable
from ...jobs.job import ENDED
from ...jobs.wait import not_written

if TYPE_CHECKING:
    from .job import ClusterJob

_LOOK_S = 1.0  # a status is written every two seconds
_MOST = 8  # questions that stand there at once; a master has met the older ones


def ask(job: ClusterJob, timeout_s: float) -> str:
    """Have a checkpoint written; return where it is. Raises JobError, TooLate."""
    question, give_up = uuid.uuid4().hex, time.monotonic() + timeout_s

    def change(wanted: dict[str, Any]) -> None:
        wanted["checkpoints"] = [*(wanted.get("checkpoints") or []), question][-_MOST:]

    job.want(change)
    while True:
        try:
            status = job.look() or {"state": "failed"}
        except Unreachable:  # it passes, or the time is up
            status = {}
        told = [each for each in status.get("requested") or [] if each["id"] == question]
        if told and told[0]["refused"]:
            raise JobError(str(told[0]["refused"]))
        if told:
            return str(told[0]["checkpoint"])
        if status.get("state") in ENDED:
            raise JobError(f"Job {job.name!r} has ended: {status['state']}.")
        if time.monotonic() + _LOOK_S > give_up:
            raise not_written(timeout_s)
        time.sleep(_LOOK_S)
