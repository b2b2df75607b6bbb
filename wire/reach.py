"""The ways to a peer: a unix socket on the same host, TCP elsewhere, with TLS off loopback."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from ..common.identity import Identity
from ..common.listen import is_loopback
from .handshake import greet
from .stream import SILENT_S, Stream


@dataclass(frozen=True)
class Caller:
    """Who connects, and until when. `shard`: the server that is to be reached (`greet`)."""

    identity: Identity
    deadline: float
    stall_s: float = SILENT_S
    shard: int | None = None

    def near(self, name: str) -> Stream:
        """Connect to an abstract unix socket of this host.

        Raises ConnectionRefusedError, FileNotFoundError or PermissionError where none is to be
        reached: of another pod of this host, or from one that is confined. Else as `greet`.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.001, self.deadline - time.monotonic()))
            sock.connect(f"\0{name}")
        except BaseException:
            sock.close()
            raise
        return self._greeted(sock, tls=False)

    def far(self, host: str, port: int, connect_s: float, *, tls: bool = False) -> Stream:
        """Connect over TCP, in `connect_s` at most; with TLS off loopback, or where `tls`.

        Raises OSError, and as `greet`.
        """
        left_s = min(connect_s, max(0.001, self.deadline - time.monotonic()))
        sock = socket.create_connection((host, port), left_s)
        try:
            tls = tls or not is_loopback(sock.getpeername()[0])
        except BaseException:
            sock.close()
            raise
        return self._greeted(sock, tls)

    def _greeted(self, sock: socket.socket, tls: bool) -> Stream:
        try:
            return greet(sock, self.identity, tls, self.deadline, self.stall_s, self.shard)
        except BaseException:
            sock.close()
            raise
