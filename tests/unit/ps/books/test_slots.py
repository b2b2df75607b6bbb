from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edl.nn.initializers import initial_rows, uniforms
from edl.nn.model_spec import TableSpec
from edl.ps.books.slots import SlotMap, chunk_slot, row_slots

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("num_shards", [2, 3, 5, 8])
def test_the_chunks_of_one_tensor_spread_evenly(num_shards):
    slot_map = SlotMap(num_shards)

    owners = [slot_map.shard_of_chunk("embedding.weight", chunk) for chunk in range(75)]

    counts = np.bincount(owners, minlength=num_shards)
    assert counts.max() - counts.min() <= 3, counts


@pytest.mark.parametrize("num_shards", [2, 3, 8])
def test_consecutive_ids_spread_evenly(num_shards):
    owners = SlotMap(num_shards).shards_of_ids("t", np.arange(100_000))

    shares = np.bincount(owners, minlength=num_shards) / 100_000
    np.testing.assert_allclose(shares, 1 / num_shards, rtol=0.1)


def test_slots_never_change():
    """A checkpoint is placed by them: golden values."""
    assert [789, 398, 6] == [chunk_slot("w", chunk) for chunk in range(3)]
    assert [298, 819, 780] == row_slots("t", np.array([0, 1, -1])).tolist()


def test_first_values_never_change():
    rows = initial_rows(7, TableSpec("t", 2, "uniform", 1.0), np.array([0, -1]))

    expected = [
        [-0.7372645735740662, -0.6486997008323669],
        [0.21381379663944244, -0.91187584400177],
    ]
    np.testing.assert_array_equal(rows, np.array(expected, np.float32))


def test_more_shards_than_slots_are_refused():
    with pytest.raises(ValueError, match="5 shards cannot share 4 slots"):
        SlotMap(5, num_slots=4)


def test_first_values_depend_on_seed_table_and_id_only():
    spec = TableSpec("t", 8, "normal", 0.1)
    ids = np.array([5, -9, 2**61, 0])

    rows = initial_rows(1, spec, ids)

    np.testing.assert_array_equal(rows[[2]], initial_rows(1, spec, ids[[2]]))
    assert not np.array_equal(rows, initial_rows(2, spec, ids))
    assert not np.array_equal(rows, initial_rows(1, TableSpec("u", 8, "normal", 0.1), ids))


def test_first_values_have_the_distribution_that_was_asked_for():
    ids = np.arange(20_000)

    uniform = initial_rows(0, TableSpec("t", 8, "uniform", 0.5), ids)
    normal = initial_rows(0, TableSpec("t", 8, "normal", 0.5), ids)
    zeros = initial_rows(0, TableSpec("t", 8, "zeros"), ids)

    assert -0.5 <= uniform.min() < -0.49
    assert 0.49 < uniform.max() <= 0.5
    np.testing.assert_allclose([uniform.mean(), normal.mean()], 0, atol=0.005)
    np.testing.assert_allclose([uniform.std(), normal.std()], [0.5 / 3**0.5, 0.5], rtol=0.01)
    assert not zeros.any()


def test_first_values_of_the_kernel_are_numpys():
    ids = np.array([0, -1, 2**63 - 1, -(2**63), *range(50)])
    spec = TableSpec("t", 5, "uniform", 0.3)

    u = uniforms(9, "t", ids, 5)

    expected = (0.3 * (2.0 * u - 1.0)).astype(np.float32)
    np.testing.assert_array_equal(expected, initial_rows(9, spec, ids))


@pytest.mark.parametrize(("num_shards", "num_slots"), [(1, 1024), (2, 1024), (5, 1024), (3, 7)])
def test_a_partition_gives_each_shard_its_rows_in_their_order(num_shards, num_slots):
    slot_map = SlotMap(num_shards, num_slots)
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)

    order, bounds = slot_map.partition("t", ids)

    owners = slot_map.shards_of_ids("t", ids)
    np.testing.assert_array_equal(np.argsort(owners, kind="stable"), order)
    np.testing.assert_array_equal(np.cumsum([0, *np.bincount(owners)]), bounds)


@pytest.mark.parametrize(("num_shards", "num_slots"), [(1, 1024), (5, 1024), (3, 7)])
@pytest.mark.parametrize("ascending", [True, False])
def test_ids_that_are_foreign_or_named_twice_are_found(num_shards, num_slots, ascending):
    slot_map = SlotMap(num_shards, num_slots)
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)
    owners = slot_map.shards_of_ids("t", ids)

    for shard in range(num_shards):
        mine, foreign = ids[owners == shard], ids[owners != shard]
        if ascending:
            mine = np.sort(mine)

        def fault(ids, shard=shard):
            return slot_map.fault_of_ids("t", ids, shard)

        assert ["", ""] == [fault(mine), fault(mine[:0])]
        assert "not unique" == fault(np.insert(mine, 7, mine[7]))
        assert "not unique" == fault(np.append(mine, mine[0]))
        assert all("foreign" == fault(np.append(mine, id)) for id in foreign[:20])


def test_the_master_reads_slots_without_numba():
    code = "import sys, edl.ps.control; sys.exit('numba' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
