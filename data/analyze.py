"""`edl data analyze`: one pass over the data, each record once, here or in a job's workers.

The records are cut into shards that depend on the data alone; each is summarized by itself and the
summaries are merged in the shards' order, so that any number of workers gives the same JSON. In a
job (worker/analyst.py) a shard is a task, and its summary a file of its own (analysis_file.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..common.errors import DataError, RecordError
from ..common.files import write_file
from ..common.order import minibatches
from ..common.ragged import Ragged
from .analysis import Sizes, Summary
from .reader import Columns, RecordReader, Records, Source

BLOCK = 8192  # records in memory at once, at most
_ELEMENTS = 1 << 20  # of one column at once: pictures have many in a record
SHARD = 64 * BLOCK
_MOST_SHARDS = 256  # about: each leaves up to a megabyte a column until they are merged
PAYS = 4 * SHARD  # records of a worker: its start takes as long as to read one shard or two
_BROKEN = 100  # records that are named; more, and it is the reading that is wrong


class Shard(NamedTuple):
    """Records [start, end) of a source; `number`, from 1, is the shard's place among all."""

    number: int
    source: str
    start: int
    end: int


def shard_size(sources: Sequence[Source]) -> int:
    """Return the records of a shard of these data: the more of them, the larger."""
    return SHARD * -(-max(1, _records(sources)) // (SHARD * _MOST_SHARDS))


def shards_of(sources: Sequence[Source], size: int) -> list[Shard]:
    """Return shards that hold each record of the sources once: the tasks of the job's plan."""
    ranges = []
    for source in sources:
        starts = [size * n for n in range(minibatches(source.records, size))]
        ends = [*starts[1:], source.records]
        ranges += [(source.name, *each) for each in zip(starts, ends, strict=False)]
    return [Shard(number, *each) for number, each in enumerate(ranges, start=1)]


def analyze(reader: RecordReader, sizes: Sizes, size: int | None = None) -> Summary:
    """Return what is known of all records, read here. Raises DataError where it cannot be had.

    `size`: records of a shard, where it is not that of the data.
    """
    sources = reader.sources()
    shards = shards_of(sources, size or shard_size(sources))
    return merged((summarize(reader, sizes, each) for each in shards), sizes, sources)


def merged(parts: Iterable[Summary], sizes: Sizes, sources: Sequence[Source]) -> Summary:
    """Return what the summaries of all shards, in their order, say of the whole.

    Raises DataError where that is not all records of the sources.
    """
    whole, expected = Summary(sizes), _records(sources)
    for part in parts:
        whole.merge(part)
        _check_broken(whole.broken)
    if whole.records + len(whole.broken) != expected:
        raise DataError(
            f"Of {expected} records {whole.records} were read and {len(whole.broken)} are broken: "
            "did the data change meanwhile? Start it again."
        )
    return whole


def write(whole: Summary, out: Path) -> None:
    """Put the JSON in place whole. Raises OSError."""
    text = json.dumps(whole.to_dict(), indent=1, allow_nan=False) + "\n"
    write_file(out, text.encode())


def summarize(
    reader: RecordReader,
    sizes: Sizes,
    shard: Shard,
    read: Callable[[int], object] = lambda _end: None,
) -> Summary:
    """Return what is known of one shard's records.

    `read(end)` is told up to which record they are read; what it raises ends this.
    """
    part = Summary(sizes, seed=shard.number)
    start, block = shard.start, 1  # the first record tells how large they are
    while start < shard.end:
        end = min(start + block, shard.end)
        records = _read(reader, shard.source, start, end, part.broken)
        part.add(records)
        if block == 1 and isinstance(records, Columns):
            widest = max((_elements(records[name]) for name in records.names), default=1)
            block = max(1, min(BLOCK, _ELEMENTS // max(1, widest)))
        elif block == 1:
            block = BLOCK
        start = end
        read(end)
    for column in part.columns.values():
        column.frequent.shrink()  # less to send
    return part


def _elements(column: Any) -> int:
    return int((column.values if isinstance(column, Ragged) else column).size)


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


def _records(sources: Sequence[Source]) -> int:
    return sum(source.records for source in sources)


def _check_broken(broken: Sequence[str]) -> None:
    if len(broken) > _BROKEN:
        raise DataError(
            f"More than {_BROKEN} records are broken; the first is: {broken[0]}. Say how the data "
            "is to be read with --data_reader_params (docs/data.md)."
        )
