"""Distinct ids and sums by id against numpy."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edl.nn.embedding import PADDING
from edl.worker.ids import add_by_place, distinct, finite, unique

ANY_ID = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(
    hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-3, 6)),
    hnp.arrays(np.int64, st.integers(0, 60), elements=ANY_ID),
    # Ids whose high or low bits alone differ, which a poor hash would pile up.
    st.integers(0, 300).map(lambda n: np.arange(n, dtype=np.int64) << 40),
)


def first_appearance(ids):
    values, first = np.unique(ids[ids != PADDING], return_index=True)
    return values[np.argsort(first)]


@settings(deadline=None)  # the first call compiles
@given(st.lists(IDS, min_size=1, max_size=3))
def test_distinct_numbers_ids_in_the_order_of_their_first_appearance(arrays):
    ids_U, places_N = distinct(arrays)

    everything = np.concatenate(arrays)
    padding = everything == PADDING
    np.testing.assert_array_equal(ids_U, first_appearance(everything))
    np.testing.assert_array_equal(places_N[padding], -1)
    np.testing.assert_array_equal(ids_U[places_N[~padding]], everything[~padding])


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


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0), (2, 3, 2)])
def test_places_have_the_shape_of_the_ids(shape):
    ids = torch.randint(0, 5, shape)

    found = unique([ids])

    (lookup,) = found.lookups
    assert shape == tuple(lookup.places.shape)
    assert torch.equal(ids, torch.from_numpy(found.ids_U)[lookup.places.long()])


def test_padding_is_left_out_of_a_lookup():
    ids = torch.tensor([[5, PADDING], [PADDING, 3], [5, 5]])

    found = unique([ids, torch.tensor([3, 8])])

    assert [5, 3, 8] == found.ids_U.tolist()
    assert [[5, 3, 5, 5], [3, 8]] == [lookup.given.tolist() for lookup in found.lookups]
    assert [[0, 1, 0, 0], [1, 2]] == [lookup.places.tolist() for lookup in found.lookups]


def test_ids_that_are_no_run_of_memory_are_taken_as_they_read():
    ids = torch.arange(12).reshape(3, 4).T

    assert ids.reshape(-1).tolist() == unique([ids]).ids_U.tolist()


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
    add_by_place(values, places_N, sums, fresh)

    np.testing.assert_array_equal(sums, expected)


@settings(deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(0, 70), elements=st.floats(width=32)),
)
def test_finite_is_what_numpy_says(values):
    assert bool(np.isfinite(values).all()) == finite(values)
