"""The speed at which a job makes progress, and the batch to choose for it.

Use it by `from edl.goodput import GoodputFunction`.
"""

from .fit import fit_perf_params
from .model import GoodputFunction, GradParams, PerfParams
from .speedup import SpeedupFunction, fair_replicas, linear_speedup

__all__ = [
    "GoodputFunction",
    "GradParams",
    "PerfParams",
    "SpeedupFunction",
    "fair_replicas",
    "fit_perf_params",
    "linear_speedup",
]
