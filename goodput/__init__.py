"""How fast a job makes progress, and with which batch: `from edl.goodput import GoodputFunction`."""

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
