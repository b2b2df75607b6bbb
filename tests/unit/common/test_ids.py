"""Distinct ids and sums by id against numpy."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edl.kernels.ids import add_by_place, distinct, finite, sum_by_id

pytestmark = pytest.mark.fast

ANY_ID = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(
    hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-3, 6)),
    hnp.arrays(np.int64, st.integers(0, 60), elements=ANY_ID),
    # Ids whose high or low bits alone differ, which a poor hash would pile up.
    st.integers(0, 300).map(lambda n: np.arange(n, dtype=np.int64) << 40),
)


def first_appearance(ids):
    values, first = np.unique(ids, return_index=True)
    return values[np.argsort(first)]


@settings(deadline=None)  # the first call compiles
@given(st.lists(IDS, min_size=1, max_size=3), st.sampled_from([None, -1, 0]))
def test_distinct_numbers_ids_in_the_order_of_their_first_appearance(arrays, nothing):
    ids_U, places_N = distinct(arrays, nothing)

    everything = np.concatenate(arrays)
    none = everything == nothing if nothing is not None else np.zeros(len(everything), bool)
    np.testing.assert_array_equal(ids_U, first_appearance(everything[~none]))
    np.testing.assert_array_equal(places_N[none], -1)
    np.testing.assert_array_equal(ids_U[places_N[~none]], everything[~none])


def test_a_small_batch_after_a_big_one_sees_none_of_its_ids():
    distinct([np.arange(10_000)])

    ids_U, places_N = distinct([np.array([7, 9_999, 7])])

    assert ([7, 9_999], [0, 1, 0]) == (ids_U.tolist(), places_N.tolist())


def test_threads_do_not_share_their_table():
    """numba lets go of the GIL, so two threads are in the kernel at once."""
    together = threading.Barrier(3)

    def check(seed):
        ids = np.random.default_rng(seed).integers(0, 90_000, 200_000)
        together.wait()
        for _ in range(10):
            ids_U, places_N = distinct([ids])
            np.testing.assert_array_equal(ids_U[places_N], ids)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(check, range(3)))


@settings(deadline=None)
@given(
    hnp.arrays(np.int64, st.integers(0, 80), elements=st.integers(0, 9)),
    st.integers(1, 19),
    st.booleans(),
)
def test_sums_by_place_are_those_of_numpy_in_the_same_order(ids, dim, fresh):
    values = np.random.default_rng(len(ids)).standard_normal((len(ids), dim)).astype(np.float32)
    ids_U, places_N = distinct([ids])
    expected = np.zeros((len(ids_U), dim), np.float32)
    np.add.at(expected, places_N, values)

    sums = np.full_like(expected, np.nan) if fresh else np.zeros_like(expected)
    half = len(ids) // 2
    written = add_by_place(values[:half], places_N[:half], sums, 0 if fresh else None)
    assert len(np.unique(ids[:half])) == written or not fresh
    written = add_by_place(values[half:], places_N[half:], sums, written)

    assert len(ids_U) == written
    np.testing.assert_array_equal(sums, expected)


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(-4, 9)), min_size=1, max_size=4), st.integers(1, 9))
def test_sums_by_id_are_those_of_all_parts_in_their_order(sets, dim):
    rng = np.random.default_rng(dim)
    parts = [
        (np.array(list(ids), np.int64), rng.standard_normal((len(ids), dim)).astype(np.float32))
        for ids in sets
    ]

    ids_U, sums_UD = sum_by_id(parts)

    expected = {}
    for ids, values in parts:
        for i, row in zip(ids.tolist(), values, strict=True):
            expected[i] = expected[i] + row if i in expected else row
    found = dict(zip(ids_U.tolist(), sums_UD, strict=True))
    assert expected.keys() == found.keys()
    for i, row in expected.items():
        np.testing.assert_array_equal(found[i], row)


@settings(deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(0, 70), elements=st.floats(width=32)),
)
def test_finite_is_what_numpy_says(values):
    assert bool(np.isfinite(values).all()) == finite(values)
