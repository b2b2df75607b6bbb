"""A11: each optimizer against `torch.optim`, AMSGrad and lazily created rows included.

They are equal within the tolerance of float32.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edl.nn import optimizers as specs
from edl.nn.model_spec import TableSpec
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.table import Table

STEPS = 30
ROWS, DIM = 12, 5

CASES = {
    "sgd": (specs.SGD(0.1), torch.optim.SGD, {}),
    "sgd-decay": (specs.SGD(0.1, weight_decay=0.01), torch.optim.SGD, {"weight_decay": 0.01}),
    "momentum": (specs.SGD(0.1, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    "dampening": (
        specs.SGD(0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01},
    ),
    "nesterov": (
        specs.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "adagrad": (specs.Adagrad(0.1), torch.optim.Adagrad, {}),
    "adagrad-all": (
        specs.Adagrad(0.1, weight_decay=0.01, initial_accumulator_value=0.1, eps=1e-6),
        torch.optim.Adagrad,
        {"weight_decay": 0.01, "initial_accumulator_value": 0.1, "eps": 1e-6},
    ),
    "adam": (specs.Adam(0.1), torch.optim.Adam, {}),
    "adam-decay": (
        specs.Adam(0.1, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.01),
        torch.optim.Adam,
        {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.01},
    ),
    "amsgrad": (specs.Adam(0.1, amsgrad=True), torch.optim.Adam, {"amsgrad": True}),
    "adamw": (specs.AdamW(0.1, weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw-amsgrad": (
        specs.AdamW(0.1, amsgrad=True),
        torch.optim.AdamW,
        {"amsgrad": True},
    ),
}


def gradients(seed=0):
    """Yield per step a random subset of rows, and their gradients; some are exactly zero."""
    rng = np.random.default_rng(seed)
    for step in range(STEPS):
        rows = rng.permutation(ROWS)[: rng.integers(1, ROWS)].astype(np.int64)
        grads = rng.normal(0, 1 + step % 7, (len(rows), DIM)).astype(np.float32)
        grads[rng.random(grads.shape) < 0.1] = 0
        yield rows, grads


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_torch_with_one_parameter_a_row(case):
    spec, torch_class, arguments = CASES[case]
    table = Table(TableSpec("t", DIM, "normal", 1.0), 3, make_rule(spec))
    ids = np.arange(ROWS, dtype=np.int64) * 2**40 - 7
    parameters = [torch.nn.Parameter(torch.from_numpy(r.copy())) for r in table.pull(ids)]
    oracle = torch_class(parameters, lr=spec.lr, **arguments)

    for rows, grads in gradients():
        table.apply(ids[rows], grads, spec.lr)
        oracle.zero_grad(set_to_none=True)
        for row, grad in zip(rows, grads, strict=True):
            parameters[row].grad = torch.from_numpy(grad.copy())
        oracle.step()

    expected = torch.stack(parameters).detach().numpy()
    np.testing.assert_allclose(table.pull(ids), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_dense_chunk_equals_torch(case):
    spec, torch_class, arguments = CASES[case]
    rng = np.random.default_rng(1)
    weight = rng.normal(size=1000).astype(np.float32)
    rule = make_rule(spec)
    state = [np.full(weight.shape, v, np.float32) for v in rule.state.values()]
    steps = np.zeros(1, np.int64)
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    oracle = torch_class([parameter], lr=spec.lr, **arguments)

    for _ in range(STEPS):
        grad = rng.normal(size=weight.shape).astype(np.float32)
        rule.of_chunks(spec.lr)(weight, state, steps, grad)
        parameter.grad = torch.from_numpy(grad)
        oracle.step()

    np.testing.assert_allclose(weight, parameter.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("l1", [0.0, 1.5])
def test_ftrl_equals_its_formula_in_float64(l1):
    """McMahan et al. 2013, algorithm 1."""
    spec = specs.FTRL(lr=0.3, beta=0.5, l1=l1, l2=0.1)
    table = Table(TableSpec("t", DIM), 0, make_rule(spec))
    ids = np.arange(ROWS, dtype=np.int64)
    w = table.pull(ids).astype(np.float64)
    z, n = np.zeros_like(w), np.zeros_like(w)

    for rows, grads in gradients():
        table.apply(ids[rows], grads, spec.lr)
        g = grads.astype(np.float64)
        sigma = (np.sqrt(n[rows] + g**2) - np.sqrt(n[rows])) / spec.lr
        z[rows] += g - sigma * w[rows]
        n[rows] += g**2
        shrunk = -(z[rows] - np.sign(z[rows]) * l1)
        w[rows] = np.where(
            np.abs(z[rows]) <= l1,
            0.0,
            shrunk / ((spec.beta + np.sqrt(n[rows])) / spec.lr + spec.l2),
        )

    np.testing.assert_allclose(table.pull(ids), w, rtol=1e-4, atol=1e-5)
    assert l1 == 0 or (w == 0).any()  # the case does reach the sparse branch


@pytest.mark.parametrize(
    "spec",
    [
        specs.SGD(momentum=0.9),
        specs.Adagrad(),
        specs.Adam(),
        specs.AdamW(amsgrad=True),
        specs.FTRL(),
        specs.FTRL(beta=0.0),
    ],
)
@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_a_zero_gradient_or_rate_makes_no_nan_of_a_fresh_row(spec, lr):
    table = Table(TableSpec("t", DIM), 0, make_rule(spec))
    ids = np.arange(3, dtype=np.int64)

    for _ in range(3):
        table.apply(ids, np.zeros((3, DIM), np.float32), lr)

    assert np.isfinite(table.pull(ids)).all()


def test_ftrl_without_beta_survives_a_gradient_whose_square_vanishes():
    table = Table(TableSpec("t", 1), 0, make_rule(specs.FTRL(beta=0.0)))

    table.apply(np.zeros(1, np.int64), np.full((1, 1), 1e-30, np.float32), 0.1)

    assert np.isfinite(table.pull(np.zeros(1, np.int64))).all()


def test_read_only_gradients_are_taken_as_they_are():
    rule = make_rule(specs.SGD(lr=1.0))
    weight = np.zeros(4, np.float32)
    grad = np.frombuffer(np.ones(4, np.float32).tobytes(), np.float32)

    rule.of_chunks(1.0)(weight, [], np.zeros(1, np.int64), grad)

    np.testing.assert_array_equal(weight, -1)
