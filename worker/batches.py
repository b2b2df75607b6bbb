"""The order of the records of a task, and how it is split into minibatches.

Pure. A task is records [start, end) of a source. Position p of it is record `start + order[p]`,
where the order is a pure function of (seed, epoch, task): whoever leases the task again sees the
same one, so that positions mean the same to every worker and to every server's ledger. A minibatch
is a span of positions; it never crosses a boundary that the master names, so that a shard that has
applied a span before drops exactly that span (docs/architecture.md, "The books").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DataError, EdlError, RecordError
from ..common.order import minibatches
from ..common.process import lacks_thread
from ..data.reader import RecordReader, Records, take


@dataclass(frozen=True)
class Minibatch:
    """Positions [start, end) of a task, and the raw records that are to be used.

    `numbers`: int64[used], theirs in the source.
    """

    start: int
    end: int
    records: Records
    numbers: NDArray[np.int64] = field(compare=False)  # arrays have no one answer to ==

    @property
    def used(self) -> int:
        """Records that are used: the span less its quarantined positions."""
        return len(self.records)


class SpanError(Exception):
    """A failure of a span's content.

    `record` is the record to blame, where there is one.
    """

    def __init__(
        self, start: int, end: int, source: str, error: BaseException, record: int | None = None
    ) -> None:
        super().__init__(f"positions {start}-{end} of {source}: {type(error).__name__}: {error}")
        self.start = start
        self.end = end
        self.source = source
        self.error = error
        self.record = record


class user_code:
    """A place for the user's code: `with user_code(start, end, source):`.

    What the user's code raises is about these positions.

    It becomes a SpanError, SystemExit too: the master decides what a record that fails is worth.
    Our own errors (`ours`) pass, and so do what is no Exception and the want of threads: no record
    is to blame for what the system does not give.
    """

    __slots__ = ("_ours", "_where")

    def __init__(
        self, start: int, end: int, source: str, *, ours: type[Exception] = EdlError
    ) -> None:
        self._where = start, end, source
        self._ours = ours

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if lacks_thread(error):
            return
        if isinstance(error, Exception | SystemExit) and not isinstance(error, self._ours):
            raise SpanError(*self._where, error) from error


def split(
    start: int, end: int, minibatch: int, boundaries: Sequence[int] = ()
) -> Iterator[tuple[int, int]]:
    """Yield spans that cover [start, end) in order, none across a boundary.

    Each is `minibatch` long or what is left of it; a last record is no span of its own, but makes
    the one before longer.
    """
    stops = sorted(b for b in boundaries if start < b < end)
    for stop in (*stops, end):
        for left in range(minibatches(stop - start, minibatch), 0, -1):
            last = stop if left == 1 else start + minibatch
            yield start, last
            start = last


def spans(
    reader: RecordReader,
    source: str,
    start: int,
    end: int,
    *,
    offsets: NDArray[np.int64],
    pieces: Sequence[tuple[int, int]],
    skips: Sequence[int] | NDArray[np.int64] = (),
) -> Iterator[Minibatch]:
    """Read the minibatches `pieces` (as of `split`, to the task's end) of records [start, end).

    `offsets` int64[end - start]: by position, the record's place behind `start`. Reads the task's
    records at once (a task is small: minibatch times num_minibatches_per_task) and raises
    SpanError, naming the minibatch and the record, where one is broken. What else a reader raises
    is about all that is left of the task.
    """
    size = len(offsets)
    position = pieces[0][0] if pieces else size
    kept = np.ones(size, dtype=bool)  # by offset
    kept[offsets[np.asarray(skips, dtype=np.int64)]] = False
    records: Records = []
    if kept[offsets[position:]].any():
        skipped = set((start + np.flatnonzero(~kept)).tolist())
        try:
            # Of an error of the source as a whole no record is to blame: the worker cannot go on.
            with user_code(position, size, source, ours=DataError):
                records = reader.read(source, start, end, skip=skipped)
        except RecordError as error:
            if not start <= error.record < end:
                raise SpanError(position, size, source, error) from error
            broken = int(np.flatnonzero(offsets == error.record - start)[0])
            # A record before `position` was read by somebody before: the source changed under us.
            a, b = next(((a, b) for a, b in pieces if a <= broken < b), (broken, broken + 1))
            raise SpanError(a, b, error.source, error, error.record) from error
        if len(records) != kept.sum():
            wrong = DataError(f"the reader gave {len(records)} records instead of {kept.sum()}")
            raise SpanError(position, size, source, wrong)
    row = np.cumsum(kept) - 1  # index into `records` by offset
    wanted = kept[offsets]
    if len(records):  # in the task's order, at once: a minibatch is then a slice
        records = take(records, row[offsets[position:][wanted[position:]]])
    place = 0
    for a, b in pieces:
        used = int(np.count_nonzero(wanted[a:b]))
        mine = take(records, slice(place, place + used)) if used else []
        yield Minibatch(a, b, mine, start + offsets[a:b][wanted[a:b]])
        place += used
