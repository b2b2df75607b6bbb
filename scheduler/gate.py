"""The gate of Kueue before one EdlJob: the leave that it gives, and steps about Workloads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..k8s.api import Object
from .jobs import Given, Job


@dataclass(frozen=True)
class Make:
    """Make a Workload for a job."""

    job: str
    body: Object = field(compare=False)


@dataclass(frozen=True)
class Drop:
    """Delete a Workload of a job, if it is still the one of this uid."""

    job: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Suspend:
    """Suspend a job that runs and may not, as it was seen.

    `evictions`: how often its pods were not ready in Kueue's time, with this once more.
    """

    job: Object = field(compare=False)
    why: str
    evictions: int = 0


Step = Make | Drop | Suspend


@dataclass(frozen=True)
class Gate:
    """The leave that Kueue gives a job.

    `is_open`: it is given to the policy. `workers`: the most that it may have, None where Kueue has
    no say. `says`: what is in the way, or "".
    """

    is_open: bool = True
    says: str = ""
    workers: int | None = None
    servers: int = 0
    queue: str = ""  # whose quota it has
    is_full: bool = False  # more were asked for, for long, and not admitted
    held_up: int = 0  # workers that an administrator, or Kueue, has deactivated

    def fit(self, job: Job) -> Job:
        """Return the job as the policy may plan it: Kueue alone suspends it and begins it."""
        if self.workers is None:
            return job
        most = job.maximum
        if self.is_full:
            most = min(most, max(job.minimum, self.workers + self.held_up))
        return replace(
            job,
            maximum=most,
            waits_since=None if job.waits_since is None else 0.0,
            servers=(job.held.servers if job.held.workers else self.servers,),
            is_pinned=job.is_pinned and job.held.workers <= self.workers,
            may_be_suspended=False,
        )

    def bound(self, given: Given) -> Given:
        """Return what was planned, with no more workers than are admitted."""
        planned = given.shape.workers
        if self.workers is None or planned <= self.workers:
            return given
        why = f"{given.why}; {self.workers} of {planned} workers are admitted by Kueue"
        return replace(given, shape=replace(given.shape, workers=self.workers), why=why)


OPEN = Gate()
