"""The cores that this process may compute on, and its share of them beside others that are alike.

They are those of its affinity (taskset, a cpuset), and no more than the CPU quota of its cgroup and
of those above it lets run (cgroups v1 and v2): a container that has 2 of 64 cores has 2. Who set
OMP_NUM_THREADS has said how many threads a process shall compute with, as for torch itself.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from .cgroups import MOUNT as _MOUNT
from .cgroups import OWN as _CGROUP
from .cgroups import groups_of


def usable() -> int:
    """Return how many cores this process may use, at least 1; a part of a core counts as one."""
    cores, quota = len(os.sched_getaffinity(0)), _quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def share(processes: int, *, spare: int = 0, own_quota: bool = False) -> int:
    """Return how many threads each of so many processes, alike, should compute with, at least 1.

    `spare` cores are left to others. `own_quota`: a quota is of this process alone, as in a pod.
    """
    cores = usable() - spare
    if not own_quota or _quota() is None:
        cores //= max(1, processes)
    return max(1, min(cores, _openmp() or cores))


def _openmp() -> int | None:
    """Return OMP_NUM_THREADS, of a list the first; None where it is not set, or is no number."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else None


def _quota() -> float | None:
    """Return how many cores the cgroups of this process let it use; None: as many as there are."""
    found = [
        quota
        for tree, group in groups_of("cpu", _CGROUP, _MOUNT)
        for folder in (group, *group.parents)
        if folder.is_relative_to(tree) and (quota := _quota_in(folder)) is not None
    ]
    return min(found, default=None)


def _quota_in(folder: Path) -> float | None:
    """Return the quota that a cgroup says in cores; None where it has none."""
    try:
        if (file := folder / "cpu.max").exists():  # v2: "200000 100000", or "max 100000"
            most, period = file.read_text().split()
        else:
            most = (folder / "cpu.cfs_quota_us").read_text().strip()  # -1: none
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(most) / int(period) if most.isdecimal() and int(most) and int(period) else None
    except (OSError, ValueError):  # it is the root, or none of the CPU
        return None
