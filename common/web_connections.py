"""The connections of a server of HTTP: how many stand, what each may send, how long it may take.

uvicorn bounds neither the size of a header (with httptools) nor its time, and takes connections
until no descriptor is left. `Listener` accepts them itself, so that each is counted from its first
moment on, in the handshake of TLS too; `Guarded` is mixed into a protocol of uvicorn's and knows by
its `cycle` what it reads. So whoever has no token costs a connection, which the next one ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .listen import hang_up

log = logging.getLogger("edl.web")

_MOST = 4096  # connections; more are no use to one process, and cost some 20 KiB each
_FEWEST = 8
_AGAIN_S = 0.05  # after a connection that could not be accepted
_AT_ONCE = 64  # connections that are accepted before others are answered: some 5 ms
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True)
class Bounds:
    """The bounds of a server's connections, beside what the application says of bodies.

    `header_nbytes`: of a request's line and header, which is there within `header_s`, as a
    handshake of TLS is. `unread_nbytes`: of a body that nobody reads since its request was answered
    already, within `header_s` too: without them the answer would not reach who still sends.
    `stalled_s`: for a peer that does not read his answer. `connections` 0: as files may be open.
    `told_s`: between two lines of the log about whom these have ended.
    """

    header_nbytes: int = 64 << 10
    header_s: float = 10.0
    unread_nbytes: int = 1 << 20
    stalled_s: float = 30.0
    connections: int = 0
    told_s: float = 10.0


def most_connections() -> int:
    """Return how many connections leave descriptors for all the rest of a process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, limit // 2))


One = TypeVar("One")


class Room(Generic[One]):
    """The connections that stand, and who of them makes room for another. Pure.

    First goes one that has asked nothing yet, then one that rests between two requests; of each
    kind the oldest. One whose request is under way stays.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._all: set[One] = set()
        self._strangers: dict[One, None] = {}  # the oldest first
        self._resting: dict[One, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, one: One) -> None:
        """Note a connection that has asked nothing yet."""
        self._all.add(one)
        self._strangers[one] = None

    def asks(self, one: One) -> None:
        """Note that a request is under way."""
        self._strangers.pop(one, None)
        self._resting.pop(one, None)

    def rests(self, one: One) -> None:
        """Note that none is any more."""
        if one in self._all:
            self._resting[one] = None

    def remove(self, one: One) -> None:
        """Forget a connection that is gone."""
        self._all.discard(one)
        self.asks(one)

    def oldest(self) -> One | None:
        """Return who makes room, and forget it; None: requests of all are under way."""
        for these in (self._strangers, self._resting):
            for one in these:
                self.remove(one)
                return one
        return None


class Told:
    """A log of what is too frequent for a line each: the first at once, then counts of a while."""

    def __init__(self, every_s: float, about: Callable[[], str]) -> None:
        self._every_s, self._about = every_s, about
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, what: str) -> None:
        """Count what has happened."""
        self._counts[what] += 1
        if self._timer is None:
            self._tell()

    def _tell(self) -> None:
        self._timer = None
        if not self._counts:
            return
        found = " ".join(f"{what}={count}" for what, count in sorted(self._counts.items()))
        log.warning("%s -> %s", self._about(), found)
        self._counts.clear()
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._tell)

    def close(self) -> None:
        """Tell the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._tell()
        if self._timer is not None:
            self._timer.cancel()


class Guarded(asyncio.Protocol):
    """A connection within bounds; `guarded` mixes it into a protocol of uvicorn's.

    Of that it knows `cycle`, the request whose header was whole last: with `more_body` until all
    of it has come, `response_complete` once it was answered.
    """

    cycle: Any
    transport: Any
    loop: asyncio.AbstractEventLoop
    _nbytes = 0  # of a header so far, or of a body that nobody reads
    _due: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def guard(self, sock: socket.socket, bounds: Bounds, room: Room[Guarded], told: Told) -> None:
        """Say what this connection is of; before it is made."""
        self._sock, self._bounds, self._room, self._told = sock, bounds, room, told

    def end(self) -> None:
        """End the connection at once."""
        if self.transport is None:  # in a handshake
            hang_up(self._sock)
        else:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.remove(self)
        for timer in (self._due, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what has come, no more of a header than it may have."""
        while data and not self.transport.is_closing():
            most = self._left()
            if most == 0:
                self._refuse("too_large", _TOO_LARGE % self._bounds.header_nbytes)
                return
            before, body = self.cycle, self._is_in_body
            part = data if most is None else data[:most]
            data = data[len(part) :]
            super().data_received(part)
            if self.cycle is not before:
                self._nbytes = 0
                self._stop_waiting()
                self._room.asks(self)
            else:
                self._nbytes = 0 if body and not self._is_in_body else self._nbytes + len(part)
        if self._nbytes and self._due is None and not self._is_asking:
            self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for another request, of which one may be there already."""
        super().on_response_complete()  # type: ignore[misc]
        if self._is_asking:
            return
        self._nbytes = 0
        self._room.rests(self)
        if self._is_in_body:
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._room.rests(self)
        self._stalled = self.loop.call_later(self._bounds.stalled_s, self._stall)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._is_asking:
            self._room.asks(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._told.note("bad")
        super().send_400_response(msg)  # type: ignore[misc]

    @property
    def _is_asking(self) -> bool:
        """Tell whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_in_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def _left(self) -> int | None:
        """Return how many bytes may still come; None: the application knows."""
        if not self._is_in_body:
            return max(0, self._bounds.header_nbytes - self._nbytes)
        return None if self._is_asking else max(0, self._bounds.unread_nbytes - self._nbytes)

    def _wait(self) -> None:
        self._stop_waiting()
        self._due = self.loop.call_later(self._bounds.header_s, self._too_late)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = None

    def _too_late(self) -> None:
        self._due = None
        if self.transport.is_closing() or self._is_asking:
            return
        if self._nbytes:
            self._refuse("late", _LATE % self._bounds.header_s)
        else:
            self.transport.close()  # who only connects is no news

    def _stall(self) -> None:
        self._told.note("stalled")
        self.end()

    def _refuse(self, why: str, answer: bytes) -> None:
        self._told.note(why)
        if not self._is_asking and not self._is_in_body:  # of a body's request there is an answer
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            status, _, text = answer.partition(b"\n")
            self.transport.write(b"HTTP/1.1 %s\r\n" % status + head % len(text) + text)
        self.transport.close()


_TOO_LARGE = b"431 Request Header Fields Too Large\nThe header of a request has at most %d bytes."
_LATE = b"408 Request Timeout\nThe header of a request has to be there within %g s."


def guarded(kind: type[Any]) -> type[Any]:
    """Return a protocol of uvicorn's with the bounds of `Guarded`."""
    return type(f"Guarded{kind.__name__}", (Guarded, kind), {})


class Listener:
    """A listening socket, each of whose connections is counted from its first moment on."""

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[], Guarded],
        tls: ssl.SSLContext | None,
        bounds: Bounds,
    ) -> None:
        """`make`: a protocol for a connection."""
        self._sock, self._make, self._tls, self._bounds = sock, make, tls, bounds
        self._room = Room[Guarded](bounds.connections or most_connections())
        self._told = Told(bounds.told_s, lambda: f"connections={len(self._room)}/{self._room.most}")
        self._begun: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Accept connections from now on, until `close`."""
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Accept none any more; handshakes under way end."""
        asyncio.get_running_loop().remove_reader(self._sock)
        if self._again is not None:
            self._again.cancel()
        for task in self._begun:
            task.cancel()
        self._told.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionError):  # there is none, or it is gone already
                return
            except OSError as error:
                self._rest(error)
                return
            self._take(sock)

    def _rest(self, error: OSError) -> None:
        """Accept none for a moment; where no descriptor is left, one that asks nothing ends."""
        self._told.note(errno.errorcode.get(error.errno or 0, "not_accepted"))
        if error.errno in _NO_ROOM:
            self._make_room()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._again = loop.call_later(_AGAIN_S, self.begin)

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if len(self._room) >= self._room.most and not self._make_room():
            self._told.note("refused")
            sock.close()
            return
        one = self._make()
        one.guard(sock, self._bounds, self._room, self._told)
        self._room.add(one)
        task = asyncio.create_task(self._begin(one, sock))
        self._begun.add(task)
        task.add_done_callback(lambda task: self._has_begun(task, sock))

    def _make_room(self) -> bool:
        oldest = self._room.oldest()
        if oldest is None:
            return False
        self._told.note("ended")
        oldest.end()
        return True

    def _has_begun(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._begun.discard(task)
        if task.cancelled():
            sock.close()

    async def _begin(self, one: Guarded, sock: socket.socket) -> None:
        """Let a connection begin, after its handshake."""
        timeout_s = self._bounds.header_s if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: one,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except OSError:  # no handshake; ssl.SSLError is one
            self._told.note("no_tls")
            self._room.remove(one)
        except BaseException:
            self._room.remove(one)
            raise
