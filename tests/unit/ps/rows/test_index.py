from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.turns import examples

from edl.ps.rows import index as module
from edl.ps.rows.index import Index

ANY = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-40, 40)  # met again and again


def ints(values):
    return np.array(values, np.int64)


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(
        st.one_of(
            st.lists(ANY | NEAR, max_size=70),
            st.builds(
                lambda start, step, n: [start + step * i for i in range(n)],
                st.integers(-(2**40), 2**40),
                st.sampled_from([1, 2**20, 2**32]),
                st.integers(300, 1500),
            ),
        ),
        max_size=12,
    ),
    asked=st.lists(ANY | NEAR, max_size=50),
)
def test_an_index_is_a_dict_that_counts_while_it_grows(batches, asked):
    index, model = Index(1 << 20), {}

    for batch in batches:
        rows = index.add(ints(batch))
        assert [model.setdefault(id, len(model)) for id in batch] == rows.tolist()
        everything = [*model, *asked]
        assert [model.get(id, -1) for id in everything] == index.find(ints(everything)).tolist()
    assert len(model) == len(index)


def test_growth_moves_a_little_at_a_time_and_ends_before_the_next_begins():
    index, rng = Index(1 << 20), np.random.default_rng(0)
    ids = rng.permutation(300_000).astype(np.int64)
    growths, bytes_a_row, cursors = 0, [], []

    for start in range(0, len(ids), 64):
        before = index.record[0].copy()
        index.add(ids[start : start + 64])
        if before["new"] != index.record[0]["new"]:
            growths += 1
            assert 0 == before["cursor"], "the last growth had not ended"
        elif before["cursor"]:
            cursors.append(before["cursor"] - index.record[0]["cursor"])
        if start > 20_000:
            bytes_a_row.append(index.nbytes / len(index))

    assert growths > 20
    assert max(cursors) < 350  # buckets of 64 bytes, for 64 ids
    assert max(bytes_a_row) < 30
    np.testing.assert_array_equal(np.arange(len(ids)), index.find(ids))


def test_ids_that_share_one_home_and_run_over_the_end_are_found():
    """The hash is undone, so that every id's home is the last bucket."""
    ids = unhashed(np.uint64(2**64 - 1) - np.arange(5000, dtype=np.uint64))
    index = Index(1 << 20)

    for start in range(0, len(ids), 50):
        index.add(ids[start : start + 50])

    np.testing.assert_array_equal(np.arange(len(ids)), index.find(ids))
    assert -1 == index.find(ints([1]))[0]


def unhashed(hashes):
    """Return the ids of these hashes (index.home_of)."""
    hashes = hashes ^ (hashes >> np.uint64(32))
    hashes = hashes * np.uint64(pow(0xD6E8FEB86659FD93, -1, 2**64))
    hashes = hashes ^ (hashes >> np.uint64(32))
    return (hashes * np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))).view(np.int64)


def test_steps_are_kept_through_growth():
    index = Index(1 << 20)
    ids = np.arange(500, dtype=np.int64) * 7919
    index.add(ids)
    index.set_steps(ids, np.arange(500))

    index.add(np.arange(50_000, dtype=np.int64) + 10**9)

    np.testing.assert_array_equal(np.arange(500), index.steps(ids))
    np.testing.assert_array_equal(np.arange(500), index.find(ids))


@pytest.mark.parametrize("steps", [2**29 - 1, 2**29, 2**40])
def test_steps_end_at_what_they_have_room_for(steps):
    index = Index(1024)
    index.add(ints([5]))

    index.set_steps(ints([5]), ints([steps]))

    assert (2**29 - 1, 0) == (index.steps(ints([5]))[0], index.find(ints([5]))[0])


def test_marked_rows_are_collected_once_whatever_grows_between(monkeypatch):
    """A row of home 4 stands in bucket 9, for the ones between are full. Runs of nine buckets would
    end before it, and a growth brings it down to bucket 8."""
    monkeypatch.setattr(module, "_RUN", 9)
    index = Index(1 << 20)
    homes = [3] * 6 + [4] * 2 + [5] * 5 + [6] * 5 + [7] * 5 + [8] * 3 + [4]
    others = np.random.default_rng(1).integers(64, 256, 1000)
    ids = of_homes([*homes, *others])
    index.add(ids[:600])
    for id in ids[: len(homes)]:
        set_mark(index, id)
    assert 9 == place_of(index, ids[len(homes) - 1])[0]

    found, start = [], None
    while start != 0:
        rows, start = index.collect(start or 0, 2)
        found += rows.tolist()
        if len(index) < 1000:
            for at in range(600, 1000, 40):
                index.add(ids[at : at + 40])
            assert 8 == place_of(index, ids[len(homes) - 1])[0]

    assert list(range(len(homes))) == sorted(found)
    assert 0 == len(index.collect(0, 2)[0])


def of_homes(homes):
    """Return different ids, each with its home among 256 buckets."""
    within = np.arange(len(homes), dtype=np.uint64)
    middle = (np.array(homes, np.uint64) << np.uint64(56)) + np.uint64(1 << 55)
    return unhashed(middle + within)


def buckets_of(index):
    """Return the memory of all buckets, int64."""
    return index._memory.bytes.view(np.int64)


def place_of(index, id):
    """Return bucket and number of an id's entry."""
    lines = buckets_of(index)[: 8 * (int(index.record["new"][0]) + 300)].reshape(-1, 8)
    return next((b, k) for b, k in np.argwhere(lines[:, :4] == id) if lines[b, 4 + k])


def set_mark(index, id):
    """Set an id's mark as an update would."""
    bucket, number = place_of(index, id)
    buckets_of(index).view(np.uint32)[16 * bucket + 9 + 2 * number] |= 2
