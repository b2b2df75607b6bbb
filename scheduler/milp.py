"""The best choice of one option for each job where several amounts decide: by HiGHS. Pure.

Nodes of several kinds, several resources that bind, quotas that overlap: a mixed-integer linear
program, with a binary variable for each option of each job.
"""

from __future__ import annotations

import numpy as np

from .knapsack import Problem

_GAP = 1e-6  # relative: where the solver may stop


def solve(problem: Problem, time_limit_s: float) -> list[int] | None:
    """Return the option of each job; None where none was found within the time."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a second
    from scipy.sparse import csr_array, vstack

    sizes = [len(each) for each in problem.amounts]
    values = np.concatenate(problem.values).astype(float)
    rows = np.concatenate(problem.amounts)
    finite = np.isfinite(problem.limits)
    # In shares of the limit, so that bytes and cores are of one size to the solver.
    limits = problem.limits[finite]
    scale = np.where(limits > 0, limits, 1.0)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    one_each = csr_array((np.ones(len(owners)), (owners, np.arange(len(owners)))))
    taken = csr_array((rows[:, finite] / scale).T)
    lower = np.concatenate([np.ones(len(sizes)), np.full(len(limits), -np.inf)])
    upper = np.concatenate([np.ones(len(sizes)), limits / scale])
    result = milp(
        -values / max(float(np.abs(values).max()), 1.0),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(vstack([one_each, taken]), lower, upper),
        # Presolving takes half a minute where solving takes half a second (500 jobs, two kinds of
        # nodes), and does not look at the time limit.
        options={"time_limit": time_limit_s, "mip_rel_gap": _GAP, "presolve": False},
    )
    if result.x is None:
        return None
    chosen = np.split(result.x, np.cumsum(sizes)[:-1])
    return [int(each.argmax()) for each in chosen]
