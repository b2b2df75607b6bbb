"""The source of what is played: a file, a folder of jobs of our own, or a generator."""

from __future__ import annotations

from pathlib import Path

from ...common.errors import UsageError
from . import generated
from .application import Traced, read_applications
from .recorded import read_jobs
from .workload import Arrival, read_workload


def read(
    workload: str, traces: str | None, seed: int, machines: str = "", jobs: int | None = None
) -> tuple[list[Arrival], dict[str, Traced]]:
    """Return the jobs of a workload by time, and the applications that they are of.

    `workload`: a CSV file, a folder of jobs, or `philly`. `traces`, `machines`: of a file and of
    `philly`. Raises UsageError, in one sentence, for what makes no sense.
    """
    path = Path(workload)
    if path.is_dir():
        if traces or machines:
            raise UsageError(f"{path} has jobs of our own, which bring their speed: no --traces.")
        return read_jobs(path)
    is_drawn = workload == generated.NAME and not path.exists()
    if not is_drawn and not path.exists():
        raise UsageError(f"There is no {path}: give a file, a folder of jobs, or `philly`.")
    if jobs is not None and not is_drawn:
        raise UsageError("--jobs is of `philly`: a file says itself how many there are.")
    if not traces:
        raise UsageError("--traces is missing: a folder for each application of the workload.")
    applications = read_applications(Path(traces), machines)
    if is_drawn:
        return generated.philly(applications, seed, jobs or generated.JOBS), applications
    return read_workload(path, applications), applications
