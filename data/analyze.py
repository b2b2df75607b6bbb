"""`edl data analyze`: one pass over the data, each record once, in several processes.

The records are cut into shards that depend on the data alone; each is summarized by one process and
the summaries are merged in the shards' order, so that any number of processes gives the same JSON.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from ..common.errors import DataError, RecordError
from .analysis import Sizes, Summary
from .reader import Columns, RecordReader, Records, Source

BLOCK = 8192  # records in memory at once, at most
_ELEMENTS = 1 << 20  # of one column at once: pictures have many in a record
SHARD = 64 * BLOCK
_PAYS = 4  # shards: a process takes as long to start and to send as to read one or two
_BROKEN = 100  # records that are named; more, and it is the reading that is wrong


class Shard(NamedTuple):
    """Records [start, end) of a source; `number` is the shard's place among all."""

    number: int
    source: str
    start: int
    end: int


def shards_of(sources: Sequence[Source], size: int = SHARD) -> list[Shard]:
    """Return shards that hold each record of the sources once."""
    ranges = [
        (source.name, start, min(start + size, source.records))
        for source in sources
        for start in range(0, source.records, size)
    ]
    return [Shard(number, *each) for number, each in enumerate(ranges)]


def analyze(
    reader: RecordReader, sizes: Sizes, processes: int | None = None, shard: int = SHARD
) -> Summary:
    """Return what is known of all records. Raises DataError where it cannot be had.

    Without a number there is one process for each four shards, and at most one a core.
    """
    sources = reader.sources()
    shards = shards_of(sources, shard)
    expected = sum(source.records for source in sources)
    if processes is None:
        processes = min(len(os.sched_getaffinity(0)), expected // (_PAYS * shard))
    whole = Summary(sizes)
    for part in _parts(partial(summarize, reader, sizes), shards, min(processes, len(shards))):
        whole.merge(part)
        _check_broken(whole.broken)
    if whole.records + len(whole.broken) != expected:
        raise DataError(
            f"Of {expected} records {whole.records} were read and {len(whole.broken)} are broken: "
            "did the data change meanwhile? Start it again."
        )
    return whole


def _parts(summary: Any, shards: Sequence[Shard], processes: int) -> Iterator[Summary]:
    """Yield the summaries of the shards in their order; at most two a process wait to be taken."""
    if processes < 2:
        yield from map(summary, shards)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn) as pool:
        waiting: Iterable[Shard] = iter(shards)
        futures = [pool.submit(summary, each) for each in islice(waiting, 2 * processes)]
        try:
            while futures:
                yield futures.pop(0).result()
                futures += [pool.submit(summary, each) for each in islice(waiting, 1)]
        except BrokenProcessPool:
            raise DataError(
                "A process that read the data was ended from outside, perhaps for its memory: "
                "try it with a smaller --processes."
            ) from None
        finally:
            for future in futures:
                future.cancel()


def summarize(reader: RecordReader, sizes: Sizes, shard: Shard) -> Summary:
    """Return what is known of one shard's records."""
    part = Summary(sizes, seed=shard.number + 1)
    start, block = shard.start, 1  # the first record tells how large they are
    while start < shard.end:
        end = min(start + block, shard.end)
        records = _read(reader, shard.source, start, end, part.broken)
        part.add(records)
        if block == 1 and isinstance(records, Columns):
            widest = max((records[name].size for name in records.names), default=1)
            block = max(1, min(BLOCK, _ELEMENTS // max(1, widest)))
        elif block == 1:
            block = BLOCK
        start = end
    for column in part.columns.values():
        column.frequent.shrink()  # less to send
    return part


def _read(reader: RecordReader, source: str, start: int, end: int, broken: list[str]) -> Records:
    """Return records without the broken ones, which are added to `broken`."""
    skip: list[int] = []
    while True:
        try:
            return reader.read(source, start, end, skip)
        except RecordError as error:
            skip.append(error.record)
            broken.append(str(error))
            _check_broken(broken)


def _check_broken(broken: Sequence[str]) -> None:
    if len(broken) > _BROKEN:
        raise DataError(
            f"More than {_BROKEN} records are broken; the first is: {broken[0]}. Say how the data "
            "is to be read with --data_reader_params (docs/data.md)."
        )
