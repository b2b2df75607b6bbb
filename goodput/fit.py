"""The fit of the parameters of a step's model to measured times (Pollux, OSDI '21, section 4.1).

The parameters minimise the sum of

    the root of the mean squared error of log T_grad          a pass forward and backward
    the same of log T_optim                                   a pass that synchronises too
    1e-3 * (gamma - 1)^2                                      computing and synchronising take turns
    1e-2 * ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)      more replicas cost little more

within their bounds, by L-BFGS-B with the gradient written out. What no row tells of is not fitted
but assumed at its best, so that a job is tried where it has not run yet (section 4.1, "prior-driven
exploration"): it synchronises in no time on one node, or on several, or more replicas than two cost
nothing.

Two things make the optimizer find the minimum, which neither moves. Times and batch sizes are
divided by their means first, or its variables would differ a thousandfold. And the roots, which
have a kink where all rows are met exactly, are rounded off at first, less each time, the last time
not at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .model import Floats, PerfParams, allocation, atomic_sizes, check

LEAST = 1e-8  # s: of alphas and betas; what is assumed of those that no row tells of
MOST_GAMMA = 10.0
_TAKES_TURNS = 1e-3  # weight of the prior on gamma
_COSTS_LITTLE = 1e-2  # of those on beta / alpha
_FARTHER = 1.1  # synchronising on several nodes, where it was only measured on one, over that

# In units of the means: a guess, away from where a single row is met exactly.
_START = (0.5, 0.45, 0.5, 0.05, 0.5, 0.05, 2.0)
# By trial on random sets of rows: these end 4e-4 at most above the best of many ways to the
# minimum, the last one alone 2.2e-3. Stricter tolerances take twice as long and end no lower.
_ROUNDINGS = (0.1, 0.01, 1e-3, 1e-4, 0.0)
_TOLERANCES = {"ftol": 1e-9, "gtol": 1e-6}
_TINY = np.finfo(float).tiny  # s: of a synchronisation that there is not; its logarithm is finite


class Rows(NamedTuple):
    """The rows that were measured, n of them.

    T_grad = grad_n2 @ theta[:2], T_sync = sync_n4 @ theta[2:6].
    """

    grad_n2: Floats
    sync_n4: Floats
    log_accum_n: Floats
    log_optim_n: Floats


def fit_perf_params(
    num_nodes: ArrayLike,
    num_replicas: ArrayLike,
    atomic_bsz: ArrayLike,
    accum_step_time: ArrayLike,
    optim_step_time: ArrayLike,
) -> PerfParams:
    """Return the parameters that explain the measured times best.

    Each argument has a number for each row, or one for all: where and with what it was measured,
    and the seconds of a pass that only accumulates and of one that synchronises. One row is enough.
    Raises ValueError for none, for columns of different lengths, for times that are not above 0 s
    and finite, and for allocations and batch sizes that there are not.
    """
    columns = _columns(num_nodes, num_replicas, atomic_bsz, accum_step_time, optim_step_time)
    nodes, replicas, atomic, accum_s, optim_s = columns
    second, example = accum_s.mean(), atomic.mean()
    units = np.array([second, second / example, *[second] * 4, 1.0])
    lower = np.array([LEAST] * 6 + [1.0]) / units
    upper = np.array([np.inf] * 6 + [MOST_GAMMA])
    for index, value in _assumed(nodes, replicas, atomic, accum_s).items():
        lower[index] = upper[index] = value / units[index]
    rows = rows_of(nodes, replicas, atomic / example, accum_s / second, optim_s / second)
    perf = PerfParams(*(_minimum(rows, lower, upper) * units).tolist())
    if (nodes > 1).any():
        return perf
    return perf._replace(
        alpha_n=max(perf.alpha_n, _FARTHER * perf.alpha_r),
        beta_n=max(perf.beta_n, _FARTHER * perf.beta_r),
    )


def rows_of(
    nodes: Floats, replicas: Floats, atomic: Floats, accum_s: Floats, optim_s: Floats
) -> Rows:
    one, several = (nodes == 1) & (replicas > 1), nodes > 1
    more = np.maximum(replicas - 2, 0)
    return Rows(
        np.stack([np.ones_like(atomic), atomic], -1),
        np.stack([several, several * more, one, one * more], -1),
        np.log(accum_s),
        np.log(optim_s),
    )


def objective(theta: Floats, rows: Rows, rounding: float = 0.0) -> tuple[float, Floats]:
    """Return what is minimised, and its gradient: in the order of PerfParams."""
    grad_s, gamma = rows.grad_n2 @ theta[:2], theta[6]
    sync_s = np.maximum(rows.sync_n4 @ theta[2:6], _TINY)
    log_grad, log_sync = np.log(grad_s), np.log(sync_s)
    log_optim = np.logaddexp(gamma * log_grad, gamma * log_sync) / gamma
    share = np.exp(gamma * (log_grad - log_optim))  # of T_grad^gamma in T_optim^gamma

    accum_error, accum_slope_n = _root_mean_square(log_grad - rows.log_accum_n, rounding)
    optim_error, optim_slope_n = _root_mean_square(log_optim - rows.log_optim_n, rounding)
    by_gamma_n = (share * log_grad + (1 - share) * log_sync - log_optim) / gamma
    gradient = np.empty(7)
    gradient[:2] = ((accum_slope_n + optim_slope_n * share) / grad_s) @ rows.grad_n2
    gradient[2:6] = (optim_slope_n * (1 - share) / sync_s) @ rows.sync_n4
    gradient[6] = optim_slope_n @ by_gamma_n + 2 * _TAKES_TURNS * (gamma - 1)

    alphas, betas = theta[2:6:2], theta[3:6:2]
    ratios = betas / alphas
    gradient[2:6:2] -= 2 * _COSTS_LITTLE * ratios**2 / alphas
    gradient[3:6:2] += 2 * _COSTS_LITTLE * ratios / alphas
    priors = _TAKES_TURNS * (gamma - 1) ** 2 + _COSTS_LITTLE * (ratios**2).sum()
    return float(accum_error + optim_error + priors), gradient


def _root_mean_square(errors: Floats, rounding: float) -> tuple[float, Floats]:
    """Return the root mean square of the errors, and its slope in each of them."""
    root = float(np.sqrt((errors**2).mean() + rounding**2))
    return root, errors / (len(errors) * max(root, _TINY))


def _minimum(rows: Rows, lower: Floats, upper: Floats) -> Floats:
    from scipy.optimize import minimize  # takes a second, which who only schedules need not wait

    theta = np.clip(_START, lower, upper)
    for rounding in _ROUNDINGS:
        theta = minimize(
            objective,
            theta,
            args=(rows, rounding),
            jac=True,
            method="L-BFGS-B",
            bounds=np.stack([lower, upper], -1),
            options=_TOLERANCES,
        ).x
    return theta


def _assumed(nodes: Floats, replicas: Floats, atomic: Floats, accum_s: Floats) -> dict[int, float]:
    """Return, by place in PerfParams, the values that are assumed where no row tells of them."""
    assumed: dict[int, float] = {}
    if (atomic == atomic[0]).all():  # half of a pass for ever, half by its examples: a guess
        assumed[0] = accum_s.mean() / 2
    if not (nodes > 1).any():
        assumed |= {2: LEAST, 3: LEAST}
    if not ((nodes == 1) & (replicas > 1)).any():
        assumed |= {4: LEAST, 5: LEAST}
    if not (replicas > 2).any():
        assumed |= {3: LEAST, 5: LEAST}
    return assumed


def _columns(*given: ArrayLike) -> list[Floats]:
    try:
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, float)) for each in given))
    except ValueError as error:
        raise ValueError(f"the columns of the rows do not fit together: {error}") from error
    check(columns[0].ndim == 1 and len(columns[0]), "there is at least one row of measured times")
    nodes, replicas, atomic, accum_s, optim_s = columns
    allocation(nodes, replicas)
    atomic_sizes(atomic)
    for time_s in (accum_s, optim_s):
        check((time_s > 0) & (time_s < np.inf), "a measured time is above 0 s", time_s=time_s)
    return list(columns)
