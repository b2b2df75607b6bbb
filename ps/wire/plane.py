"""The server's end of the tensor plane: pulls and pushes straight between sockets and the store.

One thread per connection that is busy, which has one request at a time; one thread waits for all that
are idle (idle.py). Nothing is read from a peer before it
has proved that it is of the job, and nothing is allocated before a frame's lengths have passed. The
oldest of those who have not makes room for a newcomer, so nobody is kept out by them.

A push's body comes into one of the plane's buffers, ids first: they are checked while the values
are on the wire; then one `Store.push`. The buffers of all connections share a budget; where it is
used up a connection waits and so does its peer (TCP's flow control), unless a pin waits for this
very push while a freeze holds back those that have the budget. A pull is gathered and sent in
parts, the next ones by a core that is free (work.py), so that store and wire work at the same
time; chunks are sent from where they live.

On the same host bodies lie in the client's shared regions instead: gradients are applied from
there, rows gathered into there. Its ids may be checked while the client still copies the values.

A request that fails is answered by an error (the rest of its body is read and dropped first); a
frame that is malformed, and a peer that stops in the midst of one, end the connection.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...common import faults, listen
from ...common.errors import EdlError, NotPinned, PeerError, Unreachable
from ...common.identity import Identity
from ...common.patience import Patience
from ...nn.model_spec import ModelSpec
from ...proto import ps_pb2 as pb
from ..books.aggregation import Update
from ..books.ledger import Span
from ..books.slots import SlotMap
from ..books.store import Invalid, NotYet, Outcome, PullPlan, Pushed, RowPlan, span_of
from ..books.view import StoreView
from ..metrics import Metrics
from ..rows.memory import HUGE, fresh, huge_pages
from ..rows.work import Work
from . import frames, quantize
from .frames import Array, Bytes, Head
from .idle import Idle
from .pulls import BROKEN, IDLE, REPLY_NBYTES, Board, SmallPulls, prepare
from .stream import Stream, TlsStream, admit, host_id, map_region
from .turns import Turns, of_this_process

log = logging.getLogger(__name__)

BUDGET_NBYTES = 2 << 30  # of all pushes on their way; a freeze may hold one of each worker
MAX_REQUEST_NBYTES = 1 << 30
STALL_S = 60.0  # a peer that does not move in the midst of a frame for so long is given up
MAX_CONNECTIONS = 8192  # a worker has one for each request that it has under way
BACKLOG = 4096  # that wait to be accepted: all workers of a server that was replaced come at once
# Without a request, until a connection gives its thread and its buffers back. To get them again takes 0.2 ms
# of CPU time: nothing beside so long a step, also where a thousand workers make such.
REST_S = 30.0
KEPT_PARTS_NBYTES = 256 << 20  # of replies; beyond that many at a time, memory is not kept
# That have not proved to be of the job: a thread each, for 10 s, or for a moment where more come. The proof
# takes 0.3 ms, and with TLS 1.3: so most of a thousand workers that come at once wait to be accepted.
MOST_STRANGERS, STRANGERS_S = 256, 0.5
FIRST_NBYTES = 128 << 10  # read at once: a small frame is one system call
BEGIN_NBYTES = 256  # read at once after a large frame: the rest goes straight to its place
_TURN_NBYTES = 256 << 10  # of a body that is served in a turn: 0.2 ms of updates
_LOOK_S = 0.05  # while the budget is used up: whether a pin needs the push has no signal
_PART_NBYTES = 512 << 10  # of a pull gathered at once: 8,192 rows of dim 16, and within L2
_PARTS = 8  # gathered by two threads while the first ones are sent: 4 MiB of a connection
_ANSWERED = -4  # beside what SmallPulls.serve returns: as if there had been nothing
_METHODS = {frames.PULL: "Pull", frames.PUSH: "Push"}
_CODES = {0: "OK"} | frames.STATUS
_FLOAT32 = np.dtype(np.float32)
_NO_BYTES: Bytes = np.empty(0, np.uint8)
_Piece = tuple[RowPlan, int, int, int]  # rows [start, stop) of a plan, and their place in a part
_Part = tuple[list[_Piece], Bytes]
_Coded = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]  # codes, scales, values

_OUTCOMES = {outcome: pb.PushReply.Outcome.Value(outcome.name) for outcome in Outcome}


class Backend(Protocol):
    """What the plane asks of a store."""

    @property
    def slot_map(self) -> SlotMap: ...

    @property
    def spec(self) -> ModelSpec | None: ...

    @property
    def initialized(self) -> bool: ...

    def watch(self, make: Callable[[StoreView], Board]) -> Board | None: ...

    def plan_pull(
        self,
        *,
        dense: bool,
        known_version: int | None,
        tables: Iterable[tuple[str, NDArray[np.int64]]],
        cut: str = "",
    ) -> PullPlan | None: ...

    def check_rows(self, table: str, ids: NDArray[np.int64], dim: int) -> None: ...

    def push(
        self,
        span: Span,
        version: int,
        update: Update,
        *,
        checked: bool = False,
        before_wait: Callable[[], None] = ...,
    ) -> Pushed: ...

    def lets_through(self, span: Span) -> bool: ...

    def wait_version(self, newer_than: int, timeout_s: float) -> int: ...


@dataclass(frozen=True)
class Listening:
    """Where a plane listens. `unix_name`: of an abstract socket, without the leading zero."""

    tcp_port: int
    unix_name: str
    host_id: str


class Plane:
    """Listens on TCP and on an abstract unix socket until `close`."""

    def __init__(
        self,
        backend: Callable[[], Backend | None],
        metrics: Metrics,
        *,
        index: int,
        identity: Identity,
        host: str = "127.0.0.1",
        budget_nbytes: int = BUDGET_NBYTES,
        stall_s: float = STALL_S,
        turns: Turns | None = None,
    ) -> None:
        """`backend` None: every call is answered UNAVAILABLE (ask again). `turns`: those of this
        process, but for a test.

        Raises EdlError where `host` is not on loopback and `identity` has no certificate.
        """
        if not identity.token:
            raise ValueError("the tensor plane needs the job's token")
        prepare(identity.encrypts(host))
        self.backend = backend
        self.index = index
        self.metrics = metrics
        self.turns = turns or of_this_process()
        self.buffers = Buffers(budget_nbytes)
        self.parts = Buffers(KEPT_PARTS_NBYTES)  # of replies: those of pulls that are under way
        self._identity = identity
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._strangers = listen.Strangers(MOST_STRANGERS, STRANGERS_S)
        self._peers = set[_Session]()
        self._closed = threading.Event()
        self._idle = Idle[_Session](self._wake)
        tcp = socket.create_server((host, 0), family=listen.family(host), backlog=BACKLOG)
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"edl-ps-{os.getpid()}-{secrets.token_hex(8)}"
        unix.bind(f"\0{name}")
        unix.listen(BACKLOG)
        self.listening = Listening(tcp.getsockname()[1], name, host_id())
        self._listeners = [tcp, unix]
        for listener in self._listeners:
            threading.Thread(
                target=self._accept, args=(listener,), name="plane", daemon=True
            ).start()

    @property
    def connections(self) -> int:
        """Those of strangers included."""
        return len(self._peers) + len(self._strangers)

    def close(self) -> None:
        """Hang up on everybody."""
        self._closed.set()
        self.buffers.close()
        with self._lock:
            for session in self._peers:
                session.stream.abort()
        self._idle.close()
        self._strangers.hang_up()
        for listener in self._listeners:
            listen.hang_up(listener)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if not self._closed.wait(0.1):
                    log.warning("cannot accept a connection: %s", error)
                continue
            self._strangers.add(sock)
            if not self._begun(self._meet, sock):
                self._strangers.remove(sock)
                sock.close()

    def _begun(self, target: Callable[..., None], one: Any) -> bool:
        """A thread does it. False where the system has none to give."""
        try:
            threading.Thread(target=target, args=(one,), name="plane", daemon=True).start()
            return True
        except RuntimeError as error:
            log.warning("a connection of the tensor plane ends: %s", error)
            return False

    def _meet(self, sock: socket.socket) -> None:
        """A new connection, from the handshake on."""
        stream: Stream | None = None
        session: _Session | None = None
        try:
            stream = admit(sock, self._identity, self._stall_s, self.index)
            stream.look(REST_S)
            if isinstance(stream, TlsStream):
                stream.turns = self.turns
            with self._lock:
                known = self._strangers.remove(sock)
                if known and not self._closed.is_set():
                    if len(self._peers) >= MAX_CONNECTIONS:
                        raise PeerError(
                            f"{MAX_CONNECTIONS} connections are open: no more are taken"
                        )
                    session = _Session(self, stream)
                    self._peers.add(session)
        except (OSError, PeerError) as error:
            self._tell(error)
        finally:
            if session is None:
                with self._lock:
                    self._strangers.remove(sock)
                    (stream or sock).close()
        if session is not None:
            self._serve(session)

    def _serve(self, session: _Session) -> None:
        """Until it is idle, or has ended."""
        held = False
        try:
            held = session.run() and self._idle.hold(session)
        except (OSError, PeerError, frames.Malformed) as error:
            self._tell(error)
        finally:
            if not held:
                self._end(session)

    def _wake(self, session: _Session) -> None:
        if not self._begun(self._serve, session):
            self._end(session)

    def _end(self, session: _Session) -> None:
        with self._lock:
            self._peers.discard(session)
            session.stream.close()

    def _tell(self, error: Exception) -> None:
        if not self._closed.is_set() and not _is_end(error):
            log.warning("a connection of the tensor plane ended: %s", error)


class Buffers:
    """Page-aligned memory for bodies, lent and used again: at most `limit_nbytes` in all."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0  # lent or kept
        self.waiting = 0  # connections that wait for the budget
        self._kept: list[Bytes] = []
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def take(self, nbytes: int, needed: Callable[[], bool] = lambda: False) -> Bytes:
        """At least `nbytes`; waits until the budget has them. Raises Unreachable once closed.

        `needed()`: what holds the budget waits for this one, so it does not wait for the budget.
        """
        unit = HUGE if nbytes > HUGE >> 1 else HUGE >> 1
        size = nbytes + unit - 1 & -unit
        if size > self.limit_nbytes:
            raise Invalid(f"{nbytes} bytes in one request: this server takes {self.limit_nbytes}")
        patience: Patience | None = None
        with self._lock:
            if self._kept and nbytes <= len(self._kept[-1]) <= 4 * size and not self._closed:
                return self._kept.pop()  # the last one given: what caches have
            while not self._closed:
                fit = min((b for b in self._kept if len(b) >= nbytes), key=len, default=None)
                if fit is not None and (len(fit) <= 4 * size or not self._room(size)):
                    self._kept = [b for b in self._kept if b is not fit]
                    return fit
                while self._kept and not self._room(size):
                    self.nbytes -= len(self._kept.pop(0))
                if self._room(size) or needed():
                    self.nbytes += size
                    return huge_pages(size)
                patience = patience or Patience("memory for pushes, which others have")
                self.waiting += 1
                try:
                    patience.wait(self._changed, _LOOK_S)
                finally:
                    self.waiting -= 1
        raise Unreachable("the server is closing")

    @property
    def kept(self) -> int:
        """Bytes that are not lent."""
        with self._lock:
            return sum(len(buffer) for buffer in self._kept)

    def give(self, buffer: Bytes) -> None:
        """Back. Nobody may look at it any more."""
        with self._lock:
            if self._room(0):
                self._kept.append(buffer)
            else:
                self.nbytes -= len(buffer)
            self._changed.notify()  # one: of a thousand that wait, one may have it

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _room(self, size: int) -> bool:
        return self.nbytes + size <= self.limit_nbytes


class _Session:
    """One connection of a peer that is of the job."""

    def __init__(self, plane: Plane, stream: Stream) -> None:
        self._plane = plane
        self._backend = plane.backend
        self.stream = stream
        self._first = _NO_BYTES  # these three are there while it runs
        self._view = self._window = memoryview(b"")
        self._regions: dict[int, Bytes] = {}
        self._got = 0  # bytes of the frame that have been received
        self._left = 0  # bytes that are still to come
        self._frame_nbytes = 0
        self._is_idle = False
        self._short = True  # the request is served in a turn
        self._turns = plane.turns
        self._lent: Bytes | None = None
        self._wide = _NO_BYTES
        self._told = b""  # a reply that is still to be sent
        self._begun = False  # the reply is partly sent: too late for an error
        self._parts: Bytes | None = None  # of a reply
        self._calls = plane.metrics.calls

    def fileno(self) -> int:
        return self.stream.fileno()

    def run(self) -> bool:
        """Until the peer hangs up, or, True, is idle: it may be run again. Raises OSError, Unreachable,
        Malformed."""
        bounds, counters = self._calls.begin_compiled()
        memory = fresh(FIRST_NBYTES + REPLY_NBYTES)
        self._first, reply = memory[:FIRST_NBYTES], memory[FIRST_NBYTES:]
        self._view = self._window = memoryview(self._first)  # type: ignore[arg-type]
        pulls = SmallPulls(self.stream.plain_fd, self._first, reply, bounds, counters, self._turns)
        try:
            while self._next(pulls):
                pass
            return self._is_idle
        finally:
            self._turns.end()
            self._calls.end_compiled(counters)
            self._first = _NO_BYTES
            self._view = self._window = memoryview(b"")
            self.stream.rest()

    def _next(self, pulls: SmallPulls) -> bool:
        """Serve one request, and all small pulls before it. False: there are no more."""
        store = self._backend()
        board = None if store is None else store.watch(Board)
        told, self._told = self._told, b""
        if board is not None and pulls.fd is not None:
            pulls.reply[: len(told)] = told
            got = pulls.serve(board, len(self._window), len(told))
            if got == BROKEN:
                raise Unreachable("the peer takes nothing")
            if got == -1:
                got = self._received_some()
        else:
            self._turns.end()
            if told:
                self.stream.write(told, None)
            if board is not None:
                got = self._first_encrypted(pulls, board)
            else:
                got = self._received_some()
        if got == _ANSWERED:
            return True
        if got <= 0:
            self._is_idle = got == IDLE  # or hung up
            return False
        began = time.perf_counter()
        if got < frames.HEAD_NBYTES:
            self.stream.receive(self._view[got : frames.HEAD_NBYTES], None)
            got = frames.HEAD_NBYTES
        try:
            head = frames.parse_head(self._view, frames.REQUESTS)
            code = self._answered(head, got)
        except frames.Malformed as error:
            self._left = 0  # where the next frame begins, nobody can say: this is the end
            self._refuse(frames.INVALID, str(error))
            raise
        if method := _METHODS.get(head.op):
            took = time.perf_counter() - began
            self._calls.observe(method, _CODES[code], took, self._frame_nbytes)
        return True

    def _received_some(self) -> int:
        """The first bytes of a request: how many; 0: hung up; IDLE."""
        got = self.stream.receive_some(self._window)
        return got if got >= 0 else IDLE

    def _first_encrypted(self, pulls: SmallPulls, board: Board) -> int:
        """Like `_received_some`, but a small pull is _ANSWERED, and anything else awaits its turn."""
        self._window = self._view
        got = self._received_some()
        if got <= 0:
            return got
        began = time.perf_counter()
        nbytes = pulls.answer(board, got)
        if nbytes < 0:
            self.stream.receive(self._view[got : got - nbytes], None)
            self._turns.end()
            got -= nbytes
            nbytes = pulls.answer(board, got)
        if nbytes == 0:
            self._turns.take()
            return got
        self.stream.write(pulls.reply[:nbytes], None)
        self._calls.observe("Pull", "OK", time.perf_counter() - began, got)
        return _ANSWERED

    def _answered(self, head: Head, got: int) -> int:
        """Answer one request. The status code."""
        op, nbytes = head.op, frames.HEAD_NBYTES + head.descriptors_nbytes
        if head.body_nbytes > MAX_REQUEST_NBYTES and op != frames.MAP:
            raise frames.Malformed(f"{head.body_nbytes} bytes: {MAX_REQUEST_NBYTES} are taken")
        if not head.body_region:
            nbytes += head.body_nbytes
        elif head.flags & frames.LATER:
            nbytes += 1
        if got > nbytes:
            raise frames.Malformed(f"{got - nbytes} bytes beyond the frame")
        self._got, self._left, self._begun = got, nbytes - got, False
        self._window = self._view if nbytes <= FIRST_NBYTES else self._view[:BEGIN_NBYTES]
        self._frame_nbytes = nbytes
        self._short = head.body_nbytes <= _TURN_NBYTES
        try:
            if op == frames.PULL:
                self._pull(head)
            elif op == frames.PUSH:
                self._push(head)
            else:
                self._share(head)
            return 0
        except (Unreachable, frames.Malformed):
            raise
        except NotYet as error:
            return self._refuse(frames.UNAVAILABLE, str(error))
        except Invalid as error:
            return self._refuse(frames.INVALID, str(error))
        except NotPinned as error:
            return self._refuse(frames.NOT_FOUND, str(error))
        except EdlError as error:
            return self._refuse(frames.PRECONDITION, str(error))
        except MemoryError:
            text = f"server {self._plane.index} is out of memory: use more servers"
            return self._refuse(frames.EXHAUSTED, text)
        finally:
            if self._lent is not None:
                self._give_back()
            if self._parts is not None:
                self._plane.parts.give(self._parts)
                self._parts = None

    def _refuse(self, code: int, text: str) -> int:
        if self._begun:
            raise Unreachable(f"a reply broke off: {text}")
        self._turns.end()
        while self._left > 0:
            part = min(self._left, FIRST_NBYTES)
            self.stream.receive(self._view[:part], None)
            self._left -= part
        self.stream.write(frames.pack_error(code, text), None)
        return code

    # -- Receiving

    def _opened(self, head: Head) -> tuple[tuple[Array, ...], Bytes]:
        """The arrays, and where their bytes will be: `_fill` receives them."""
        begins = frames.HEAD_NBYTES + head.descriptors_nbytes
        if not self._left and not head.body_region:  # all of it has come at once
            arrays = frames.parse_arrays(head, self._view[frames.HEAD_NBYTES : begins])
            if head.op == frames.PUSH:
                self._take(0, head, arrays)
            return arrays, self._first[begins : self._got]
        descriptors: Any
        if begins <= FIRST_NBYTES:
            if self._got < begins:
                self._receive(self._view[self._got : begins])
            descriptors = self._view[frames.HEAD_NBYTES : begins]
        else:
            descriptors = memoryview(bytearray(head.descriptors_nbytes))
            have = self._got - frames.HEAD_NBYTES
            descriptors[:have] = self._view[frames.HEAD_NBYTES : self._got]
            self._receive(descriptors[have:])
        arrays = frames.parse_arrays(head, descriptors)
        body_nbytes = head.body_nbytes
        if head.body_region:
            self._take(0, head, arrays)
            return arrays, self._region(head.body_region, body_nbytes)
        if begins + body_nbytes <= FIRST_NBYTES:
            self._take(0, head, arrays)
            return arrays, self._first[begins : begins + body_nbytes]
        body = self._take(body_nbytes, head, arrays)
        if self._got > begins:
            body[: self._got - begins] = self._first[begins : self._got]
        return arrays, body

    def _fill(self, body: Bytes, end: int, nbytes: int) -> None:
        """The body up to `end` (of `nbytes`) is there."""
        start = nbytes - self._left
        if start < end:
            self._receive(memoryview(body)[start:end])  # type: ignore[arg-type]

    def _receive(self, view: memoryview) -> None:
        self._turns.end()
        self.stream.receive(view, None)
        if self._short:
            self._turns.take()
        self._got += len(view)
        self._left -= len(view)

    def _take(self, nbytes: int, head: Head, arrays: Sequence[Array]) -> Bytes:
        """A buffer, and `_wide` for values that must be made float32: both or none at once."""
        wide = 0
        for array in arrays:
            if array.wire in frames.SCALED:
                wide += frames.padded(4 * math.prod(array.shape))
        if not nbytes + wide:
            return _NO_BYTES
        self._lent = self._plane.buffers.take(nbytes + wide, lambda: self._needed(head))
        self._wide = self._lent[nbytes : nbytes + wide]
        return self._lent[:nbytes]

    def _needed(self, head: Head) -> bool:
        """Pushes that a freeze holds back have the budget, and its pin waits for this one."""
        self._turns.end()  # there is a wait ahead
        store = self._backend()
        try:
            return head.op == frames.PUSH and store is not None and store.lets_through(_span(head))
        except Invalid:
            return False

    def _give_back(self) -> None:
        if self._lent is not None:
            self._plane.buffers.give(self._lent)
            self._lent, self._wide = None, _NO_BYTES

    def _region(self, number: int, nbytes: int) -> Bytes:
        region = self._regions.get(number, _NO_BYTES)
        if len(region) < nbytes:
            raise frames.Malformed(f"region {number} has {len(region)} bytes, not {nbytes}")
        return region[:nbytes]

    # -- Pull

    def _pull(self, head: Head) -> None:
        arrays, body = self._opened(head)
        if self._left:
            self._fill(body, head.body_nbytes, head.body_nbytes)
        store = self._store()
        faults.point("ps.pull")
        if store.slot_map.is_other(head.code):
            self._tell(frames.pack_reply(frames.PULLED, pb.PullReply.MOVED))
            return
        ids, _ = frames.ids_of(arrays, body)
        flags = head.flags
        plan = store.plan_pull(
            dense=flags & frames.DENSE != 0,
            known_version=head.known if flags & frames.KNOWN else None,
            tables=ids.items(),
            cut=arrays[-1].name if len(ids) < len(arrays) else "",
        )
        self._turns.end()
        if plan is None:
            self._tell(frames.pack_reply(frames.PULLED, pb.PullReply.UNINITIALIZED))
            return
        told = []
        for array, rows in zip(arrays, plan.tables, strict=False):
            plain = rows.dtype == _FLOAT32
            wire = frames.FLOAT32 if plain else _narrow(store, array.name)
            told.append((frames.ROWS, wire, "", rows.dim, array.count))
        self._send(frames.PULLED, 0, 0, 0, told, plan, head.reply_region)

    def _send(
        self,
        op: int,
        flags: int,
        code: int,
        applied: int,
        told: list[frames.Told],
        plan: PullPlan,
        region: int,
    ) -> None:
        """A reply with the plan's rows and chunks, in the caller's region where they fit."""
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
            self.stream.write(begins, None)
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
        memory = self._parts = self._plane.parts.take(size * min(len(parts), _PARTS), lambda: True)
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
        """What stands before them, and the chunks from where they live."""
        buffers: list[Any] = [begins]
        nbytes = len(begins)
        for array, (_, values) in zip(arrays[len(plan.tables) :], plan.chunks, strict=True):
            buffers.append(values)
            if array.nbytes > values.nbytes:
                buffers.append(bytes(array.nbytes - values.nbytes))
            nbytes += array.nbytes
        self._begun = True
        self.stream.send(buffers, nbytes, None)

    def _flush(self, part: Any) -> None:
        """A part of a reply."""
        self._begun = True
        self.stream.write(part, None)

    # -- Push

    def _push(self, head: Head) -> None:
        arrays, body = self._opened(head)
        ids, values_at = frames.ids_of(arrays, body)
        if self._left and not head.body_region:
            self._fill(body, values_at, head.body_nbytes)
        store = self._store()
        moved = store.slot_map.is_other(head.code)
        checked = store.initialized and not moved
        if checked:
            for array in arrays:
                if array.kind == frames.ROWS:
                    store.check_rows(array.name, ids[array.name], array.number)
        # All that can be done before the values are here: what receives them empties the caches.
        span = _span(head)
        update, coded = self._update(arrays, ids, body, values_at)
        if self._left and head.body_region:
            self._receive(self._view[:1])
        elif self._left:
            self._fill(body, head.body_nbytes, head.body_nbytes)
        if moved:
            self._tell(frames.pack_reply(frames.PUSHED, pb.PushReply.MOVED))
            return
        for codes, scales, values in coded:
            quantize.decode(codes, scales, values)
        faults.point("ps.push", task=span.task, start=span.start)
        if not self._short:
            self._turns.end()
        pushed = store.push(
            span, head.version, update, checked=checked, before_wait=self._turns.end
        )
        if pushed.outcome is Outcome.APPLIED:
            faults.point("ps.applied", task=span.task, start=span.start)
        self._calls.pushed(pushed)
        code = _OUTCOMES[pushed.outcome]
        plan = None
        if head.flags & frames.THEN:
            del update, coded, body
            self._give_back()  # others may need it before the version is made
            plan = self._then(store, head, pushed)
        if plan is None:
            # Sent by the code that waits for the next request: each call that lets go of the GIL may
            # lose it to another connection.
            self._told = frames.pack_reply(
                frames.PUSHED, code, pushed.version, applied=pushed.applied
            )
            return
        region = head.reply_region
        self._send(frames.PUSHED, frames.THEN, code, pushed.applied, [], plan, region)

    def _then(self, store: Backend, head: Head, pushed: Pushed) -> PullPlan | None:
        """The chunks of the version that the push is part of, if it comes in time."""
        if pushed.outcome not in (Outcome.APPLIED, Outcome.DUPLICATE):
            return None
        self._turns.end()
        if store.wait_version(pushed.part_of - 1, head.timeout_ms / 1e3) < pushed.part_of:
            return None
        known = head.known if head.flags & frames.KNOWN else None
        return store.plan_pull(dense=True, known_version=known, tables=(), cut="")

    def _update(
        self, arrays: Sequence[Array], ids: Mapping[str, NDArray[np.int64]], body: Bytes, place: int
    ) -> tuple[Update, list[_Coded]]:
        """Views of where the values are or will be, and what has still to be made float32."""
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

    # -- Shared regions

    def _share(self, head: Head) -> None:
        """MAP, UNMAP: a region of the client's, which it owns."""
        if not self.stream.shares_memory or head.descriptors_nbytes or not head.body_region:
            raise frames.Malformed("regions are shared by number, over a unix socket")
        self._regions.pop(head.body_region, None)
        if head.op == frames.MAP:
            self._tell(frames.pack_reply(frames.DONE))
            fd = self.stream.receive_descriptor()
            if fd is None:
                raise Unreachable("a descriptor was announced and did not come")
            try:
                self._regions[head.body_region] = map_region(fd, head.body_nbytes)
            finally:
                os.close(fd)
        self._tell(frames.pack_reply(frames.DONE))

    def _store(self) -> Backend:
        store = self._backend()
        if store is None:
            raise NotYet(f"server {self._plane.index} is starting")
        return store

    def _tell(self, frame: bytes) -> None:
        self.stream.write(frame, None)


def _narrow(store: Backend, table: str) -> int:
    assert store.spec is not None
    return frames.PLAIN[next(t.dtype for t in store.spec.tables if t.name == table)]


def _parts(
    arrays: Sequence[Array], tables: Sequence[RowPlan], place: int, size: int
) -> Iterator[tuple[list[_Piece], int]]:
    """The rows of all tables in parts of at most `size` bytes, and how many each has; `place` bytes
    of the first are used. All but the last are whole words: eight rows of a table at least."""
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


def _span(head: Head) -> Span:
    return span_of(head.task, head.attempt, head.start, head.end)


def _is_end(error: Exception) -> bool:
    """The peer is gone, which peers may be."""
    return isinstance(error, Unreachable | ConnectionError)
