"""Numbers of the predecessor, and the formulas of Pollux (OSDI '21) in plain floats: the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest


def sync_s(perf, nodes, replicas):
    """Section 3.2, T_sync: 0 for one replica; alpha + beta * (K - 2), by node or between nodes."""
    alpha_n, beta_n, alpha_r, beta_r = perf[2:6]
    if replicas == 1:
        return 0.0
    if nodes == 1:
        return alpha_r + beta_r * (replicas - 2)
    return alpha_n + beta_n * (replicas - 2)


def pass_s(perf, nodes, replicas, atomic):
    """Section 3.2, 8 - 11: T_grad = alpha + beta * m; (T_grad^gamma + T_sync^gamma)^(1 / gamma)."""
    grad_s = perf[0] + perf[1] * atomic
    gamma = perf[6]
    return grad_s, (grad_s**gamma + sync_s(perf, nodes, replicas) ** gamma) ** (1 / gamma)


def throughput(perf, nodes, replicas, atomic, accum):
    """Section 3.2, eqns 8 to 11: THROUGHPUT = M / T_iter, T_iter = s * T_grad + the last pass."""
    grad_s, optim_s = pass_s(perf, nodes, replicas, atomic)
    return replicas * atomic * (accum + 1) / (accum * grad_s + optim_s)


def efficiency(grad, init, batch):
    """Section 3.1, eqn 6: EFFICIENCY(M) = (phi + M0) / (phi + M), phi = M0 * var / sqr."""
    sqr, var = grad
    phi = init * var / sqr
    return (phi + init) / (phi + batch)


@pytest.fixture(scope="session")
def golden():
    return SimpleNamespace(**json.loads((Path(__file__).parent / "golden.json").read_text()))


@pytest.fixture(scope="session")
def oracle():
    return SimpleNamespace(
        sync_s=sync_s, pass_s=pass_s, throughput=throughput, efficiency=efficiency
    )
