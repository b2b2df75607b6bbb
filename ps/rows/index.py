"""An index from int64 ids to row numbers: one open-addressed array that grows in place.

It grows a little at each insert.

It is made of buckets (kernels/buckets.py), whose words have the row number plus one (0: no entry)
and the row's tag (its updates so far, whether a push is at it, and whether it was written since a
snapshot: ps/rows/passes.py).

An id's home is `hash * buckets / 2^64`, so homes keep their order when the array grows, and every
entry moves upwards only. Growth therefore needs no second array: a cursor walks from the top down,
takes the entries of a few buckets out and puts them in again at their new homes. An id whose old
home lies at or above the cursor is looked for at its new one, any other at its old one. What runs
over the end stands behind it.

The load stays between 0.54 and 0.65, 0.71 where a growth has yet to come: at most 30 bytes a row,
but for small tables. Segments that double were at 0.38 to 0.75, and leave their old halves behind
as holes.

Not thread-safe: `add` needs the table's exclusive lock, the others the shared one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...kernels.buckets import (
    AHEAD,
    BUCKET_NBYTES,
    ENTRIES,
    ROW,
    TAG,
    WORD,
    Shape,
    home_of,
    is_full,
    probe,
    put,
)
from ...kernels.compile import (
    INTEGER,
    INTS_1D,
    INTS_1D_IN,
    clear_bits,
    compiled,
    inlined,
    integers,
    load_integer,
    part,
    prefetch,
    read_integer,
    record_at,
    store_integer,
)
from .memory import Memory

Ints = NDArray[np.int64]
INDEX = integers(  # what kernels are told of an index
    "buckets",  # the address of the first
    "old",  # how many there were before the growth under way
    "new",  # and how many there will be; the same where there is none
    "cursor",  # buckets from here on have their entries where they will be; or 0
    "size",  # ids
)
index_at = record_at(INDEX)
COLOUR, OTHER = 2, 4  # of a tag: written since this mark was made the current one
STEPS = 3  # of a tag: its bits from here on
MOST_STEPS = (1 << 32 - STEPS) - 1
_RUN = 1 << 15  # buckets looked at in one go: a third of a millisecond
_FIRST_BUCKETS = 256
MANY = 8192  # rows at once: a restore, not a push


class Index:
    """An index that numbers rows in the order in which their ids came."""

    def __init__(self, most: int) -> None:
        """Make room for at most `most` ids."""
        # room for twice as many, and for a run of any length behind them
        buckets = 3 * most // ENTRIES + 2 * _FIRST_BUCKETS
        self._memory = Memory(BUCKET_NBYTES, buckets)
        first = self._memory.bytes.ctypes.data
        self.record = np.array([(first, _FIRST_BUCKETS, _FIRST_BUCKETS, 0, 0)], INDEX)
        self.address = int(self.record.ctypes.data)
        self._find, self._add, self._tags, self._set_steps = (
            compiled(function, INTEGER, INTS_1D_IN, INTS_1D)
            for function in (_find, _add, _tags, _set_steps)
        )
        self._collect = compiled(_collect, INTEGER, INTEGER, INTEGER, INTEGER)

    def __len__(self) -> int:
        return int(self.record["size"][0])

    @property
    def nbytes(self) -> int:
        return BUCKET_NBYTES * int(self.record["new"][0])

    def find(self, ids: Ints) -> Ints:
        """Return row numbers; -1 where unknown."""
        rows = np.empty(len(ids), np.int64)
        self._find(self.address, ids, rows)
        return rows

    def add(self, ids: Ints) -> Ints:
        """Return row numbers; an unknown id gets the next one, and no updates."""
        rows = np.empty(len(ids), np.int64)
        self._add(self.address, ids, rows)
        if 100 * len(self) > 60 * ENTRIES * self.record["new"][0]:  # soon it will grow, by a fifth
            nbytes = BUCKET_NBYTES * (12 * int(self.record["new"][0]) // 10 + len(ids))
            self._memory.use(nbytes, ahead=False, wait=len(ids) > MANY)
        return rows

    def steps(self, ids: Ints) -> Ints:
        """Return how many updates the rows of these ids (known) have had."""
        return self.tags(ids) >> STEPS

    def tags(self, ids: Ints) -> Ints:
        """Return the tags of the rows of these ids (known)."""
        tags = np.empty(len(ids), np.int64)
        self._tags(self.address, ids, tags)
        return tags

    def collect(self, start: int, mark: int) -> tuple[Ints, int]:
        """Return the rows marked in a run of buckets from `start`, in no order, and where to go on.

        The marks are taken away. 0: that was all. Begin at 0. Rows may come and be written between
        the runs, and nothing is left out. Needs the shared lock.
        """
        rows, stop = self._collect(self.address, start, _RUN, mark)
        return rows, 0 if stop >= self.record["new"][0] else stop

    def set_steps(self, ids: Ints, steps: Ints) -> None:
        """Set how many updates the rows of these ids (known) have had."""
        self._set_steps(self.address, ids, steps.copy())


# -- Compiled by numba. Buckets are int64; an entry's address is that of its id.


@inlined
def shape_of(index):  # type: ignore[no-untyped-def]
    return Shape(index.buckets, np.uint64(index.old), np.uint64(index.new), index.cursor)


def _find(index, ids, rows):  # type: ignore[no-untyped-def]
    shape = shape_of(index_at(index))
    base = shape.buckets
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            prefetch(base + BUCKET_NBYTES * home_of(ids[i + AHEAD], shape))
        if i >= 0:
            word, _ = probe(base, ids[i], home_of(ids[i], shape))
            rows[i] = (word & ROW) - 1


def _tags(index, ids, tags):  # type: ignore[no-untyped-def]
    shape = shape_of(index_at(index))
    base = shape.buckets
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            prefetch(base + BUCKET_NBYTES * home_of(ids[i + AHEAD], shape))
        if i >= 0:
            word, _ = probe(base, ids[i], home_of(ids[i], shape))
            tags[i] = np.int64(np.uint64(word) >> np.uint64(32))


def _set_steps(index, ids, steps):  # type: ignore[no-untyped-def]
    shape = shape_of(index_at(index))
    base = shape.buckets
    for i in range(-AHEAD, len(ids)):
        if i + AHEAD < len(ids):
            prefetch(base + BUCKET_NBYTES * home_of(ids[i + AHEAD], shape))
        if i >= 0:
            word, address = probe(base, ids[i], home_of(ids[i], shape))
            store_integer(address + WORD, (word & ROW) | (min(steps[i], MOST_STEPS) << 32 + STEPS))


def _collect(index, start, count, mark):  # type: ignore[no-untyped-def]
    """Collect the marked rows of a run of buckets, which ends behind one that is not full.

    So whatever stands above has its home above, and while growth may move it, it does not come
    below.
    """
    base = index_at(index).buckets
    stop = start + count
    while is_full(base + BUCKET_NBYTES * (stop - 1)):
        stop += 1
    rows, n = np.empty(ENTRIES * (stop - start), np.int64), 0
    for bucket in range(start, stop):
        address = base + BUCKET_NBYTES * bucket
        for place in range(address, address + WORD, 8):
            word = read_integer(place + WORD)  # beside `set_bit` and `release_word` (passes.py)
            if (word >> 32) & mark != 0:
                clear_bits(place + TAG, np.uint32(mark))
                rows[n] = (word & ROW) - 1
                n += 1
    return rows[:n], stop


def _add(address, ids, rows):  # type: ignore[no-untyped-def]
    index = index_at(address)
    base = index.buckets
    for start in range(0, len(ids), AHEAD):
        stop = min(start + AHEAD, len(ids))
        _make_room(index, stop - start)
        shape = shape_of(index)
        for i in range(start, stop):
            prefetch(base + BUCKET_NBYTES * home_of(ids[i], shape))
        for i in range(start, stop):
            home = home_of(ids[i], shape)
            word, _ = probe(base, ids[i], home)
            if word == 0:
                index.size += 1
                word = index.size
                put(base + BUCKET_NBYTES * home, ids[i], word)
            rows[i] = (word & ROW) - 1


@part
def _make_room(index, count):  # type: ignore[no-untyped-def]
    """Begin to grow, or move on with a growth, before up to `count` ids come.

    It begins where they take the load above 0.65. A growth that has begun moves so fast that it
    ends before the next has to begin.
    """
    base = index.buckets
    if index.cursor == 0 and 100 * (index.size + count) > 65 * ENTRIES * index.new:
        index.new = 12 * index.old // 10 + count
        end = index.old
        while is_full(base + BUCKET_NBYTES * (end - 1)):
            end += 1
        index.cursor = end
    if index.cursor != 0:
        _move(index, 4 * count)


@part
def _move(index, count):  # type: ignore[no-untyped-def]
    """Take the cursor down by `count` buckets or a few more; to 0 where the growth is over."""
    base, new = index.buckets, np.uint64(index.new)
    then = Shape(base, new, new, np.int64(0))
    top, bottom = index.cursor, max(index.cursor - count, 0)
    while bottom > 0 and is_full(base + BUCKET_NBYTES * (bottom - 1)):
        bottom -= 1
    while is_full(base + BUCKET_NBYTES * (top - 1)):  # it may have run over since
        top += 1
    taken = np.empty(2 * ENTRIES * (top - bottom), np.int64)
    n = 0
    for bucket in range(bottom, top):
        for address in range(
            base + BUCKET_NBYTES * bucket, base + BUCKET_NBYTES * bucket + WORD, 8
        ):
            word = load_integer(address + WORD)
            if word == 0:
                break
            taken[n], taken[n + 1] = load_integer(address), word
            store_integer(address + WORD, 0)
            n += 2
    for i in range(0, n, 2):
        home = home_of(taken[i], then)
        put(base + BUCKET_NBYTES * home, taken[i], taken[i + 1])
    index.cursor = bottom
    if bottom == 0:
        index.old = index.new
