"""The speed at which a job makes progress, and the batch to choose for it.

Use it by `from edl.goodput import GoodputFunction`.
"""

from .fit import fit_perf_params
from .model import GoodputFunction, GradParams, PerfParams
from .servers import ServersParams, ServersPoint, fit_servers_params
from .speedup import SpeedupFunction, fair_replicas, linear_speedup

__all__ = [
    "GoodputFunction",
    "GradParams",
    "PerfParams",
    "ServersParams",
    "ServersPoint",
    "SpeedupFunction",
    "fair_replicas",
    "fit_perf_params",
    "fit_servers_params",
    "linear_speedup",
]
