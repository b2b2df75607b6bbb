"""Workloads by the parameters of Pollux's (OSDI '21, section 5.3), which are of Microsoft's Philly.

160 jobs come in eight hours. When, and which applications they are, is drawn by the shares that the
eight published workloads of 160 jobs have, as counted: of each hour, and of each application, which
stands for the jobs of some GPU-hours.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...common.errors import UsageError
from .workload import Arrival

NAME = "philly"
JOBS = 160
_HOUR_S = 3600.0
_BY_HOUR = (144, 142, 92, 146, 197, 287, 148, 124)  # of 1,280
_BY_APPLICATION = {
    "ncf": 0.393,
    "cifar10": 0.387,
    "deepspeech2": 0.087,
    "bert": 0.067,
    "yolov3": 0.046,
    "imagenet": 0.020,
}


def philly(applications: Collection[str], seed: int, jobs: int = JOBS) -> list[Arrival]:
    """Return so many jobs of eight hours, by time. More jobs are more load.

    Raises UsageError where the applications are none of Pollux's.
    """
    names = sorted(_BY_APPLICATION.keys() & set(applications))
    if not names:
        raise UsageError(
            f"A workload {NAME} is made of {', '.join(_BY_APPLICATION)}: the traces have none."
        )
    rng = np.random.default_rng(seed)
    shares = np.array([_BY_APPLICATION[name] for name in names])
    hours = np.array(_BY_HOUR, float)
    at = rng.choice(len(hours), jobs, p=hours / hours.sum()) + rng.random(jobs)
    chosen = rng.choice(len(names), jobs, p=shares / shares.sum())
    return [
        Arrival(f"{names[which]}-{i}", round(float(time) * _HOUR_S, 1), names[which])
        for i, (time, which) in enumerate(zip(np.sort(at), chosen, strict=True))
    ]
