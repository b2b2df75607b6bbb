"""A listener on TCP and on a unix socket of the same host, which lets in whoever is of the job.

Nothing is read from a peer before it has proved that it is of the job. The oldest of those who have
not makes room for a newcomer: nobody is kept out by them.
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

from ..common import listen
from ..common.errors import PeerError, Unreachable
from ..common.identity import Identity
from .handshake import admit
from .stream import Stream, host_id

log = logging.getLogger(__name__)
One = TypeVar("One")

BACKLOG = 4096  # that wait to be accepted: all workers of a server that was replaced come at once
# That have not proved to be of the job: a thread each, for 10 s, or for a moment where more come.
# The proof takes 0.3 ms, and with TLS 1.3: so most of a thousand workers that come at once wait to
# be accepted.
MOST_STRANGERS, STRANGERS_S = 256, 0.5


@dataclass(frozen=True)
class Listening:
    """The ports of a listener. `unix_name`: of an abstract socket, without the leading zero."""

    tcp_port: int
    unix_name: str
    host_id: str


class Listener:
    """A listener that serves each peer of the job in a thread of its own, until `close`."""

    def __init__(
        self,
        serve: Callable[[Stream], None],
        *,
        name: str,
        identity: Identity,
        host: str,
        stall_s: float,
        number: int = -1,
        port: int = 0,
    ) -> None:
        """Listen, under an address that has `name` in it.

        `serve` owns the stream, which it closes; what it raises of peers that are gone is told in
        the log. `number`: of the server, for peers that want this one alone. `port` 0: any.

        Raises EdlError where `host` is not on loopback and `identity` has no certificate.
        """
        if not identity.token:
            raise ValueError("the tensor plane needs the job's token")
        identity.encrypts(host)
        self._serve = serve
        self._name = name
        self._identity, self._number, self._stall_s = identity, number, stall_s
        self._lock = threading.Lock()
        self._strangers = listen.Strangers(MOST_STRANGERS, STRANGERS_S)
        self._closed = threading.Event()
        tcp = socket.create_server((host, port), family=listen.family(host), backlog=BACKLOG)
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = f"edl-{name}-{os.getpid()}-{secrets.token_hex(8)}"
        unix.bind(f"\0{path}")
        unix.listen(BACKLOG)
        self.listening = Listening(tcp.getsockname()[1], path, host_id())
        self._listeners = [tcp, unix]

    def start(self) -> None:
        """Accept peers from now on."""
        for listener in self._listeners:
            threading.Thread(
                target=self._accept, args=(listener,), name=self._name, daemon=True
            ).start()

    @property
    def strangers(self) -> int:
        """The number of peers that have proved nothing yet."""
        return len(self._strangers)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Let nobody in any more; hang up on those who have proved nothing."""
        self._closed.set()
        self._strangers.hang_up()
        for listener in self._listeners:
            listen.hang_up(listener)
            listener.close()

    def begin(self, target: Callable[[One], None], one: One) -> bool:
        """Start a thread; return whether the system had one to give."""
        try:
            threading.Thread(target=target, args=(one,), name=self._name, daemon=True).start()
            return True
        except RuntimeError as error:
            log.warning("a connection of the tensor plane ends: %s", error)
            return False

    def tell(self, error: Exception) -> None:
        """Tell in the log why a connection has ended, where the peer is not just gone."""
        is_end = isinstance(error, Unreachable | ConnectionError)
        if not self.is_closed and not is_end:
            log.warning("a connection of the tensor plane ended: %s", error)

    def _accept(self, listener: socket.socket) -> None:
        while not self.is_closed:
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if not self._closed.wait(0.1):
                    log.warning("cannot accept a connection: %s", error)
                continue
            self._strangers.add(sock)
            if not self.begin(self._meet, sock):
                self._strangers.remove(sock)
                sock.close()

    def _meet(self, sock: socket.socket) -> None:
        """Serve a new connection, from the handshake on."""
        stream: Stream | None = None
        known = False
        try:
            stream = admit(sock, self._identity, self._stall_s, self._number)
        except (OSError, PeerError) as error:
            self.tell(error)
        finally:
            with self._lock:
                known = self._strangers.remove(sock)
                if stream is None or not known:
                    (stream or sock).close()
        if stream is not None and known:
            try:
                self._serve(stream)
            except (OSError, PeerError) as error:
                self.tell(error)
