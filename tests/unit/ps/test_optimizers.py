"""Each optimizer through a real store, dense and by rows, under a schedule: torch's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.nn import ByName, own_optimizers, schedules
from edl.nn.local import torch_optimizer
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import OPTIMIZERS, SGD, Adagrad, RowWiseAdagrad, learning_rate
from edl.ps.books.aggregation import Policy, Update
from edl.ps.books.answers import Outcome
from edl.ps.books.ledger import Span
from edl.ps.books.slots import SlotMap
from edl.ps.books.store import Store
from edl.ps.rows.optimizers import make_rule

ROWS, DIM, ELEMENTS = 40, 5, 13
LR = schedules.Warmup(schedules.MultiStep(0.05, (6, 12)), 4)
PLAIN = {  # beside the defaults: small eps would make rounding errors of sums near zero large
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"eps": 0.01, "momentum": 0.5, "centered": True},
    "Adadelta": {"eps": 0.01},
    "FTRL": {"l1": 0.1, "l2": 0.1, "l2_shrinkage": 0.01},
    "GroupAdam": {"l1": 1.0, "l21": 5.0},
}


def rates():
    size = st.floats(0.001, 0.1)
    plain = st.one_of(
        size,
        st.builds(schedules.Exponential, size, st.floats(0.9, 1.0)),
        st.builds(schedules.Polynomial, size, st.integers(1, 200), st.floats(0.5, 2)),
        st.builds(schedules.OneCycle, size, st.integers(2, 200)),
        st.builds(schedules.MultiStep, size, st.lists(st.integers(0, 99), max_size=4)),
    )
    return st.one_of(plain, st.builds(schedules.Warmup, plain, st.integers(1, 50)))


def specs():
    """Return any optimizer with any options."""
    part, some = st.floats(0, 0.5), st.floats(0, 0.2)
    betas = st.tuples(st.floats(0, 0.99), st.floats(0.5, 0.999))
    options = {
        "SGD": {"momentum": st.floats(0, 0.9), "dampening": part, "weight_decay": some},
        "Adagrad": {"weight_decay": some, "initial_accumulator_value": part, "lr_decay": some},
        "Adam": {"betas": betas, "weight_decay": some, "amsgrad": st.booleans()},
        "NAdam": {"betas": betas, "weight_decay": some, "momentum_decay": some},
        "RAdam": {"betas": betas, "weight_decay": some, "decoupled_weight_decay": st.booleans()},
        "Adamax": {"betas": betas, "weight_decay": some},
        "RMSprop": {"alpha": st.floats(0.5, 0.99), "momentum": part, "centered": st.booleans()},
        "Adadelta": {"rho": st.floats(0.5, 0.99), "weight_decay": some},
        "Lion": {"betas": betas, "weight_decay": some},
        "LAMB": {"betas": betas, "weight_decay": some},
        "GroupAdam": {"betas": betas, "l1": st.floats(0, 3), "l21": st.floats(0, 10)},
        "FTRL": {"l1": part, "l2": part, "l2_shrinkage": some, "initial_accumulator_value": part},
    }
    options["AdamW"], options["RowWiseAdagrad"] = options["Adam"], options["Adagrad"]
    eps = set(OPTIMIZERS) - {"SGD", "Lion", "FTRL"}
    return st.one_of(
        st.builds(
            kind,
            lr=rates(),
            maximize=st.booleans(),
            clip_value=st.sampled_from([0.0, 0.5]),
            clip_row_norm=st.sampled_from([0.0, 1.0]),
            **options[name],
            **({"eps": st.floats(0.01, 0.1)} if name in eps else {}),
        )
        for name, kind in OPTIMIZERS.items()
    )


def values(store, ids):
    """Return the dense tensor and the rows."""
    _, chunks, (rows,) = store.pull(dense=True, known_version=None, tables=[("t", ids)])
    return np.frombuffer(chunks[0][1], np.float32), rows


def assert_a_store_is_torch(spec, steps):
    """Push `steps` times, of some rows and the dense tensor; compare with a parameter a row."""
    rng = np.random.default_rng(steps)
    store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
    table = TableSpec("t", DIM, "normal", 1.0)
    dense = rng.normal(size=ELEMENTS).astype(np.float32)
    model = ModelSpec((DenseSpec("d", (ELEMENTS,)),), (table,), spec, 3)
    store.init(ModelSpec.from_json(model.to_json()), {("d", 0): dense}, True)
    ids = np.arange(ROWS, dtype=np.int64) * 2**40 - 7
    _, first = values(store, ids)
    rows = [
        own_optimizers.as_row(torch.nn.Parameter(torch.from_numpy(row.astype(np.float64))))
        for row in first
    ]
    whole = torch.nn.Parameter(torch.from_numpy(dense.astype(np.float64)))
    oracle = torch_optimizer(spec, [whole, *rows])

    for version in range(steps):
        some = np.sort(rng.permutation(ROWS)[: ROWS * 3 // 4])
        grads = rng.normal(size=(len(some), DIM)).astype(np.float32)
        grad = rng.normal(size=ELEMENTS).astype(np.float32)
        update = Update({("d", 0): grad}, {"t": (ids[some], grads)})
        span = Span(0, 1, version, version + 1)
        assert Outcome.APPLIED == store.push(span, version, update).outcome
        oracle.zero_grad(set_to_none=True)
        whole.grad = torch.from_numpy(grad.astype(np.float64))
        for row, its in zip(some, grads, strict=True):
            rows[row].grad = torch.from_numpy(its.astype(np.float64))
        oracle.param_groups[0]["lr"] = learning_rate(spec, version)
        oracle.step()

    found = values(store, ids)
    expected = whole, torch.stack(rows)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_store_is_torch_under_a_schedule(name):
    assert_a_store_is_torch(OPTIMIZERS[name](lr=LR, maximize=True, **PLAIN.get(name, {})), 15)


def test_each_name_has_its_own_optimizer_and_rate():
    """What one store does by names is to the bit what stores of one optimizer do with each."""
    others = {"fast*": RowWiseAdagrad(schedules.Exponential(0.5, 0.5)), "d": SGD(0.2, 0.9)}
    by_name = ByName(Adagrad(0.1), others)
    stores = []
    for optimizer in (by_name, Adagrad(0.1), *others.values()):
        tables = TableSpec("fast.t", DIM, "normal"), TableSpec("slow", DIM, "normal")
        dense = DenseSpec("d", (3,)), DenseSpec("e", (3,))
        spec = ModelSpec.from_json(ModelSpec(dense, tables, optimizer).to_json())
        store = Store(index=0, slot_map=SlotMap(1), policy=Policy(use_async=True))
        store.init(spec, {(d.name, 0): np.ones(3, np.float32) for d in dense}, True)
        stores.append(store)
    rng, ids = np.random.default_rng(0), np.arange(6)
    for version in range(4):
        grads = {(n, 0): rng.normal(size=3).astype(np.float32) for n in "de"}
        rows = {n: (ids, rng.normal(size=(6, DIM)).astype(np.float32)) for n in ("fast.t", "slow")}
        for store in stores:
            store.push(Span(0, 1, version, version + 1), version, Update(grads, rows))

    asked = [("fast.t", ids), ("slow", ids)]
    found = []
    for store in stores:
        _, chunks, tables = store.pull(dense=True, known_version=None, tables=asked)
        found.append(
            dict(chunks) | {n: t.tobytes() for (n, _), t in zip(asked, tables, strict=True)}
        )
    ours, default, fast, momentum = found
    assert ours == {
        ("d", 0): momentum["d", 0],
        ("e", 0): default["e", 0],
        "fast.t": fast["fast.t"],
        "slow": default["slow"],
    }
    assert 4 == len({each["d", 0] for each in found} | {default["slow"]})  # they do differ


def test_gradients_are_clipped_as_torch_clips_them():
    for spec in (SGD(0.1, clip_value=0.7), Adagrad(0.1, clip_row_norm=1.5, maximize=True)):
        assert_a_store_is_torch(spec, 5)
    assert_a_store_is_torch(RowWiseAdagrad(0.1, clip_value=0.5, clip_row_norm=0.9), 5)


def test_clipping_is_that_of_torch_nn_utils():
    """By hand, for both ends clip by the same words."""
    grads = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)
    weight = torch.nn.Parameter(torch.zeros(2))
    for spec, clip in (
        (SGD(clip_value=3.5), lambda: torch.nn.utils.clip_grad_value_([weight], 3.5)),
        (SGD(clip_row_norm=2.0), lambda: torch.nn.utils.clip_grad_norm_([weight], 2.0)),
    ):
        found = make_rule(spec).prepared(grads)
        for row, ours in zip(grads, found, strict=True):
            weight.grad = torch.from_numpy(row.copy())
            clip()
            np.testing.assert_allclose(ours, weight.grad.numpy(), rtol=1e-6)
    assert make_rule(SGD()).prepared(grads) is grads


@pytest.mark.slow
@settings(
    max_examples=examples(110),
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(specs())
def test_300_000_random_steps_of_rows_are_torchs(spec):
    assert_a_store_is_torch(spec, 100)
