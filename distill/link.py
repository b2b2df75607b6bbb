"""A student's end of one teacher: asks, over sockets or shared memory, and waits for the answer.

A connection has one request at a time; a call takes an idle one or opens one, so that any number of
calls run at the same time. A call that fails drops its socket; repeating it is harmless.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError, PeerError, Unauthenticated, Unreachable
from ..common.identity import Identity
from ..common.listen import host_of
from ..wire.pool import Pool
from ..wire.reach import Caller
from ..wire.regions import make_region
from ..wire.stream import SILENT_S, Stream, host_id
from . import frames
from .frames import Head, Part

CONNECT_S = 5.0
_LEAST_SHARED_NBYTES = 32 << 10  # smaller bodies are as fast on the socket
_LEAST_REGION_NBYTES = 1 << 20


class Busy(EdlError):
    """The teacher has no room for this request now."""


class Refused(EdlError):
    """The teacher's model cannot answer this request."""


class Stranger(EdlError):
    """The teacher is not the one that is to be asked, whatever the request.

    `is_told`: others have told the user.
    """

    def __init__(self, text: str, *, is_told: bool = False) -> None:
        super().__init__(text)
        self.is_told = is_told


@dataclass(frozen=True)
class Answer:
    """An answer, and how its teacher stands: rows that wait there, rows a second."""

    parts: list[Part]
    queued: int
    rate: int


class Link(Protocol):
    """A way to one teacher: one of ours, or a foreign one (kserve)."""

    def teach(self, parts: Sequence[Part], rows: int, timeout_s: float, whole: bool) -> Answer:
        """Ask, and wait. Raises Busy, Refused, Stranger, PeerError."""
        ...

    def close(self) -> None: ...


class TeacherLink:
    """A way to the teacher at HOST:PORT. Any thread may call; `close` wakes whoever waits."""

    def __init__(self, address: str, identity: Identity) -> None:
        self.address = address
        self._identity = identity
        self._pool = Pool[_Socket]()
        self._about: dict[str, Any] | None = None

    def about(self, timeout_s: float = CONNECT_S) -> dict[str, Any]:
        """Return what the teacher tells of itself. Raises Unreachable, PeerError."""
        deadline = time.monotonic() + timeout_s
        if (known := self._about) is not None:
            return known
        there = self._tcp(deadline)
        try:
            about = there.about(deadline)
        except BaseException:
            self._drop(there)
            raise
        self._about = about
        if about.get("host") == host_id():
            self._pool.drop(there)  # from now on memory is shared
        else:
            self._pool.give(there)
        return about

    def teach(self, parts: Sequence[Part], rows: int, timeout_s: float, whole: bool) -> Answer:
        """Ask about so many rows, and wait for the answer.

        Raises Busy, Refused, Unreachable, PeerError.
        """
        deadline = time.monotonic() + timeout_s
        there = self._take(deadline)
        try:
            answer = there.teach(parts, rows, deadline, whole)
        except (Busy, Refused):
            self._pool.give(there)
            raise
        except OSError as error:
            self._drop(there)
            raise Unreachable(f"the teacher at {self.address}: {error}") from error
        except BaseException:
            self._drop(there)
            raise
        self._pool.give(there)
        return answer

    def close(self) -> None:
        self._pool.close()

    def _take(self, deadline: float) -> _Socket:
        if (idle := self._pool.take()) is not None:
            return idle
        about = self.about(min(SILENT_S, max(0.001, deadline - time.monotonic())))
        if about.get("host") == host_id():
            try:
                near = self._caller(deadline).near(str(about["unix"]))
            except (ConnectionRefusedError, FileNotFoundError, PermissionError):
                pass  # another pod of this host, or one that is confined
            else:
                return self._pool.add(_Socket(near))
        return self._pool.take() or self._tcp(deadline)

    def _tcp(self, deadline: float) -> _Socket:
        host, port = host_of(self.address), self.address.rpartition(":")[2]
        try:
            stream = self._caller(deadline).far(host, int(port), CONNECT_S)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"no teacher at {self.address}: {error}") from error
        except ValueError as error:  # no certificate, which who is off loopback must show
            raise Unauthenticated(str(error)) from error
        return self._pool.add(_Socket(stream))

    def _caller(self, deadline: float) -> Caller:
        # Who computes says nothing for as long as it has time: TCP asks whether it is there.
        greeted_by = min(deadline, time.monotonic() + SILENT_S)
        return Caller(self._identity, greeted_by, stall_s=math.inf)

    def _drop(self, there: _Socket) -> None:
        self._about = None  # who comes back at this address may be another
        self._pool.drop(there)


class _Socket:
    """One socket, with at most one request under way."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._head = memoryview(bytearray(frames.HEAD_NBYTES))
        self._region: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._expected_nbytes = 0  # of an answer

    def abort(self) -> None:
        self.stream.abort()

    def close(self) -> None:
        self.stream.close()

    def about(self, deadline: float) -> dict[str, Any]:
        self.stream.arm(deadline)
        self.stream.write(frames.pack_head(Head(frames.ABOUT)), deadline)
        _, told = self._replied(frozenset((frames.TOLD,)), deadline)
        try:
            about = json.loads(bytes(told))
        except ValueError as error:
            raise PeerError(f"a teacher tells of itself in no JSON: {error}") from error
        if not isinstance(about, dict):
            raise PeerError("a teacher tells of itself in no JSON object")
        return about

    def teach(self, parts: Sequence[Part], rows: int, deadline: float, whole: bool) -> Answer:
        self.stream.arm(deadline)
        descriptors, nbytes = frames.describe(parts)
        flags = frames.WHOLE if whole else 0
        shared = self.stream.shares_memory and nbytes >= _LEAST_SHARED_NBYTES
        if shared:
            self._share(max(nbytes, self._expected_nbytes), deadline)
            frames.fill(parts, self._region)
            flags |= frames.IN_REGION
        limit_ms = max(1, int((deadline - time.monotonic()) * 1e3))
        head = Head(frames.TEACH, flags, rows, len(descriptors), limit_ms, body_nbytes=nbytes)
        begins = frames.pack_head(head) + descriptors
        if shared or not nbytes:
            self.stream.write(begins, deadline)
        else:
            buffers = [begins, *frames.buffers(parts)]
            self.stream.send(buffers, len(begins) + nbytes, deadline)
        reply, told = self._replied(frozenset((frames.TAUGHT, frames.BUSY)), deadline)
        if reply.op == frames.BUSY:
            raise Busy(f"{reply.queued} rows wait there")
        arrays = frames.parse_arrays(reply, told)
        body = np.empty(reply.body_nbytes, np.uint8)
        if reply.flags & frames.IN_REGION:
            if len(self._region) < reply.body_nbytes:
                raise frames.Malformed("an answer in a region that is too small for it")
            body[:] = self._region[: reply.body_nbytes]
        elif reply.body_nbytes:
            self.stream.receive(memoryview(body), deadline)  # type: ignore[arg-type]
        self._expected_nbytes = max(self._expected_nbytes, reply.body_nbytes)
        return Answer(frames.values_in(arrays, body), reply.queued, reply.rate)

    def _share(self, nbytes: int, deadline: float) -> None:
        """Have a region of at least so many bytes, which the teacher has mapped."""
        if len(self._region) >= nbytes:
            return
        size = max(_LEAST_REGION_NBYTES, 1 << (nbytes - 1).bit_length())
        fd, memory = make_region(size)
        try:
            self.stream.write(frames.pack_head(Head(frames.SHARE, body_nbytes=size)), deadline)
            self.stream.send_descriptor(fd)
            self._replied(frozenset((frames.SHARED,)), deadline)
        finally:
            os.close(fd)
        self._region = memory

    def _replied(self, ops: frozenset[int], deadline: float) -> tuple[Head, memoryview]:
        """Return the head and the descriptors of a reply. Raises Refused where it is an error."""
        self.stream.receive(self._head, deadline)
        head = frames.parse_head(self._head, ops | {frames.ERROR})
        told = memoryview(bytearray(head.told_nbytes))
        if told:
            self.stream.receive(told, deadline)
        if head.op == frames.ERROR:
            raise Refused(bytes(told).decode(errors="replace"))
        return head, told
