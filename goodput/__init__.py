"""How fast a job makes progress on an allocation, and with which batch size. Needs numpy and scipy only.

from edl.goodput import GoodputFunction, GradParams, fit_perf_params
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
