"""A workload of jobs of our own, out of what they have left: their settings and their last status.

Each job is an application of its own: as long as its records, as fast as its report says that it
was by its workers. Between two numbers of workers a line, and beyond the most that were seen as
fast as these (twice as many: no faster), so nothing is made up that no job has shown. A worker is a
GPU of the cluster that it is played on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...common import report as reports
from ...common.errors import EdlError, UsageError
from ...common.report import Report
from ...goodput import GradParams
from ...jobs import queue
from ...jobs.job import Status
from ...jobs.local import LocalJob
from ..speed import rates
from .application import Placement, Traced
from .workload import Arrival

_AS_ALL = GradParams(sqr=0.0, var=1.0)  # each record counts the same, however many there are a step


class Recorded:
    """A job as it was seen, to be played as an application: a `Traced`."""

    def __init__(self, name: str, report: Report, most: int) -> None:
        """Take a report with samples. `most`: workers that it may have."""
        measured = {workers: rate for workers, rate in rates(report.samples).items() if rate}
        self._workers, self._rates = list(measured), list(measured.values())
        sizes = [each.minibatch for each in report.samples if each.minibatch]
        size = max(1, min(sizes, default=1))
        self.name = name
        self.local_range = size, size
        self.batch_range = size, size * most
        self.batch: int | None = None
        self.replicas = most
        self.epochs = 1
        self._steps = (report.records_total or 0) / size

    @property
    def is_known(self) -> bool:
        """Tell whether its speed and its length were seen."""
        return bool(self._workers) and self._steps > 0

    def end_of(self, _epoch: int) -> float:
        """Return its records in minibatches of one worker."""
        return self._steps

    def step_s(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """Return the seconds in which all workers make one minibatch each, and 0."""
        workers = sum(placement)
        rate = float(np.interp(workers, [0, *self._workers], [0.0, *self._rates]))
        return workers * local_batch / rate, 0.0

    def gradient(self, _batch: int, _epoch: int) -> GradParams:
        """Return the gradient of which all records count the same."""
        return _AS_ALL


def read_jobs(folder: Path) -> tuple[list[Arrival], dict[str, Traced]]:
    """Return the jobs of a folder of jobs ($EDL_HOME/jobs), by time, and what each was like.

    Raises UsageError, which names the job and what it lacks, for one that has left no report with
    a throughput, and where there is no job.
    """
    found: dict[str, tuple[float, Recorded]] = {}
    for path in sorted(folder.iterdir()):
        if not (path / "settings.json").exists():
            continue
        job = LocalJob(path)
        try:
            status = job.status()
            told = status.get("report")
            report = None if told is None else reports.read(told)
            came, most = _asked(job, status)
        except EdlError as error:
            raise UsageError(f"{path}: {error} Take it out of the folder.") from error
        if report is None:
            raise UsageError(f"{path} has left no report: take it out of the folder.")
        application = Recorded(path.name, report, most)
        if not application.is_known:
            raise UsageError(
                f"{path} has left no throughput, or has no end: take it out of the folder."
            )
        found[path.name] = came, application
    if not found:
        raise UsageError(f"{folder} has no folder of a job: give $EDL_HOME/jobs, or a copy of it.")
    first = min(came for came, _ in found.values())
    arrivals = [Arrival(name, came - first, name) for name, (came, _) in found.items()]
    by_name: dict[str, Traced] = {name: it for name, (_, it) in found.items()}
    return sorted(arrivals, key=lambda job: (job.submitted, job.name)), by_name


def _asked(job: LocalJob, status: Status) -> tuple[float, int]:
    """Return when a job came, s since the epoch, and the most workers that it may have."""
    ask = queue.ask_of(job)
    if ask is not None:
        return float(ask.submitted), ask.maximum
    workers = max((row["index"] + 1 for row in status.get("workers") or ()), default=1)
    return (job.folder / "settings.json").stat().st_mtime, workers
