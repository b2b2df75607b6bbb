"""edl.goodput under the name that AdaptDL's imports give when they are ported."""

from ..goodput import GoodputFunction, GradParams, PerfParams, fit_perf_params

__all__ = ["GoodputFunction", "GradParams", "PerfParams", "fit_perf_params"]
