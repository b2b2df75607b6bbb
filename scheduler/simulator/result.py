"""What came of a workload that was played: times of the jobs, GPUs in use, pictures of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """A job that has ended."""

    name: str
    submitted: float  # s
    ended: float  # s
    restarts: int  # placements after the first
    gpu_s: float  # that it held

    @property
    def jct(self) -> float:
        """The seconds from its arrival to its end: the job completion time."""
        return self.ended - self.submitted


@dataclass(frozen=True)
class Result:
    """The outcome of each job, in the order of their arrivals."""

    jobs: tuple[Outcome, ...]
    gpus: tuple[tuple[float, int], ...]  # from each time on (s): those in use
    plans: int  # that were made
    policy_cpu_s: float  # of all of them

    @property
    def makespan(self) -> float:
        """The seconds from the first arrival to the last end."""
        return max(job.ended for job in self.jobs) - self.jobs[0].submitted

    @property
    def mean(self) -> float:
        """The mean JCT, in seconds."""
        return float(np.mean([job.jct for job in self.jobs]))

    def percentile(self, share: float) -> float:
        """Return the JCT below which this share of the jobs (in percent) lies, in seconds."""
        return float(np.percentile([job.jct for job in self.jobs], share))

    @property
    def restarts(self) -> float:
        """The mean number of restarts of a job."""
        return float(np.mean([job.restarts for job in self.jobs]))

    @property
    def gpu_s(self) -> float:
        """The GPU-seconds that the jobs held."""
        return sum(job.gpu_s for job in self.jobs)
