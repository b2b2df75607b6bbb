"""Requests of one connection: frames whose bodies come ids first, into memory that is lent.

Nothing is allocated before a frame's lengths have passed. A push's ids can be checked while its
values are on the wire. On the same host bodies lie in the client's shared regions instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import Unreachable
from ...wire.regions import map_region
from ...wire.stream import Stream
from ..books.aggregation import Update
from ..books.answers import span_of
from ..books.ledger import Span
from ..books.parameters import Invalid
from . import frames
from .backend import Serving
from .frames import Array, Bytes, Head

MAX_REQUEST_NBYTES = 1 << 30
FIRST_NBYTES = 128 << 10  # read at once: a small frame is one system call
BEGIN_NBYTES = 256  # read at once after a large frame: the rest goes straight to its place
_TURN_NBYTES = 256 << 10  # of a body that is served in a turn: 0.2 ms of updates
_OF_REGIONS = frozenset((frames.MAP, frames.UNMAP))
NO_BYTES: Bytes = np.empty(0, np.uint8)
Coded = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]  # codes, scales, values


class Receiver:
    """The request that one connection receives now."""

    def __init__(self, stream: Stream, serving: Serving) -> None:
        self._stream = stream
        self._backend = serving.backend
        self._turns = serving.turns
        self._buffers = serving.buffers
        self.first = NO_BYTES  # these three are there while the connection is served
        self.view = self.window = memoryview(b"")  # of `first`: all, what is read at once
        self.regions: dict[int, Bytes] = {}  # of the client's, by number
        self.short = True  # the request is served in a turn
        self.left = 0  # bytes that are still to come
        self.frame_nbytes = 0
        self.lent: Bytes | None = None  # the body's memory: to be given back
        self._got = 0  # bytes of the frame that have been received
        self._wide = NO_BYTES  # where narrow values are made float32

    def begin(self, memory: Bytes) -> None:
        """Receive into this memory."""
        self.first = memory
        self.view = self.window = memoryview(memory)  # type: ignore[arg-type]

    def end(self) -> None:
        """Let go of the memory."""
        self.first = NO_BYTES
        self.view = self.window = memoryview(b"")

    def refuse(self) -> None:
        """Read what is still to come of the request, and drop it."""
        self._turns.end()
        while self.left > 0:
            part = min(self.left, FIRST_NBYTES)
            self._stream.receive(self.view[:part], None)
            self.left -= part

    def opened(self, head: Head, got: int) -> tuple[tuple[Array, ...], Bytes]:
        """Return the arrays, and where their bytes will be: `fill` receives them.

        `got` bytes of the frame are in `first`. Raises Malformed.
        """
        nbytes = begins = frames.HEAD_NBYTES + head.descriptors_nbytes
        if head.body_nbytes > MAX_REQUEST_NBYTES and head.op != frames.MAP:
            raise frames.Malformed(f"{head.body_nbytes} bytes: {MAX_REQUEST_NBYTES} are taken")
        if not head.body_region:
            nbytes += head.body_nbytes
        elif head.flags & frames.LATER:
            nbytes += 1
        if got > nbytes:
            raise frames.Malformed(f"{got - nbytes} bytes beyond the frame")
        self._got, self.left = got, nbytes - got
        self.window = self.view if nbytes <= FIRST_NBYTES else self.view[:BEGIN_NBYTES]
        self.frame_nbytes = nbytes
        self.short = head.body_nbytes <= _TURN_NBYTES
        if head.op in _OF_REGIONS:
            return (), NO_BYTES
        if not self.left and not head.body_region:  # all of it has come at once
            arrays = frames.parse_arrays(head, self.view[frames.HEAD_NBYTES : begins])
            if head.op == frames.PUSH:
                self._take(0, head, arrays)
            return arrays, self.first[begins : self._got]
        descriptors: memoryview
        if begins <= FIRST_NBYTES:
            if self._got < begins:
                self.receive(self.view[self._got : begins])
            descriptors = self.view[frames.HEAD_NBYTES : begins]
        else:
            descriptors = memoryview(bytearray(head.descriptors_nbytes))
            have = self._got - frames.HEAD_NBYTES
            descriptors[:have] = self.view[frames.HEAD_NBYTES : self._got]
            self.receive(descriptors[have:])
        arrays = frames.parse_arrays(head, descriptors)
        body_nbytes = head.body_nbytes
        if head.body_region:
            self._take(0, head, arrays)
            return arrays, self._region(head.body_region, body_nbytes)
        if begins + body_nbytes <= FIRST_NBYTES:
            self._take(0, head, arrays)
            return arrays, self.first[begins : begins + body_nbytes]
        body = self._take(body_nbytes, head, arrays)
        if self._got > begins:
            body[: self._got - begins] = self.first[begins : self._got]
        return arrays, body

    def fill(self, body: Bytes, end: int, nbytes: int) -> None:
        """Receive the body up to `end` of its `nbytes`."""
        start = nbytes - self.left
        if start < end:
            self.receive(memoryview(body)[start:end])  # type: ignore[arg-type]

    def receive(self, view: memoryview) -> None:
        """Receive the next bytes of the frame. Others may run Python meanwhile."""
        self._turns.end()
        self._stream.receive(view, None)
        if self.short:
            self._turns.take()
        self._got += len(view)
        self.left -= len(view)

    def _take(self, nbytes: int, head: Head, arrays: Sequence[Array]) -> Bytes:
        """Take a buffer, and `_wide` for values that must be made float32: both or none at once."""
        wide = 0
        for array in arrays:
            if array.wire in frames.SCALED:
                wide += frames.padded(4 * math.prod(array.shape))
        if not nbytes + wide:
            return NO_BYTES
        self.lent = self._buffers.take(nbytes + wide, lambda: self._needed(head))
        self._wide = self.lent[nbytes : nbytes + wide]
        return self.lent[:nbytes]

    def _needed(self, head: Head) -> bool:
        """Tell whether a pin waits for this push, while those held back have the budget."""
        self._turns.end()  # there is a wait ahead
        store = self._backend()
        try:
            return (
                head.op == frames.PUSH
                and store is not None
                and store.lets_through(span_named(head))
            )
        except Invalid:
            return False

    def give_back(self) -> None:
        """Give the memory back to which `opened` led. Nobody may look at it any more."""
        if self.lent is not None:
            self._buffers.give(self.lent)
            self.lent, self._wide = None, NO_BYTES

    def _region(self, number: int, nbytes: int) -> Bytes:
        region = self.regions.get(number, NO_BYTES)
        if len(region) < nbytes:
            raise frames.Malformed(f"region {number} has {len(region)} bytes, not {nbytes}")
        return region[:nbytes]

    def map_region(self, number: int, nbytes: int) -> None:
        """Map the client's region, whose descriptor comes next. Raises Unreachable, EdlError."""
        fd = self._stream.receive_descriptor()
        if fd is None:
            raise Unreachable("a descriptor was announced and did not come")
        try:
            self.regions[number] = map_region(fd, nbytes)
        finally:
            os.close(fd)

    def update(
        self, arrays: Sequence[Array], ids: Mapping[str, NDArray[np.int64]], body: Bytes, place: int
    ) -> tuple[Update, list[Coded]]:
        """Return views of where the values are or will be, and what has to be made float32."""
        update, coded = Update({}, {}), []
        used = 0
        for array in arrays:
            if array.wire == frames.FLOAT32:
                values = frames.values_of(array, body, place)
            else:
                values = np.ndarray(array.shape, np.float32, self._wide, used)
                coded.append((*frames.codes_of(array, body, place), values))
                used += frames.padded(values.nbytes)
            place += array.nbytes
            if array.kind == frames.ROWS:
                update.rows[array.name] = ids[array.name], values
            else:
                update.dense[array.name, array.number] = values
        return update, coded


def span_named(head: Head) -> Span:
    """Return the span that a push names.

    Raises Invalid.
    """
    return span_of(head.task, head.attempt, head.start, head.end)
