"""The server's end of the tensor plane: listens, and serves the peers that are of the job.

One thread per connection that is busy, which has one request at a time (session.py); one thread
waits for all that are idle (idle.py).

The memory for pushes of all connections shares a budget; where it is used up a connection waits and
so does its peer (TCP's flow control), unless a pin waits for this very push while a freeze holds
back those that have the budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...common.errors import PeerError
from ...common.identity import Identity
from ...wire.listener import Listener
from ...wire.stream import Stream
from ...wire.tls import TlsStream
from . import frames
from .backend import Backend, Calls, Serving
from .buffers import Buffers
from .idle import Idle
from .pulls import prepare
from .session import Session
from .turns import Turns, of_this_process

BUDGET_NBYTES = 2 << 30  # of all pushes on their way; a freeze may hold one of each worker
STALL_S = 60.0  # a peer that does not move in the midst of a frame for so long is given up
MAX_CONNECTIONS = 8192  # a worker has one for each request that it has under way
# Without a request, until a connection gives its thread and its buffers back. To get them again
# takes 0.2 ms of CPU time: nothing beside so long a step, also where a thousand workers make such.
REST_S = 30.0
KEPT_PARTS_NBYTES = 256 << 20  # of replies; beyond that many at a time, memory is not kept


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
        self._listener = Listener(
            self._meet, name="ps", identity=identity, host=host, stall_s=stall_s, number=index
        )
        prepare(identity.encrypts(host))
        self.buffers = Buffers(budget_nbytes)
        self.parts = Buffers(KEPT_PARTS_NBYTES)  # of replies: those of pulls that are under way
        turns = turns or of_this_process()
        self.serving = Serving(backend, index, calls, turns, self.buffers, self.parts)
        self._lock = threading.Lock()
        self._peers = set[Session]()
        self._idle = Idle[Session](self._wake)
        self.listening = self._listener.listening
        self._listener.start()

    @property
    def connections(self) -> int:
        """Return the number of connections, those of strangers included."""
        return len(self._peers) + self._listener.strangers

    def close(self) -> None:
        """Hang up on everybody."""
        self._listener.close()
        self.buffers.close()
        with self._lock:
            for session in self._peers:
                session.stream.abort()
        self._idle.close()

    def _meet(self, stream: Stream) -> None:
        """Serve a peer of the job."""
        session: Session | None = None
        try:
            stream.look(REST_S)
            if isinstance(stream, TlsStream):
                stream.receive_in_turn = self.serving.turns.receive
            with self._lock:
                if len(self._peers) >= MAX_CONNECTIONS:
                    raise PeerError(f"{MAX_CONNECTIONS} connections are open: no more are taken")
                if not self._listener.is_closed:
                    session = Session(self.serving, stream)
                    self._peers.add(session)
        finally:
            if session is None:
                stream.close()
        if session is not None:
            self._serve(session)

    def _serve(self, session: Session) -> None:
        """Serve a connection until it is idle, or has ended."""
        held = False
        try:
            held = session.run() and self._idle.hold(session)
        except (OSError, PeerError, frames.Malformed) as error:
            self._listener.tell(error)
        finally:
            if not held:
                self._end(session)

    def _wake(self, session: Session) -> None:
        if not self._listener.begin(self._serve, session):
            self._end(session)

    def _end(self, session: Session) -> None:
        with self._lock:
            self._peers.discard(session)
            session.stream.close()
