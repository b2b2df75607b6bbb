"""The server's end of the tensor plane: listens, and serves the peers that are of the job.

One thread per connection that is busy, which has one request at a time (session.py); one thread
waits for all that are idle (idle.py). Nothing is read from a peer before it has proved that it is
of the job. The oldest of those who have not makes room for a newcomer: nobody is kept out by them.

The memory for pushes of all connections shares a budget; where it is used up a connection waits and
so does its peer (TCP's flow control), unless a pin waits for this very push while a freeze holds
back those that have the budget.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ...common import listen
from ...common.errors import PeerError, Unreachable
from ...common.identity import Identity
from . import frames
from .backend import Backend, Calls, Serving
from .buffers import Buffers
from .handshake import admit
from .idle import Idle
from .pulls import prepare
from .session import Session
from .stream import Stream, host_id
from .tls import TlsStream
from .turns import Turns, of_this_process

log = logging.getLogger(__name__)
One = TypeVar("One")

BUDGET_NBYTES = 2 << 30  # of all pushes on their way; a freeze may hold one of each worker
STALL_S = 60.0  # a peer that does not move in the midst of a frame for so long is given up
MAX_CONNECTIONS = 8192  # a worker has one for each request that it has under way
BACKLOG = 4096  # that wait to be accepted: all workers of a server that was replaced come at once
# Without a request, until a connection gives its thread and its buffers back. To get them again
# takes 0.2 ms of CPU time: nothing beside so long a step, also where a thousand workers make such.
REST_S = 30.0
KEPT_PARTS_NBYTES = 256 << 20  # of replies; beyond that many at a time, memory is not kept
# That have not proved to be of the job: a thread each, for 10 s, or for a moment where more come.
# The proof takes 0.3 ms, and with TLS 1.3: so most of a thousand workers that come at once wait to
# be accepted.
MOST_STRANGERS, STRANGERS_S = 256, 0.5


@dataclass(frozen=True)
class Listening:
    """The ports of a plane. `unix_name`: of an abstract socket, without the leading zero."""

    tcp_port: int
    unix_name: str
    host_id: str


class Plane:
    """A listener on TCP and on an abstract unix socket, until `close`."""

    def __init__(
        self,
        backend: Callable[[], Backend | None],
        calls: Calls,
        *,
        index: int,
        identity: Identity,
        host: str = "127.0.0.1",
        budget_nbytes: int = BUDGET_NBYTES,
        stall_s: float = STALL_S,
        turns: Turns | None = None,
    ) -> None:
        """Listen, and serve in threads.

        `backend` None: every call is answered UNAVAILABLE (ask again). `turns`: those of this
        process, but for a test.

        Raises EdlError where `host` is not on loopback and `identity` has no certificate.
        """
        if not identity.token:
            raise ValueError("the tensor plane needs the job's token")
        prepare(identity.encrypts(host))
        self.buffers = Buffers(budget_nbytes)
        self.parts = Buffers(KEPT_PARTS_NBYTES)  # of replies: those of pulls that are under way
        turns = turns or of_this_process()
        self.serving = Serving(backend, index, calls, turns, self.buffers, self.parts)
        self._identity = identity
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._strangers = listen.Strangers(MOST_STRANGERS, STRANGERS_S)
        self._peers = set[Session]()
        self._closed = threading.Event()
        self._idle = Idle[Session](self._wake)
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
        """Return the number of connections, those of strangers included."""
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

    def _begun(self, target: Callable[[One], None], one: One) -> bool:
        """Start a thread; return whether the system had one to give."""
        try:
            threading.Thread(target=target, args=(one,), name="plane", daemon=True).start()
            return True
        except RuntimeError as error:
            log.warning("a connection of the tensor plane ends: %s", error)
            return False

    def _meet(self, sock: socket.socket) -> None:
        """Serve a new connection, from the handshake on."""
        stream: Stream | None = None
        session: Session | None = None
        try:
            stream = admit(sock, self._identity, self._stall_s, self.serving.index)
            stream.look(REST_S)
            if isinstance(stream, TlsStream):
                stream.receive_in_turn = self.serving.turns.receive
            with self._lock:
                known = self._strangers.remove(sock)
                if known and not self._closed.is_set():
                    if len(self._peers) >= MAX_CONNECTIONS:
                        raise PeerError(
                            f"{MAX_CONNECTIONS} connections are open: no more are taken"
                        )
                    session = Session(self.serving, stream)
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

    def _serve(self, session: Session) -> None:
        """Serve a connection until it is idle, or has ended."""
        held = False
        try:
            held = session.run() and self._idle.hold(session)
        except (OSError, PeerError, frames.Malformed) as error:
            self._tell(error)
        finally:
            if not held:
                self._end(session)

    def _wake(self, session: Session) -> None:
        if not self._begun(self._serve, session):
            self._end(session)

    def _end(self, session: Session) -> None:
        with self._lock:
            self._peers.discard(session)
            session.stream.close()

    def _tell(self, error: Exception) -> None:
        if not self._closed.is_set() and not _is_end(error):
            log.warning("a connection of the tensor plane ended: %s", error)


def _is_end(error: Exception) -> bool:
    """Tell whether the peer is gone, which peers may be."""
    return isinstance(error, Unreachable | ConnectionError)
