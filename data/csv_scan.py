"""The one pass over a CSV file: where its records begin, and what their values are.

The file is read as a stream by one thread, which finds the records; others look at their fields
meanwhile (`csv_seen.Watch`). What is found is kept beside the job, for its other processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..common.cores import usable
from . import csv_sorts as sorts
from .csv_dialect import Text
from .csv_seen import Seen, Sorts, Watch, from_json, to_json
from .files import cached
from .kernels import COUNT, csv_state, scan_csv

STRIDE = 256  # records between two offsets of the index: 8 bytes of memory per 256 records
CHUNK_NBYTES = 1 << 22
_LONGEST_NBYTES = 1 << 28  # a longer record is not looked at: a quote is not closed
_MOST_THREADS = 4  # what finds the records is then the slower part
_ENDS = 8  # so many ends of a line stand behind the bytes that are looked at


@dataclass(frozen=True)
class Index:
    """The offsets of every STRIDE-th record and of the file's end; the header counts as one."""

    starts: NDArray[np.int64]
    total: int


def indexed(text: Text, watch: Watch | None = None) -> tuple[Index, Seen]:
    """Return the index of a file and what is seen in the columns to watch, from the cache or new.

    One pass finds both.
    """
    found: list[tuple[NDArray[np.int64], Seen]] = []

    def scanned() -> tuple[NDArray[np.int64], Seen]:
        if not found:
            found.append(scan(text, watch))
        return found[0]

    def save_index(to: Path) -> None:
        with to.open("wb") as stream:
            np.save(stream, scanned()[0])

    key, seen = text.dialect.key(), Seen()
    if watch is not None:
        path = cached(text.file, f"csv-{watch.key()}.json", lambda to: save_seen(to, scanned()[1]))
        seen = scanned()[1] if path is None else from_json(path.read_text())
    path = cached(text.file, f"csv-{key}.npy", save_index)
    table = scanned()[0] if path is None else np.load(path, allow_pickle=False)
    return Index(table[1:], int(table[0])), seen


def save_seen(to: Path, seen: Seen) -> None:
    """Write what was seen of a file."""
    to.write_text(to_json(seen))


def scan(text: Text, watch: Watch | None) -> tuple[NDArray[np.int64], Seen]:
    """Return [records, offset of record 0, of record STRIDE, ..., of the end], and what is seen."""
    state, signs, parts, end = csv_state(), text.dialect.signs, [], text.first
    with _Lookers(watch, text) as lookers:
        for chunk, base, held in _chunks(text, lookers):
            starts = np.empty(len(chunk) // 2 + 2, np.int64)
            before = int(state[COUNT])
            starts = starts[: scan_csv(chunk, base, signs, state, starts)]
            parts.append(starts[-before % STRIDE :: STRIDE].copy())
            lookers.found(held, starts)
            end = base + len(chunk)
        seen = lookers.seen()
    return np.concatenate([[state[COUNT]], *parts, [end]]).astype(np.int64), seen


@dataclass
class _Held:
    """Bytes of the file in memory, from `base` on; `nbytes` of them are there."""

    data: NDArray[np.uint8]
    base: int
    nbytes: int


def _chunks(text: Text, lookers: _Lookers) -> Iterator[tuple[NDArray[np.uint8], int, _Held]]:
    """Yield what is read of the file, where it stands, and it behind what is not looked at yet."""
    nbytes, base = text.file.at_once(CHUNK_NBYTES), text.first
    with text.file.open() as stream:
        stream.seek(base)
        read: Any = stream.readinto  # type: ignore[attr-defined]
        while True:
            rest = lookers.rest
            data = np.empty(len(rest) + nbytes + _ENDS, np.uint8)
            data[: len(rest)] = rest
            there, room = len(rest), data.data[: len(rest) + nbytes]
            while there < len(room) and (more := read(room[there:])):
                there += more
            if there == len(rest):
                return
            yield data[len(rest) : there], base, _Held(data, base - len(rest), there)
            base += there - len(rest)


class _Lookers:
    """Threads that look at the fields of whole records, while others are read.

    `rest`: the bytes from the last record on, whose end has not been read yet.
    """

    def __init__(self, watch: Watch | None, text: Text) -> None:
        self._watch = watch
        self._end = np.frombuffer(text.dialect.line_end.encode() * _ENDS, np.uint8)
        self._seen = {name: Sorts() for name in watch.splits} if watch else Seen()
        self._threads = min(_MOST_THREADS, usable())
        self._pool: ThreadPoolExecutor | None = None
        self._asked: deque[tuple[Future[Seen], int]] = deque()
        self._number = -watch.skipped if watch else 0  # of the record that `rest` begins with
        self._begins: int | None = None  # where in the file that is; None: there is none yet
        self.rest = np.empty(0, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def found(self, held: _Held, starts: NDArray[np.int64]) -> None:
        """Take bytes, and where in the file records begin in those that are new."""
        if self._watch is None:
            return
        if len(starts):
            if self._begins is not None:
                starts = np.append(self._begins, starts)
            self._look(held.data, starts[:-1] - held.base, starts[1:] - held.base)
            self._begins = int(starts[-1])
        place = held.nbytes if self._begins is None else self._begins - held.base
        self.rest = held.data[place : held.nbytes]
        if len(self.rest) > _LONGEST_NBYTES:
            self.rest, self._begins, self._number = held.data[:0], None, self._number + 1

    def seen(self) -> Seen:
        """Return what has been seen, at the end of the file."""
        if self._watch is not None and self._begins is not None:
            data = np.concatenate([self.rest, self._end])
            self._look(data, np.array([0]), np.array([len(self.rest)]))
        while self._asked:
            self._take()
        return self._seen

    def _look(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        assert self._watch is not None
        header = min(max(0, -self._number), len(begins))
        number = self._number + header
        self._number += len(begins)
        if header == len(begins):
            return
        if self._pool is None:
            sorts.prepare()
            self._pool = ThreadPoolExecutor(self._threads, "edl-csv")
        while header < len(begins):
            after = int(np.searchsorted(begins, begins[header] + CHUNK_NBYTES))
            while len(self._asked) > 2 * self._threads:
                self._take()
            bounds = begins[header:after], ends[header:after]
            self._asked.append((self._pool.submit(self._watch.look, data, *bounds), number))
            number += after - header
            header = after

    def _take(self) -> None:
        asked, number = self._asked.popleft()
        for name, each in asked.result().items():
            self._seen[name].merge(each, number)
