"""Layers on whole numbers that float64 rounds, and ConcatenateWithOffset's sums, against Python."""

import bisect
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from edl.common.errors import UsageError
from edl.nn import preprocess as pre
from edl.nn.preprocess import Sparse

pytestmark = pytest.mark.fast

near = st.sampled_from([0, 2**24, 2**53, 2**62, 2**63 - 2, -(2**53), -(2**63) + 2])
signed = st.builds(lambda a, b: a + b, near, st.integers(-2, 1))
unsigned = st.builds(
    lambda a, b: a + b, st.sampled_from([2, 2**53, 2**63, 2**64 - 2]), st.integers(-2, 1)
)
columns = st.one_of(
    st.lists(signed, min_size=1, max_size=5).map(lambda v: np.array(v, np.int64)),
    st.lists(unsigned, min_size=1, max_size=5).map(lambda v: np.array(v, np.uint64)),
    st.lists(st.one_of(signed, unsigned, st.just(0.5)), min_size=1, max_size=5).map(
        lambda v: np.array(v, object)
    ),
)
edges = st.lists(
    st.sampled_from([-(2.0**53), 0.0, 0.5, 2.0**53, 2.0**53 + 2, 2.0**62, 2.0**63, 2.0**64]),
    min_size=1,
    unique=True,
).map(sorted)


@given(columns, edges)
def test_bins_are_those_of_exact_comparison(column, bins):
    expected = [bisect.bisect_right(bins, each) for each in column.tolist()]

    assert pre.Discretization(bins).numpy(column).tolist() == expected


@given(
    columns, st.sampled_from([0.0, 0.5, 2.0**53, -(2.0**63)]), st.sampled_from([1.0, 3.0, -0.25])
)
def test_normalizer_rounds_once(column, subtractor, divisor):
    exact = [
        float((Fraction(n) - Fraction(subtractor)) / Fraction(divisor)) for n in column.tolist()
    ]

    made = pre.Normalizer(subtractor, divisor).numpy(column)

    np.testing.assert_array_max_ulp(made, np.array(exact, np.float32), 1)


@example(np.array([2**53]), 2**53 + 1)  # a limit that float64 has not
@given(columns, st.sampled_from([1, 2**24, 2**53 + 1, 2**63]))
def test_round_identity_is_exact(column, buckets):
    expected = [round(n) if 0 <= round(n) < min(buckets, 2**63) else 0 for n in column.tolist()]

    assert pre.RoundIdentity(buckets).numpy(column).tolist() == expected


def test_the_difference_of_two_large_numbers_is_no_zero():
    assert pre.Normalizer(2.0**53, 1.0)(np.array([2**53 + 1])).tolist() == [1.0]


def test_numbers_beyond_are_told():
    with pytest.raises(ValueError, match="1e.300, which becomes too large a float32"):
        pre.Normalizer(0.0, 1.0)([1.0, 1e300])
    with pytest.raises(UsageError, match="bin at 9007199254740993, which is no float64"):
        pre.Discretization([2**53 + 1])
    with pytest.raises(UsageError, match="default_value as a whole number"):
        pre.RoundIdentity(3, default_value=0.5)
    assert pre.LogRound(100).numpy([2**64, 10**400]).tolist() == [44, 0]


# ConcatenateWithOffset.

ids = st.sampled_from(["uint8", "int16", "int32", "int64", "uint64", "float32", "bool"])


@given(ids, st.lists(st.integers(0, 1), min_size=2, max_size=2), st.integers(-(2**40), 2**40))
def test_offsets_are_added_in_64_bits(dtype, numbers, offset):
    """S8: ids of three fields share no rows."""
    column = np.array(numbers).astype(dtype)
    made = pre.ConcatenateWithOffset([0, offset])([column, column])

    assert made.dtype == torch.int64
    assert made.tolist() == [[n, n + offset] for n in numbers]


def test_narrow_ids_neither_wrap_nor_turn_negative():
    layer = pre.ConcatenateWithOffset([0, 200, 400])
    narrow = np.array([100, 255], np.uint8)

    assert layer([narrow] * 3).tolist() == [[100, 300, 500], [255, 455, 655]]
    assert pre.ConcatenateWithOffset([40_000])([np.array([1], np.int16)]).tolist() == [[40_001]]
    assert pre.ConcatenateWithOffset()([narrow]).dtype == torch.int64


@pytest.mark.parametrize(
    ("offsets", "inputs", "said"),
    [
        ([1], [np.array([2**63 - 1])], r"9223372036854775807 \+ 1, which is beyond int64"),
        ([-1], [np.array([-(2**63)])], r"-9223372036854775808 \+ -1, which is beyond"),
        ([0], [np.array([2**63], np.uint64)], "9223372036854775808, which is beyond int64"),
        ([0], [[2**63, -1]], "9223372036854775808, which is no id"),
        ([0], [np.array([1.0, 2.5])], "2.5, which is no id: make whole numbers"),
        ([0], [np.array([np.nan])], "nan, which is no id"),
        ([0], [np.array(["a"])], "takes numbers"),
        (None, [[2**53 + 1], [0.5]], "9007199254740993 beside floats"),
        (None, [["a"], [1]], "values of several types"),
        ([0, 1], [pre.Ragged.rows_of([[1]]), np.array([1])], "Ragged inputs only, or Sparse"),
        ([0, 1], [pre.Ragged.rows_of([[1]]), pre.Ragged.rows_of([[1], [2]])], r"\[1, 2\] rows"),
    ],
)
def test_what_is_no_id_is_one_sentence(offsets, inputs, said):
    with pytest.raises(ValueError, match=said):
        pre.ConcatenateWithOffset(offsets)(inputs)


def test_offsets_are_whole_numbers():
    with pytest.raises(UsageError, match="whole numbers as offsets"):
        pre.ConcatenateWithOffset([0, 1.5])


def test_floats_and_texts_stand_beside_each_other_without_offsets():
    layer = pre.ConcatenateWithOffset()

    assert layer([np.array([1.5]), np.array([2])]).tolist() == [[1.5, 2.0]]
    assert layer.numpy([["a"], ["b"]]).tolist() == [["a", "b"]]


cells = st.lists(st.lists(st.integers(-1, 5), min_size=3, max_size=3), min_size=2, max_size=2)


@given(cells, cells, st.sampled_from([0, 1, -1, -2]))
def test_sparse_inputs_stand_beside_each_other_as_dense_ones(one, other, axis):
    """ElasticDL's layer takes them by tf.sparse.concat."""
    sparse = [pre.ToSparse()(np.array(each)) for each in (one, other)]
    dense = np.concatenate([np.where(np.array(v) < 0, -1, np.array(v) + n * 10)
                            for n, v in enumerate((one, other))], axis)  # fmt: skip

    made = pre.ConcatenateWithOffset([0, 10], axis)(sparse)

    again = np.full(made.shape, -1)
    again[tuple(made.indices.T)] = made.values
    assert again.tolist() == dense.tolist()
    assert made.indices.tolist() == sorted(made.indices.tolist())  # as torch's coalesced are


def test_sparse_columns_are_those_of_a_matrix_and_others_are_refused():
    column = pre.ToSparse()(np.array([3, -1]))
    made = pre.ConcatenateWithOffset([0, 10])([column, column])

    assert (made.shape, made.indices.tolist(), made.values.tolist()) == (
        (2, 2),
        [[0, 0], [0, 1]],
        [3, 13],
    )
    with pytest.raises(ValueError, match=r"\[\[2, 1\], \[3, 1\]\] do not stand beside"):
        pre.ConcatenateWithOffset([0, 1])([column, Sparse(column.indices, column.values, (3,))])


def test_lists_stand_below_each_other_along_axis_0():
    lists = pre.Ragged.rows_of([[1], [2, 3]])

    made = pre.ConcatenateWithOffset([0, 10], axis=0)([lists, lists])

    assert made.tolist() == [[1], [2, 3], [11], [12, 13]]
    with pytest.raises(ValueError, match="along axis 1, and not 2"):
        pre.ConcatenateWithOffset([0], axis=2)([lists])


# What is ignored.


@pytest.mark.parametrize("make", [pre.ToSparse, lambda **more: pre.ToRagged("|", **more)])
@pytest.mark.parametrize(
    ("ignored", "values", "said"),
    [
        (-1, np.array(["a", "-1"]), "ignore_value=-1 and got texts"),
        ("0", np.array([0, 1]), "ignore_value='0' and got int64"),
        ("0", np.array([0.0, 1.0]), "ignore_value='0' and got float64"),
        (0.5, np.array([0, 1]), "ignore_value=0.5 and got int64"),
        (float("nan"), np.array([0, 1]), "ignore_value=nan and got int64"),
        (0, np.array(["2020"], "M8[us]"), "ignore_value=0 and got times"),
        (-1, pre.Ragged.rows_of([["a"]]), "ignore_value=-1 and got texts"),
    ],
)
def test_an_ignored_value_of_another_type_is_refused(make, ignored, values, said):
    """S9."""
    with pytest.raises(ValueError, match=said):
        make(ignore_value=ignored)(values)


def test_values_are_ignored_by_what_they_are():
    assert pre.ToSparse("a")(np.array(["a", "b"])).values.tolist() == ["b"]
    assert pre.ToSparse(1.0)(np.array([1, 2])).values.tolist() == [2]
    assert pre.ToSparse(1)(np.array([1.0, 2.0])).values.tolist() == [2.0]
    assert pre.ToSparse(2.0**53)(np.array([2**53, 2**53 + 1])).values.tolist() == [2**53 + 1]
    assert pre.ToSparse(float("nan"))(np.array([np.nan, 2.0])).values.tolist() == [2.0]
    assert len(pre.ToSparse()(np.array(["2020", "NaT"], "M8[us]")).values) == 1
    assert pre.ToRagged("|", "x")(np.array(["x|a", "a"])).tolist() == [["a"], ["a"]]
    assert pre.ToRagged(ignore_value=0)(np.array([[0, -1], [2, 0]])).tolist() == [[-1], [2]]
    with pytest.raises(UsageError, match="ignores a text or a number"):
        pre.ToSparse([1])
