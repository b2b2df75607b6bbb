from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.nn import optimizers as specs
from edl.nn.model_spec import TableSpec
from edl.ps.rows.halves import narrowed, widened
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.table import Table

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def table(dtype, rounding="nearest", optimizer=None, dim=16, seed=0):
    spec = TableSpec("t", dim, "uniform", 1.0, dtype, rounding)
    return Table(spec, seed, make_rule(optimizer or specs.SGD()))


@settings(max_examples=examples(200), deadline=None)
@given(
    dtype=st.sampled_from(list(DTYPES)),
    values=st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=40),
)
def test_rounding_to_the_nearest_is_torchs(dtype, values):
    values = np.array([values], np.float32)

    actual = widened(narrowed(values, dtype), dtype)

    np.testing.assert_array_equal(
        torch.from_numpy(values).to(DTYPES[dtype]).float().numpy(), actual
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_of_16_bits_is_itself(dtype):
    bits = np.arange(2**16, dtype=np.uint16)[None]
    values = widened(bits, dtype)

    again = narrowed(values, dtype)

    is_number = ~np.isnan(values)
    np.testing.assert_array_equal(bits[is_number], again[is_number])
    assert np.isnan(widened(again, dtype)[~is_number]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("magnitude", [1.0, 3e-6, 1e-3])
def test_stochastic_rounding_keeps_the_mean(dtype, magnitude):
    """Steps far below the spacing of 16 bits: the nearest loses all of them, stochastic none. The
    magnitudes reach float16's subnormals."""
    n, steps = 4000, 250
    ids = np.arange(n, dtype=np.int64)
    ends = {}
    for rounding in ("nearest", "stochastic"):
        rows = Table(TableSpec("t", 8, "zeros", 1.0, dtype, rounding), 0, make_rule(specs.SGD()))
        rows.apply(ids, np.full((n, 8), -magnitude, np.float32), 1.0)
        start = rows.pull(ids).astype(np.float64)
        for _ in range(steps):
            rows.apply(ids, np.full((n, 8), -magnitude / 5000, np.float32), 1.0)
        ends[rounding] = (rows.pull(ids) - start).mean() / magnitude

    assert abs(ends["stochastic"] - steps / 5000) < 0.002
    assert 0 == ends["nearest"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stochastic_table_is_a_function_of_its_pushes(dtype):
    """The random bits have no state: they depend on id, step and column, not on what else was
    pushed before or with them."""
    optimizer = specs.Adam()
    together, apart = (table(dtype, "stochastic", optimizer) for _ in range(2))
    ids = np.arange(200, dtype=np.int64)
    rng = np.random.default_rng(0)

    for _ in range(5):
        grads = rng.standard_normal((200, 16), np.float32)
        together.apply(ids, grads, 0.01)
        for part in (slice(150, 200), slice(0, 150)):
            apart.apply(ids[part][::-1].copy(), grads[part][::-1].copy(), 0.01)

    np.testing.assert_array_equal(together.pull(ids), apart.pull(ids))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", [specs.SGD(), specs.Adagrad(), specs.Adam(), specs.FTRL()])
def test_the_arithmetic_is_float32s(dtype, optimizer):
    """A step is made from the rounded weight, and rounded once."""
    halves, whole = table(dtype, optimizer=optimizer), table("float32", optimizer=optimizer)
    ids = np.arange(50, dtype=np.int64)
    zero, grads = np.zeros((50, 16), np.float32), np.random.default_rng(0)
    grads = grads.standard_normal((50, 16), np.float32)
    halves.apply(ids, zero, 0.0)
    whole.apply(ids, zero, 0.0)
    whole._rows.weight[:50] = halves.pull(ids)

    halves.apply(ids, grads, 0.1)
    whole.apply(ids, grads, 0.1)

    expected = widened(narrowed(whole.pull(ids), dtype), dtype)
    np.testing.assert_array_equal(expected, halves.pull(ids))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pull_gives_the_bits_and_rounded_first_values(dtype):
    rows = table(dtype)
    ids = np.arange(100, dtype=np.int64)
    first = rows.pull(ids)
    rows.apply(ids[:50], np.zeros((50, 16), np.float32), 0.1)
    out = np.empty((100, 16), rows.wire_dtype)

    rows.gather(ids, out)

    np.testing.assert_array_equal(first, widened(out, dtype))
    assert np.uint16 == rows.wire_dtype
