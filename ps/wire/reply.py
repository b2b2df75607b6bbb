"""Replies with rows and chunks: gathered and sent in parts, or into a shared region.

The next parts are gathered by a core that is free (rows/work.py), so that store and wire work at
the same time; chunks are sent from where they live.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...wire.stream import AnyBuffer, Stream
from ..books.answers import PullPlan
from ..books.parameters import RowPlan
from ..rows.work import Work
from . import frames
from .buffers import Buffers
from .frames import Array, Bytes

_PART_NBYTES = 512 << 10  # of a pull gathered at once: 8,192 rows of dim 16, and within L2
_PARTS = 8  # gathered by two threads while the first ones are sent: 4 MiB of a connection
_NO_BYTES: Bytes = np.empty(0, np.uint8)
_Piece = tuple[RowPlan, int, int, int]  # rows [start, stop) of a plan, and their place in a part
_Part = tuple[list[_Piece], Bytes]


class ReplyWriter:
    """The writer of one connection's replies, whose client has these shared `regions`."""

    def __init__(self, stream: Stream, parts: Buffers, regions: Mapping[int, Bytes]) -> None:
        self._stream = stream
        self._parts = parts
        self._regions = regions
        self.begun = False  # the reply is partly sent: too late for an error
        self.lent: Bytes | None = None  # the memory of a reply's parts: to be given back

    def give_back(self) -> None:
        """Give the memory of the reply's parts back."""
        if self.lent is not None:
            self._parts.give(self.lent)
            self.lent = None

    def send(
        self,
        op: int,
        flags: int,
        code: int,
        applied: int,
        told: list[frames.Told],
        plan: PullPlan,
        region: int,
    ) -> None:
        """Send a reply with the plan's rows and chunks, in the caller's region where they fit."""
        for (tensor, number), values in plan.chunks:
            told.append((frames.CHUNK, frames.FLOAT32, tensor, number, len(values)))
        arrays, descriptors, nbytes = frames.describe(tuple(told))
        shared = self._regions.get(region, _NO_BYTES) if region else _NO_BYTES
        if nbytes > len(shared):
            region = 0
        begins = frames.pack_reply(
            op, code, plan.version, flags=flags, applied=applied,
            descriptors=descriptors, body_nbytes=nbytes, region=region,
        )  # fmt: skip
        if region:
            place, parts = 0, []
            for pieces, nbytes in _parts(arrays, plan.tables, 0, _PART_NBYTES):
                parts.append((pieces, shared[place : place + nbytes]))
                place += nbytes
            if len(parts) == 1:
                _gather(*parts[0])
            else:
                with _gathering(parts):
                    pass
            for array, (_, values) in zip(arrays[len(plan.tables) :], plan.chunks, strict=True):
                np.ndarray((array.count,), np.float32, shared, place)[:] = values
                shared[place + values.nbytes : place + array.nbytes] = 0
                place += array.nbytes
            self._stream.write(begins, None)
            return
        if not plan.tables:
            self._send_chunks(begins, arrays, plan)
            return
        last = self._flush_rows(begins, arrays, plan.tables)
        if plan.chunks:
            self._send_chunks(last, arrays, plan)
        else:
            self._flush(last)

    def _flush_rows(
        self, begins: bytes, arrays: Sequence[Array], tables: Sequence[RowPlan]
    ) -> memoryview:
        """Send what begins a reply, and the rows of all tables but the last part, which is left."""
        size = max(_PART_NBYTES, *(32 * rows.dim for rows in tables))
        if len(begins) > size:
            self._flush(begins)
            begins = b""
        parts = list(_parts(arrays, tables, len(begins), size))
        memory = self.lent = self._parts.take(size * min(len(parts), _PARTS), lambda: True)
        memory[: len(begins)] = np.frombuffer(begins, np.uint8)
        if len(parts) == 1:
            pieces, nbytes = parts[0]
            _gather(pieces, memory)
            return memoryview(memory[:nbytes])  # type: ignore[arg-type]
        placed = []
        for number, (pieces, nbytes) in enumerate(parts):
            start = number % _PARTS * size
            placed.append((pieces, memory[start : start + nbytes]))
        last = memoryview(placed[-1][1])  # type: ignore[arg-type]
        with _gathering(placed, _PARTS) as work:
            for number, (_, part) in enumerate(placed[:-1]):
                work.wait(number)
                self._flush(part)
                work.release()
        return last

    def _send_chunks(
        self, begins: bytes | memoryview, arrays: Sequence[Array], plan: PullPlan
    ) -> None:
        """Send what stands before the chunks, and these from where they live."""
        buffers: list[AnyBuffer] = [begins]
        nbytes = len(begins)
        for array, (_, values) in zip(arrays[len(plan.tables) :], plan.chunks, strict=True):
            buffers.append(values)
            if array.nbytes > values.nbytes:
                buffers.append(bytes(array.nbytes - values.nbytes))
            nbytes += array.nbytes
        self.begun = True
        self._stream.send(buffers, nbytes, None)

    def _flush(self, part: AnyBuffer) -> None:
        """Send a part of a reply."""
        self.begun = True
        self._stream.write(part, None)


def _parts(
    arrays: Sequence[Array], tables: Sequence[RowPlan], place: int, size: int
) -> Iterator[tuple[list[_Piece], int]]:
    """Yield the rows of all tables in parts of at most `size` bytes, and how many each has.

    `place` bytes of the first are used. All but the last are whole words: eight rows of a table at
    least.
    """
    pieces: list[_Piece] = []
    for array, rows in zip(arrays, tables, strict=False):
        row_nbytes = rows.dtype.itemsize * rows.dim
        start, count = 0, array.count
        while start < count:
            stop = start + (size - place) // row_nbytes
            stop = count if stop >= count else stop - (stop - start) % 8
            if stop > start:
                pieces.append((rows, start, stop, place))
                place = frames.padded(place + (stop - start) * row_nbytes)
                start = stop
            if start < count:
                yield pieces, place
                pieces, place = [], 0
    yield pieces, place


def _gathering(parts: Iterable[_Part], ahead: int | None = None) -> Work:
    return Work([functools.partial(_gather, *part) for part in parts], ahead)


def _gather(pieces: Sequence[_Piece], memory: Bytes) -> None:
    for rows, start, stop, place in pieces:
        out = np.ndarray((stop - start, rows.dim), rows.dtype, memory, place)
        rows.gather(start, stop, out)
        end = place + out.nbytes
        memory[end : frames.padded(end)] = 0
