"""The scheduler's last plan for a job and its cost by given prices, which its master cannot tell.

Both are read seldom, in the thread that hears of the job. What cannot be read is a sentence where
its figures would be, and never stops the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..common.errors import EdlError, UsageError
from ..jobs.job import Job, Jobs, Status

if TYPE_CHECKING:
    from ..k8s.api import Api

_EVERY_S = 5.0
_DOLLARS = {
    "dollars": "usd",
    "dollars_per_million": "per_million_records_usd",
    "saved": "saved_usd",
}

Aside = dict[str, Any]
Found = tuple[Aside | None, Aside | None]  # schedule and cost


class Asides:
    """The plans and costs of the jobs of one place. `prices`: a file of them; "": none."""

    def __init__(
        self, jobs: Jobs, prices: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        self._api: Api | None = getattr(jobs, "api", None)  # of a cluster
        self._prices = prices
        self._now = now
        self._found: dict[str, tuple[float, Found]] = {}

    def of(self, job: Job, status: Status) -> Found:
        """Return what the scheduler says of a job, and what it has cost; None: nothing."""
        at, found = self._found.get(job.name, (float("-inf"), (None, None)))
        if self._now() - at >= _EVERY_S:
            found = self._schedule(job), self._cost(job, status)
            self._found[job.name] = self._now(), found
        return found

    def _schedule(self, job: Job) -> Aside | None:
        try:
            last = self._last_plan()
        except UsageError:
            return None  # nobody schedules here
        except EdlError as error:
            return {"why": f"The scheduler's plan cannot be read: {error}"}
        if said := last["ignored"].get(job.name):
            return {"why": f"{job.name} {said}"}
        for row in last["jobs"]:
            if row["name"] == job.name:
                return {name: value for name, value in row.items() if name != "name"}
        return None

    def _last_plan(self) -> dict[str, Any]:
        if self._api is None:
            from ..scheduler import local  # with numpy, which nobody waits for at the start

            return local.last_plan()
        from ..scheduler import in_cluster  # with a client of Kubernetes

        return in_cluster.last_plan(self._api)

    def _cost(self, job: Job, status: Status) -> Aside | None:
        if not self._prices or status.get("usage") is None:
            return None
        from ..scheduler import bill
        from ..scheduler.prices import read

        try:
            used = bill.used(job, status)
            told = bill.row(used, read(self._prices, bill.kinds([used]), others=True))
        except EdlError as error:
            return {"why": str(error)}
        return {_DOLLARS.get(name, name): told[name] for name in told if name != "job_name"}
