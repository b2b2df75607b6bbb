from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.ps import index as module
from edl.ps.index import Index

ANY = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-40, 40)  # met again and again


def ints(values):
    return np.array(values, np.int64)


@settings(max_examples=60, deadline=None)
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
        before = index.head.copy()
        index.add(ids[start : start + 64])
        if before[module.NEW] != index.head[module.NEW]:
            growths += 1
            assert 0 == before[module.CURSOR], "the last growth had not ended"
        elif before[module.CURSOR]:
            cursors.append(before[module.CURSOR] - index.head[module.CURSOR])
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
    """The ids of these hashes (index.home_of)."""
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
    """Rows come between the runs, so many that entries move from above to below and beyond."""
    monkeypatch.setattr(module, "_RUN", 7)
    rng = np.random.default_rng(1)
    index = Index(1 << 20)
    at_one_home = unhashed(np.uint64(1 << 62) + np.arange(400, dtype=np.uint64))
    ids = np.concatenate([at_one_home, np.unique(rng.integers(0, 1 << 60, 12_000))])
    ids[:600] = rng.permutation(ids[:600])  # so that a long run of full buckets is scanned
    index.add(ids[:600])
    marked = np.flatnonzero(rng.random(600) < 0.5)
    for id in ids[marked]:
        set_mark(index, id)

    found, start = [], None
    while start != 0:
        rows, start = index.collect(start or 0, 2)
        found += rows.tolist()
        if start > 100:  # amid the full ones, of buckets 64 to 164 now
            index.add(ids[len(index) : len(index) + 240])

    assert len(index) > 5000
    assert marked.tolist() == sorted(found)
    assert index.collect(0, 2)[0].size == 0


def set_mark(index, id):
    """As an update would."""
    words = index.lines.view(np.uint32).reshape(-1, 16)
    lines = index.lines.reshape(-1, 8)
    used = int(index.head[1]) + 300
    for bucket, place in np.argwhere(lines[:used, :4] == id):
        if lines[bucket, 4 + place]:
            words[bucket, 9 + 2 * place] |= 2
