"""Codes of gradients: how exact they are, that they are stable, that errors average out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edl.nn.model_spec import CHUNK_ELEMENTS
from edl.ps.wire import quantize

CODED = ["float16", "int8"]
FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(0, 9), st.integers(1, 17)), elements=FINITE)
FLAT = st.integers(0, 2 * quantize.GROUP + 5).map(
    lambda n: np.random.default_rng(n).standard_normal(n).astype(np.float32)
)


def groups(values):
    """Return the slices of the flat values, by group."""
    width = values.shape[1] if values.ndim == 2 else quantize.GROUP
    return [slice(i, i + width) for i in range(0, values.size, width)]


def step(values, wire):
    """Return the bound of each element's error of rounding to nearest, of the shape of `values`."""
    bound = np.empty(values.size)
    flat = np.abs(values.reshape(-1)).astype(np.float64)
    for group in groups(values):
        largest = flat[group].max()
        if wire == "int8":
            bound[group] = largest / 127 * 0.5001
        else:
            bound[group] = np.maximum(flat[group] * 2.0**-11, largest * 2.0**-39)
        bound[group] += 2.0**-100
    return bound.reshape(values.shape)


@pytest.mark.parametrize("wire", CODED)
@settings(deadline=None)  # the first call compiles
@given(values=st.one_of(ROWS, FLAT))
def test_a_value_comes_back_within_half_a_step(wire, values):
    codes, scales = quantize.encode(values, wire)
    found = quantize.decode(codes, scales)

    assert (values.shape, quantize.DTYPES[wire]) == (codes.shape, codes.dtype)
    assert quantize.num_scales(values.shape, wire) == len(scales)
    assert (np.abs(found.astype(np.float64) - values) <= step(values, wire)).all()


@pytest.mark.parametrize("wire", CODED)
@settings(deadline=None)
@given(values=st.one_of(ROWS, FLAT))
def test_encoding_what_was_decoded_changes_nothing(wire, values):
    once = quantize.decode(*quantize.encode(values, wire))

    np.testing.assert_array_equal(quantize.decode(*quantize.encode(once, wire)), once)


def test_float16_codes_are_those_of_numpy():
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((500, 8)) * 10.0 ** rng.integers(-9, 3, (500, 8))).astype("f4")

    codes, scales = quantize.encode(values, "float16")

    expected = (values / scales[:, None]).astype(np.float16)
    np.testing.assert_array_equal(codes.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("wire", CODED)
@settings(deadline=None)
@given(values=ROWS, seed=st.integers(0, 2**64 - 1))
def test_rows_rounded_at_random_are_coded_exactly_and_within_a_step(wire, values, seed):
    rounded = values.copy()
    quantize.round_rows(rounded, np.arange(len(values)), seed, wire)

    decoded = quantize.decode(*quantize.encode(rounded, wire))
    tiny = np.abs(values).max(axis=1, keepdims=True, initial=0) < 2.0**-100
    np.testing.assert_array_equal(decoded, np.where(tiny, 0, rounded))
    assert (np.abs(rounded.astype(np.float64) - values) <= 2 * step(values, wire)).all()


@pytest.mark.parametrize("wire", CODED)
def test_the_mean_of_rows_rounded_at_random_is_the_row(wire):
    row = np.array([1.0, 0.3, -0.3, 1e-3, -1e-3, 0.123456, 0.0, -0.999], np.float32)
    draws = 40_000
    rounded = np.repeat(row[None], draws, 0)
    quantize.round_rows(rounded, np.arange(draws), 7, wire)

    error = rounded.astype(np.float64).mean(0) - row
    spread = rounded.astype(np.float64).std(0)
    assert (np.abs(error) <= 5 * spread / np.sqrt(draws) + np.abs(row) * 2.0**-16).all()
    assert (spread[[1, 2, 5]] > 0).all()


@pytest.mark.parametrize("wire", CODED)
def test_draws_are_a_function_of_seed_id_and_column(wire):
    rows = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    ids = np.arange(50) * 1_000_003

    def rounded(order, seed):
        values = rows[order]
        quantize.round_rows(values, ids[order], seed, wire)
        return values

    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(rounded(np.arange(50), 5)[order], rounded(order, 5))
    assert (rounded(order, 5) != rounded(order, 6)).any()


@pytest.mark.parametrize("wire", CODED)
@pytest.mark.parametrize("size", [10, quantize.GROUP * 3 + 11, (1 << 16) + 5])
def test_what_was_sent_stays_within_one_step_of_the_gradients(wire, size):
    """The sums are over many steps, whose errors would add up without the residual."""
    rng = np.random.default_rng(size)
    given_sum, sent_sum = np.zeros(size), np.zeros(size)
    residual, lost = np.zeros(size, np.float32), np.empty(size, np.float32)
    largest_step = np.zeros(size)
    for _ in range(60):
        gradient = (rng.standard_normal(size) * 1e-3 + 1e-5).astype(np.float32)
        sent = gradient.copy()
        before = residual.copy()
        quantize.carry(sent, residual, lost, wire)
        np.testing.assert_allclose(residual - before, lost, atol=1e-9)
        largest_step = np.maximum(largest_step, step(sent, wire))
        np.testing.assert_array_equal(quantize.decode(*quantize.encode(sent, wire)), sent)
        given_sum += gradient
        sent_sum += sent

    np.testing.assert_allclose(given_sum - sent_sum, residual, atol=1e-8)
    assert (np.abs(given_sum - sent_sum) <= 1.05 * largest_step + 1e-8).all()


@pytest.mark.parametrize("wire", CODED)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_group_with_a_value_that_is_not_finite_comes_back_so(wire, wrong):
    values = np.ones((3, 4), np.float32)
    values[1, 2] = wrong

    found = quantize.decode(*quantize.encode(values, wire))

    assert [True, False, True] == np.isfinite(found).all(axis=1).tolist()


@pytest.mark.parametrize("wire", CODED)
def test_any_bytes_decode(wire):
    """A server decodes what a stranger may have sent."""
    raw = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)
    codes = raw.view(quantize.DTYPES[wire]).reshape(-1, 8)
    scales = np.full(len(codes), np.float32(np.inf))

    assert codes.shape == quantize.decode(codes, scales).shape
    with pytest.raises(ValueError, match="scales"):
        quantize.decode(codes, scales[1:])


def test_float32_is_not_coded():
    values = np.ones((2, 3), np.float32)

    codes, scales = quantize.encode(values, "float32")

    assert codes is values
    assert quantize.decode(codes, scales) is values
    assert (0, 0) == (len(scales), quantize.num_scales(values.shape, "float32"))


def test_chunks_are_whole_groups():
    """The groups of a tensor are those of its chunks, and `carry` may take it whole."""
    assert 0 == CHUNK_ELEMENTS % quantize.GROUP
    assert 0 == quantize._SLICE % quantize.GROUP
