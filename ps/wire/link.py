"""One socket of a client: writes a request, and reads its reply straight to where it is wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import EdlError, NotPinned, Unauthenticated, Unreachable
from ...wire.stream import Stream, flat
from . import frames, quantize
from .frames import Array, Bytes, Head
from .regions import Regions
from .shard import Chunk, Floats, ShardPull, ShardPulled, ShardPush, ShardPushed

_FIRST_NBYTES = 8 << 10  # of a reply, read at once: a small one is one system call
_BEGIN_NBYTES = 256  # after a large one: the rest goes straight to its place
_SMALL_NBYTES = 8 << 10  # a body that is joined with what stands before it
_SHARED_NBYTES = 32 << 10  # smaller bodies are as fast on the socket
_SHARED_PULLED_NBYTES = 256 << 10  # as are replies that compiled code gives (pulls.py)
_WAIT_SHARE = 0.9  # of a deadline that the server may wait for a version
_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
_PULLED = frozenset((frames.PULLED, frames.ERROR))
_PUSHED = frozenset((frames.PUSHED, frames.ERROR))
_DONE = frozenset((frames.DONE, frames.ERROR))


class Sizes:
    """The sizes of replies so far, so that the next is offered a region that is large enough."""

    def __init__(self) -> None:
        self.row_nbytes: dict[str, int] = {}
        self.dense_nbytes = 0

    def expected(self, pull: ShardPull) -> int:
        """Return the bytes of a reply; too little only costs that it comes over the socket."""
        rows = sum(
            frames.padded(self.row_nbytes.get(table, 0) * len(ids))
            for table, ids in pull.tables.items()
        )
        return rows + (self.dense_nbytes if pull.dense else 0)


class Link:
    """One socket with at most one request under way."""

    def __init__(
        self,
        stream: Stream,
        slot_map_version: int,
        sizes: Sizes,
        shares_memory: bool,
        stall_s: float,
    ) -> None:
        self.stream = stream
        self._stall_s = stall_s
        self.sound = True  # nothing is under way
        self._slot_map_version = slot_map_version
        self._sizes = sizes
        self._shares_memory = shares_memory
        self._first: Bytes = np.empty(_FIRST_NBYTES, np.uint8)
        self._view = memoryview(self._first)  # type: ignore[arg-type]
        self._window = _FIRST_NBYTES
        self._at = self._got = 0  # of the first bytes: used, received
        self.regions = Regions()
        self._lent: Bytes | None = None  # the request's body, until the reply is here
        self._reply: Bytes | None = None  # where the reply may be put
        self._reply_number = 0

    def abort(self) -> None:
        self.stream.abort()

    def close(self) -> None:
        self.stream.close()

    # -- Sending

    def send_pull(self, pull: ShardPull, deadline: float) -> None:
        parts: list[NDArray[Any]] = []
        told = []
        for table, mine in pull.tables.items():
            ids = np.ascontiguousarray(mine, _INT64)
            parts.append(ids)
            told.append((frames.ROWS, frames.NONE, table, 0, len(ids)))
        nbytes = _align(parts)
        if pull.cut:
            told.append((frames.CUT, frames.NONE, pull.cut, 0, 0))
        _, descriptors, _ = frames.describe(tuple(told))
        body = reply = 0
        if self._shares_memory:
            least = _SHARED_NBYTES if pull.cut else _SHARED_PULLED_NBYTES
            body, reply = self._share(parts, nbytes, pull, least, deadline)
        known = pull.known_version
        begins = frames.HEAD.pack(
            frames.MAGIC, frames.PROTOCOL, frames.PULL,
            (frames.DENSE if pull.dense else 0) | (0 if known is None else frames.KNOWN),
            self._slot_map_version, 0, len(descriptors), 0, nbytes, 0, 0, 0, 0, known or 0,
            body, reply,
        )  # fmt: skip
        self._send([begins, descriptors], parts, 0 if body else nbytes, deadline)

    def send_push(self, push: ShardPush, deadline: float) -> None:
        wire = frames.GRADIENTS[push.wire]
        told = [
            (frames.ROWS, wire, table, values.shape[1], len(ids))
            for table, (ids, values) in push.tables.items()
        ]
        told += [(frames.CHUNK, wire, t, number, values.size) for t, number, values in push.dense]
        arrays, descriptors, nbytes = frames.describe(tuple(told))
        ids = [np.ascontiguousarray(ids, _INT64) for ids, _ in push.tables.values()]
        ids_nbytes = _align(ids)
        nbytes += ids_nbytes
        parts: list[NDArray[Any]] = []
        gradients = [v for _, v in push.tables.values()] + [v for _, _, v in push.dense]
        for array, mine in zip(arrays, gradients, strict=True):
            values = np.ascontiguousarray(mine, _FLOAT32)
            encoded = [values] if wire == frames.FLOAT32 else _encoded(values, push.wire)
            parts += encoded
            if padding := array.nbytes - sum(part.nbytes for part in encoded):
                parts.append(np.zeros(padding, np.uint8))
        span, then = push.span, push.then
        flags = known = timeout_ms = 0
        if then is not None:
            flags, known = frames.THEN, then.known_version or 0
            if then.known_version is not None:
                flags |= frames.KNOWN
            left_s = min(self._stall_s, max(0.0, deadline - time.monotonic()))
            timeout_ms = min(int(left_s * _WAIT_SHARE * 1e3), 2**32 - 1)
        body = reply = 0
        later: list[NDArray[Any]] = []
        if self._shares_memory and ids_nbytes >= _SHARED_NBYTES:
            parts, later = ids, parts
            flags |= frames.LATER
        else:
            parts = ids + parts
        if self._shares_memory:
            body, reply = self._share(parts, nbytes, then, _SHARED_NBYTES, deadline)
        begins = frames.HEAD.pack(
            frames.MAGIC, frames.PROTOCOL, frames.PUSH, flags, self._slot_map_version, timeout_ms,
            len(descriptors), span.attempt, nbytes, span.task, span.start, span.end,
            push.version, known, body, reply,
        )  # fmt: skip
        self._send([begins, descriptors], parts, 0 if body else nbytes, deadline)
        if later:
            assert self._lent is not None
            _copy(later, self._lent[ids_nbytes:])
            self.stream.write(b"V", deadline)

    def _share(
        self,
        parts: list[NDArray[Any]],
        nbytes: int,
        pull: ShardPull | None,
        least: int,
        deadline: float,
    ) -> tuple[int, int]:
        """Copy a large body's parts, its first ones at least, into a region.

        Finds one for a reply of at least `least` bytes, too. Returns their numbers, or 0.
        """
        self.sound = False
        lent = into = None
        body = reply = 0
        if nbytes >= _SHARED_NBYTES:
            body, lent = self.regions.lend(nbytes, self._tell, deadline)
            _copy(parts, lent)
        if pull is not None:
            wanted = self._sizes.expected(pull)
            if wanted >= least:
                reply, into = self.regions.lend(wanted, self._tell, deadline)
        # only now: a new region is told of by a request of its own
        self._lent, self._reply, self._reply_number = lent, into, reply
        return body, reply

    def _send(
        self, begins: list[Any], parts: list[NDArray[Any]], nbytes: int, deadline: float
    ) -> None:
        """Send `nbytes` of parts; 0: they are in a region."""
        self.sound = False
        if nbytes <= _SMALL_NBYTES:
            self.stream.write(b"".join(begins + parts if nbytes else begins), deadline)
        else:
            nbytes += sum(map(len, begins))
            self.stream.send(begins + parts, nbytes, deadline)

    # -- Receiving

    def pulled(self, pull: ShardPull, deadline: float) -> ShardPulled:
        head, arrays = self._replied(_PULLED, deadline)
        body = self._body(head) if self._shares_memory or head.body_region else None
        tables: dict[str, Floats] = {}
        place = num_rows = 0
        if not head.code:
            num_rows = len(pull.tables)
            if len(arrays) < num_rows:
                raise frames.Malformed("the reply has not the rows that were asked for")
            for number, (table, ids) in enumerate(pull.tables.items()):
                array = arrays[number]
                count = array.count
                if array.kind != frames.ROWS or count != len(ids):
                    raise frames.Malformed("the reply has not the rows that were asked for")
                if count:
                    if self._shares_memory:
                        self._sizes.row_nbytes[table] = -(-array.nbytes // count)
                    tables[table] = self._rows(array, body, place, deadline)
                    place += array.nbytes
        dense: Sequence[Chunk] = ()
        if len(arrays) > num_rows:
            dense = self._chunks(arrays[num_rows:], body, place, pull.into, deadline)
        self.sound = True
        return ShardPulled(head.code, head.version, dense, tables)

    def pushed(self, push: ShardPush, deadline: float) -> ShardPushed:
        head, arrays = self._replied(_PUSHED, deadline)
        into = push.then.into if push.then else None
        body = self._body(head)
        dense = self._chunks(arrays, body, 0, into, deadline) if arrays else ()
        self.sound = True
        pulled = bool(head.flags & frames.THEN)
        return ShardPushed(head.code, head.version, head.start, dense, pulled)

    def _replied(self, ops: frozenset[int], deadline: float) -> tuple[Head, tuple[Array, ...]]:
        """Return the head and the arrays of a reply; its body is next.

        Raises what the server told.
        """
        self._got = 0
        while self._got < frames.HEAD_NBYTES:
            count = self.stream.receive_some(self._view[self._got : self._window])
            if count == 0:
                raise Unreachable("the server closed the connection")
            if count < 0:
                self.stream.stalled(deadline)
                continue
            self._got += count
        head = frames.parse_head(self._view, ops)
        self._at = frames.HEAD_NBYTES
        self._lent = None
        end = frames.HEAD_NBYTES + head.descriptors_nbytes
        nbytes = end if head.body_region else end + head.body_nbytes
        self._window = _FIRST_NBYTES if nbytes <= _FIRST_NBYTES else _BEGIN_NBYTES
        if end == frames.HEAD_NBYTES:
            return head, ()
        if end <= self._got:
            descriptors = self._view[frames.HEAD_NBYTES : end]
            self._at = end
        else:
            descriptors = memoryview(bytearray(head.descriptors_nbytes))
            self._fill(descriptors, deadline)
        if head.op == frames.ERROR:
            self.sound = True
            raise _error(head.code, frames.error_text(descriptors))
        return head, frames.parse_arrays(head, descriptors)

    def _body(self, head: Head) -> Bytes | None:
        """Return the region with the reply's body, lent; None: it comes over the socket."""
        memory, self._reply = self._reply, None
        if not head.body_region:
            return None
        offered = memory is not None and head.body_region == self._reply_number
        if memory is None or not offered or len(memory) < head.body_nbytes:
            raise frames.Malformed(f"a reply in region {head.body_region}, which was not offered")
        return memory

    def _rows(self, array: Array, body: Bytes | None, place: int, deadline: float) -> Floats:
        if body is None:
            end = self._at + array.nbytes
            if end <= self._got:
                body, place = self._first[self._at : end].copy(), 0
                self._at = end
            else:
                body, place = np.empty(array.nbytes, np.uint8), 0
                self._fill(memoryview(body), deadline)  # type: ignore[arg-type]
        if array.wire == frames.FLOAT32:
            return frames.values_of(array, body, place)
        return frames.widened(array.wire, frames.values_of(array, body, place))

    def _chunks(
        self,
        arrays: Sequence[Array],
        body: Bytes | None,
        place: int,
        into: Callable[[str, int], Floats] | None,
        deadline: float,
    ) -> list[Chunk]:
        dense: list[Chunk] = []
        began = place
        for array in arrays:
            if array.kind != frames.CHUNK:
                raise frames.Malformed("the reply has rows that were not asked for")
            tensor, number, count = array.name, array.number, array.count
            if into is not None:
                values = into(tensor, number)
                if values.shape != (count,):
                    raise frames.Malformed(f"chunk {number} of {tensor!r} has {count} values")
            if body is None:
                if into is None:
                    values = np.empty(count, np.float32)
                if count:
                    self._fill(flat(values), deadline)
                if padding := array.nbytes - 4 * count:
                    self._fill(memoryview(bytearray(padding)), deadline)
            elif into is None:
                values = frames.values_of(array, body, place)
            else:
                values[:] = frames.values_of(array, body, place)
            dense.append((tensor, number, values))
            place += array.nbytes
        self._sizes.dense_nbytes = max(self._sizes.dense_nbytes, place - began)
        return dense

    def _fill(self, view: memoryview, deadline: float) -> None:
        """Fill `view` with the next bytes of the reply."""
        have = min(self._got - self._at, len(view))
        if have:
            view[:have] = self._view[self._at : self._at + have]
            self._at += have
        if have < len(view):
            self.stream.receive(view[have:], deadline)

    def _tell(self, head: Head, fd: int | None, deadline: float) -> None:
        """Send a request of a region, and the region's descriptor once the server awaits it."""
        self.stream.send([frames.pack_head(head)], frames.HEAD_NBYTES, deadline)
        self._replied(_DONE, deadline)
        if fd is not None:
            self.stream.send_descriptor(fd)
            self._replied(_DONE, deadline)


def _encoded(values: Floats, wire: str) -> list[NDArray[Any]]:
    codes, scales = quantize.encode(values, wire)
    return [scales, codes]


def _align(ids: list[NDArray[Any]]) -> int:
    """Add the zeros that stand behind the ids of all tables, and return how many bytes."""
    nbytes = sum(each.nbytes for each in ids)
    if padding := frames.padded(nbytes) - nbytes:
        ids.append(np.zeros(padding, np.uint8))
    return nbytes + padding


def _copy(parts: Iterable[NDArray[Any]], region: Bytes) -> None:
    place = 0
    for part in parts:
        region[place : place + part.nbytes].view(part.dtype).reshape(part.shape)[...] = part
        place += part.nbytes


def _error(code: int, text: str) -> EdlError:
    """Return the error that the gRPC carrier would have raised."""
    if code == frames.UNAUTHENTICATED:
        return Unauthenticated(text)
    if code == frames.NOT_FOUND:
        return NotPinned(text)
    told = f"{frames.STATUS.get(code, code)}: {text}"
    return Unreachable(told) if code == frames.UNAVAILABLE else EdlError(told)
