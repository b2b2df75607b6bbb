from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl.nn import optimizers as specs
from edl.nn.initializers import initial_rows
from edl.nn.model_spec import TableSpec
from edl.ps.rows import rows, work
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.passes import place_rows
from edl.ps.rows.rows import Rows, _stride
from edl.ps.rows.table import RowBlock, Table

COUNTING = make_rule(specs.SGD(lr=-1.0))  # a gradient of 1 counts
DIMS = [1, 2, 3, 5, 7, 8, 13, 16, 24, 33, 64, 136]


def counting_table(dim=3, **spec):
    return Table(TableSpec("t", dim, "zeros", **spec), 0, COUNTING)


def ones(ids, dim=3):
    return np.ones((len(ids), dim), np.float32)


@pytest.fixture(params=["alone", "helped"])
def helped(request, monkeypatch):
    """Have pushes applied by their own thread; or in pieces, by one that helps as well."""
    if request.param == "helped":
        monkeypatch.setattr(rows, "_PIECE", 100)
        monkeypatch.setattr(work, "_core_is_idle", lambda: True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dim", DIMS)
def test_rows_of_any_width_are_read_and_written_where_they_lie(dim, dtype):
    table = counting_table(dim, dtype=dtype)
    ids = np.random.default_rng(dim).permutation(500).astype(np.int64) - 250
    grads = (np.arange(500)[:, None] % 7 + np.arange(dim) % 5).astype(np.float32)
    table.apply(ids, grads, -1.0)
    table.apply(ids[::-1].copy(), grads[::-1].copy(), -1.0)

    asked = np.array([*ids[::3], 10**9], np.int64)

    expected = np.concatenate([2 * grads[::3], np.zeros((1, dim), np.float32)])
    np.testing.assert_array_equal(table.pull(asked), expected)


@pytest.mark.parametrize("dim", [3, 16])
def test_concurrent_pushes_of_overlapping_ids_lose_nothing_while_the_table_grows(dim, helped):
    """Concurrent pushes lose no update: each row ends as the number of pushes that named it."""
    table, threads, pushes = counting_table(dim), 6, 25
    hot = np.arange(300, dtype=np.int64)  # in every push
    counts = np.zeros(40_000, np.int64)
    lock = threading.Lock()
    torn = []

    def worker(seed):
        rng = np.random.default_rng(seed)
        for _ in range(pushes):
            cold = 300 + rng.permutation(40_000 - 300)[:2000]
            ids = rng.permutation(np.concatenate([hot, cold])).astype(np.int64)
            table.apply(ids, ones(ids, dim), -1.0)
            seen = table.pull(ids)
            torn.extend(seen[seen != np.floor(seen)])
            with lock:
                counts[ids] += 1

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(worker, seed) for seed in range(threads)]:
            done.result()

    rows = table.pull(np.arange(40_000, dtype=np.int64))
    np.testing.assert_array_equal(rows, np.repeat(counts[:, None], dim, axis=1))
    assert not torn
    assert threads * pushes == rows[0, 0]
    table.pin("c")
    block = table.block("c", 0, len(table))
    np.testing.assert_array_equal(counts[block.ids], block.steps)


def test_concurrent_pushes_of_the_same_rows_lose_nothing(helped):
    """The oracle of the lock of a row: without it this fails on a machine of two cores."""
    table, threads, pushes = counting_table(16), 4, 400
    rng = np.random.default_rng(0)
    orders = [rng.permutation(1000).astype(np.int64) for _ in range(20)]
    grads = np.ones((1000, 16), np.float32)

    def worker(seed):
        for number in range(pushes):
            table.apply(orders[(seed + number) % len(orders)], grads, -1.0)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(worker, 5 * seed) for seed in range(threads)]:
            done.result()

    np.testing.assert_array_equal(table.pull(np.sort(orders[0])), threads * pushes)


def test_pins_are_exact_under_concurrent_pushes(helped):
    """All rows of a push move together in the books; a pin between pushes shows whole rows, and
    the same ones each time that it is read."""
    table = counting_table()
    everything = np.arange(3000, dtype=np.int64)
    stop = threading.Event()

    def worker(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = rng.permutation(3000)[:1500].astype(np.int64)
            table.apply(ids, ones(ids), -1.0)

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(worker, seed) for seed in range(3)]
        seen, again = {}, {}
        try:
            for number in range(8):
                cut = f"c{number}"
                table.pin(cut)
                seen[cut] = table.pull(everything, cut)
            again = {cut: table.pull(everything, cut) for cut in seen}
        finally:
            stop.set()
        for done in workers:
            done.result()

    for cut, then in seen.items():
        block = table.block(cut, 0, table.pinned_rows(cut))
        np.testing.assert_array_equal(then, again[cut])
        np.testing.assert_array_equal(then[block.ids], block.weight)
        np.testing.assert_array_equal(block.steps, block.weight[:, 0])
    assert (seen["c7"] >= seen["c0"]).all()


def test_a_push_that_two_threads_apply_is_the_same_push(helped):
    """Half of the rows are there; the others are made."""
    spec = TableSpec("t", 5, dtype="bfloat16", rounding="stochastic")
    table, rng = Table(spec, 3, make_rule(specs.Adam(0.1))), np.random.default_rng(0)
    ids = rng.permutation(2000).astype(np.int64)
    grads = rng.standard_normal((2000, 5), np.float32)
    table.apply(ids[::2].copy(), grads[::2].copy(), 0.1)

    table.apply(ids, grads, 0.1)

    expected = Table(spec, 3, make_rule(specs.Adam(0.1)))
    for some in (slice(0, None, 2), slice(None)):
        for id, grad in zip(ids[some], grads[some], strict=True):
            expected.apply(np.array([id]), grad[None], 0.1)
    everything = np.sort(ids)
    np.testing.assert_array_equal(table.pull(everything), expected.pull(everything))


def test_a_row_that_is_named_twice_in_a_push_is_stepped_twice():
    table = counting_table()
    ids = np.array([1, 2], np.int64)
    table.apply(ids, ones(ids), -1.0)

    table.apply(np.array([1, 2, 1, 1], np.int64), np.ones((4, 3), np.float32), -1.0)

    np.testing.assert_array_equal([[4, 4, 4], [2, 2, 2]], table.pull(ids))


def test_a_pull_makes_nothing():
    table = Table(TableSpec("t", 4), 5, COUNTING)
    ids = np.array([7, -7], np.int64)

    rows = table.pull(ids)

    np.testing.assert_array_equal(initial_rows(5, table.spec, ids), rows)
    assert 0 == len(table)


def test_no_room_is_told_before_anything_is_changed(monkeypatch):
    table = counting_table()
    ids = np.arange(10, dtype=np.int64)
    table.apply(ids, ones(ids), -1.0)
    table._rows.most = 15

    with pytest.raises(MemoryError):
        table.apply(ids + 4, ones(ids), -1.0)

    np.testing.assert_array_equal(table.pull(ids), 1)


def test_a_row_that_is_there_is_not_inserted():
    table = counting_table()
    ids = np.arange(3, dtype=np.int64)
    table.apply(ids, ones(ids), -1.0)

    with pytest.raises(ValueError, match="is there already"):
        table.insert(RowBlock(ids[2:], ones(ids[2:]), (), np.zeros(1, np.int64)))


@pytest.mark.parametrize(
    ("nbytes", "stride"),
    [(4, 4), (12, 12), (28, 32), (40, 40), (60, 64), (64, 64), (72, 72), (104, 128), (192, 192)],
)
def test_rows_fill_whole_cache_lines_where_that_costs_little(nbytes, stride):
    assert stride == _stride(nbytes)


def test_a_table_counts_the_memory_that_it_uses():
    rows = Rows(TableSpec("t", 16), make_rule(specs.Adagrad()))
    ids = np.arange(50_000, dtype=np.int64)

    for piece in ids.reshape(50, -1):
        rows.append(piece, np.zeros((1000, 16), np.float32), [0.0])

    assert 128 + 8 + 23 < rows.nbytes / 50_000 < 128 + 8 + 30


def test_rows_written_between_two_marked_pins_are_touched_and_no_others():
    """Rows that were written again before they could be asked for count as well."""
    table = Table(TableSpec("t", 2), 0, make_rule(specs.SGD(1.0)))
    ids = np.arange(50, dtype=np.int64)

    def write(some):
        table.apply(ids[some], np.ones((len(ids[some]), 2), np.float32), 1.0)

    write(slice(0, 50))
    found = []
    for number, (before, since) in enumerate(
        [(slice(0, 50), slice(0, 0)), (slice(5, 9), slice(7, 20)), (slice(30, 31), slice(0, 50))]
    ):
        write(before)
        table.pin(f"{number}", mark=True)
        write(since)
        found.append(table.touched(f"{number}").tolist())
        table.unpin(f"{number}")
    table.pin("last", mark=True)

    assert [list(range(50)), [5, 6, 7, 8], [*range(7, 20), 30]] == found
    assert list(range(50)) == table.touched("last").tolist()


@pytest.mark.parametrize("dim", [1, 3, 7, 8, 16, 100])
def test_rows_are_placed_like_numpy_places_them(dim):
    random = np.random.default_rng(dim)
    places = random.permutation(1000)[:700]
    some = random.random((700, 2 * dim), np.float32)[:, ::2]  # not contiguous
    target = random.random((1000, dim), np.float32)
    expected = target.copy()
    expected[places] = some

    place_rows(some, places, target)

    np.testing.assert_array_equal(expected, target)
    with pytest.raises(ValueError, match="700 places"):
        place_rows(some[:-1], places, target)
