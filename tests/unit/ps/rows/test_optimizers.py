"""A11: each optimizer against `torch.optim`, AMSGrad and lazily created rows included.

They are equal within the tolerance of float32.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from edl.nn import optimizers as specs
from edl.nn.model_spec import TableSpec
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.table import Table

STEPS = 30
ROWS, DIM = 12, 5


def named(spec):
    """Return a case of torch's optimizer of the same name and options."""
    fields = dataclasses.asdict(spec)
    theirs = {n: v for n, v in fields.items() if n != "lr" and not n.startswith("clip_")}
    return spec, getattr(torch.optim, type(spec).__name__), theirs


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
    "sgd-up": named(specs.SGD(0.1, momentum=0.9, weight_decay=0.01, maximize=True)),
    "adagrad-decay": named(specs.Adagrad(0.1, weight_decay=0.1, lr_decay=0.3, maximize=True)),
    "rmsprop": named(specs.RMSprop(0.05, alpha=0.9, weight_decay=0.01)),
    "rmsprop-momentum": named(specs.RMSprop(0.05, momentum=0.9, maximize=True)),
    "rmsprop-centered": named(specs.RMSprop(0.05, eps=1e-3, centered=True)),
    "rmsprop-both": named(specs.RMSprop(0.05, eps=1e-3, momentum=0.9, centered=True)),
    "adadelta": named(specs.Adadelta(weight_decay=0.01)),
    "adamax": named(specs.Adamax(0.05, betas=(0.8, 0.9), weight_decay=0.01)),
    "nadam": named(specs.NAdam(0.05, weight_decay=0.01, momentum_decay=0.1)),
    "nadam-decoupled": named(specs.NAdam(weight_decay=0.1, decoupled_weight_decay=True)),
    "radam": named(specs.RAdam(0.05, weight_decay=0.01)),
    "radam-decoupled": named(
        specs.RAdam(0.05, betas=(0.8, 0.9), weight_decay=0.1, decoupled_weight_decay=True)
    ),
}


def gradients(seed=0, dim=DIM):
    """Yield per step a random subset of rows, and their gradients; some are exactly zero."""
    rng = np.random.default_rng(seed)
    for step in range(STEPS):
        rows = rng.permutation(ROWS)[: rng.integers(1, ROWS)].astype(np.int64)
        grads = rng.normal(0, 1 + step % 7, (len(rows), dim)).astype(np.float32)
        grads[rng.random(grads.shape) < 0.1] = 0
        yield rows, grads


def chunk_and_torchs(spec, torch_class, arguments):
    """Return a dense chunk after some steps, and torch's."""
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
    return weight, parameter.detach().numpy()


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
    weight, expected = chunk_and_torchs(*CASES[case])

    np.testing.assert_allclose(weight, expected, rtol=2e-5, atol=2e-6)


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


# -- Those that torch has not: their papers' formulas in float64. Each takes the spec, weights w and
# gradients g [n, dim], states (zeros at first) and how many updates each row has had, this one too.


def row_wise_adagrad(spec, w, g, state, t):
    """Duchi et al. 2011 with one number a row, as FBGEMM's EXACT_ROWWISE_ADAGRAD."""
    g = g + spec.weight_decay * w
    state["sum"] += (g**2).mean(1, keepdims=True)
    total = spec.initial_accumulator_value + state["sum"]
    rate = spec.lr / (1 + (t - 1) * spec.lr_decay)
    return w - rate * g / (np.sqrt(total) + spec.eps)


def lion(spec, w, g, state, _t):
    """Chen et al. 2023, program 1."""
    beta1, beta2 = spec.betas
    update = np.sign(beta1 * state["m"] + (1 - beta1) * g) + spec.weight_decay * w
    state["m"] = beta2 * state["m"] + (1 - beta2) * g
    return w - spec.lr * update


def moments(spec, g, state, t):
    beta1, beta2 = spec.betas
    state["m"] = beta1 * state["m"] + (1 - beta1) * g
    state["v"] = beta2 * state["v"] + (1 - beta2) * g**2
    return state["m"] / (1 - beta1**t), np.sqrt(state["v"] / (1 - beta2**t))


def lamb(spec, w, g, state, t):
    """You et al. 2020, algorithm 2."""
    m, deviation = moments(spec, g, state, t)
    update = m / (deviation + spec.eps) + spec.weight_decay * w
    here, there = (np.linalg.norm(x, axis=1, keepdims=True) for x in (w, update))
    return w - spec.lr * here / there * update


def group_adam(spec, w, g, state, t):
    """Yue et al. 2021, algorithm 2, with the paper's own z."""
    before = np.where(t > 1, state["alpha"], 0)
    m, deviation = moments(spec, g, state, t)
    state["alpha"] = (deviation + spec.eps) / spec.lr
    state["z"] += m - (state["alpha"] - before) * w
    z = state["z"]
    s = np.where(np.abs(z) > spec.l1, -z + np.sign(z) * spec.l1, 0)
    norm = np.linalg.norm(s, axis=1, keepdims=True)
    least = np.sqrt(w.shape[1]) * spec.l21
    return np.where(norm > least, 1 - least / np.maximum(norm, 1e-30), 0) * s / state["alpha"]


def ftrl(spec, w, g, state, _t):
    """Keras's Ftrl with learning_rate_power=-0.5, whose l2 is half of ours."""
    shrunk = g + 2 * spec.l2_shrinkage * w
    n = spec.initial_accumulator_value + state["n"]
    state["n"] += g**2
    after = spec.initial_accumulator_value + state["n"]
    state["z"] += shrunk - (after**0.5 - n**0.5) / spec.lr * w
    quadratic = after**0.5 / spec.lr + 2 * (spec.l2 / 2 + spec.beta / (2 * spec.lr))
    return (np.clip(state["z"], -spec.l1, spec.l1) - state["z"]) / quadratic


OWN = {
    "row-wise": (specs.RowWiseAdagrad(0.1, weight_decay=0.01), row_wise_adagrad, {}),
    "row-wise-all": (
        specs.RowWiseAdagrad(0.1, initial_accumulator_value=0.5, eps=1e-3, lr_decay=0.1),
        row_wise_adagrad,
        {"dim": 16},
    ),
    "row-wise-16-bits": (
        specs.RowWiseAdagrad(0.1),
        row_wise_adagrad,
        {"dtype": "bfloat16", "rounding": "nearest"},
    ),
    "lion": (specs.Lion(0.01, weight_decay=0.1), lion, {}),
    "lamb": (specs.LAMB(0.05, weight_decay=0.1), lamb, {}),
    "lamb-16": (specs.LAMB(0.05), lamb, {"dim": 16}),
    "group-adam": (specs.GroupAdam(0.05, l1=5.0, l21=60.0), group_adam, {}),
    "ftrl": (
        specs.FTRL(0.1, l1=0.5, l2=0.1, l2_shrinkage=0.05, initial_accumulator_value=0.1),
        ftrl,
        {},
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_rows_equal_the_papers_formula_in_float64(case):
    spec, formula, told = OWN[case]
    told = {"dim": DIM, **told}
    table = Table(TableSpec("t", initializer="normal", scale=1.0, **told), 3, make_rule(spec))
    ids = np.arange(ROWS, dtype=np.int64) * 2**40 - 7
    w = table.pull(ids).astype(np.float64)
    states = {name: np.zeros_like(w) for name in ("m", "v", "z", "n", "alpha")}
    states["sum"], t = np.zeros((ROWS, 1)), np.zeros((ROWS, 1))

    for rows, grads in gradients(dim=told["dim"]):
        table.apply(ids[rows], grads, spec.lr)
        t[rows] += 1
        some = {name: values[rows] for name, values in states.items()}
        w[rows] = formula(spec, w[rows], grads.astype(np.float64), some, t[rows])
        for name, values in some.items():
            states[name][rows] = values

    near = {"rtol": 0.05, "atol": 0.05} if "dtype" in told else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(table.pull(ids), w, **near)
    if isinstance(spec, specs.GroupAdam):
        gone = (w == 0).all(1)
        assert 0 < gone.sum() < ROWS  # the case does reach the branch of the group


@pytest.mark.parametrize(
    ("spec", "like"),
    [
        (specs.RowWiseAdagrad(0.1, lr_decay=0.1), torch.optim.Adagrad),
        (specs.GroupAdam(0.05, l21=100.0), torch.optim.Adam),  # l21 is for rows of tables
    ],
)
def test_a_dense_chunk_of_one_that_is_for_rows_is_torchs_by_element(spec, like):
    decay = {"lr_decay": 0.1} if like is torch.optim.Adagrad else {}

    weight, expected = chunk_and_torchs(spec, like, decay)

    np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-5)


def test_a_dense_chunk_of_lamb_is_one_row():
    spec = specs.LAMB(0.05, weight_decay=0.1)
    rng, rule = np.random.default_rng(1), make_rule(spec)
    weight = rng.normal(size=10_001).astype(np.float32)  # more than are added up at once
    states, steps = [np.zeros_like(weight) for _ in rule.state], np.zeros(1, np.int64)
    w, state = weight.astype(np.float64)[None], {"m": 0.0, "v": 0.0}

    for t in range(1, 11):
        grad = rng.normal(size=weight.shape).astype(np.float32)
        rule.of_chunks(spec.lr)(weight, states, steps, grad)
        w = lamb(spec, w, grad.astype(np.float64)[None], state, t)

    np.testing.assert_allclose(weight, w[0], rtol=1e-4, atol=1e-5)


def test_group_adam_without_penalties_is_adam_under_a_schedule_too():
    tables = [
        Table(TableSpec("t", DIM, "normal", 1.0), 3, make_rule(spec))
        for spec in (specs.GroupAdam(), specs.Adam())
    ]
    ids = np.arange(ROWS, dtype=np.int64)

    for step, (rows, grads) in enumerate(gradients()):
        for table in tables:
            table.apply(ids[rows], grads, 0.05 if step < 10 else 0.001)

    np.testing.assert_allclose(*(table.pull(ids) for table in tables), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        specs.SGD(momentum=0.9),
        specs.Adagrad(),
        specs.Adam(),
        specs.AdamW(amsgrad=True),
        specs.FTRL(),
        specs.FTRL(beta=0.0),
        specs.RMSprop(centered=True),
        specs.Adadelta(),
        specs.NAdam(),
        specs.RAdam(),
        specs.Adamax(),
        specs.Lion(),
        specs.RowWiseAdagrad(),
        specs.LAMB(eps=0.0),
        specs.GroupAdam(eps=0.0),
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
