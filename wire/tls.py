"""TLS of a stream, between the bytes of a message and the socket, in memory.

The ssl module's own sockets take two system calls and more for each record of 16 KiB.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..common.errors import Unauthenticated, Unreachable
from ..common.identity import Identity
from ..kernels.malloc import fresh
from .stream import AnyBuffer, Stream, flat

Bytes = NDArray[np.uint8]
_RECORD_NBYTES = 1 << 14  # of TLS: smaller buffers are joined
_TLS_NBYTES = 1 << 18  # encrypted or received at once: both ends work at the same time, in L2


class TlsStream(Stream):
    """A stream that is encrypted once `handshake` is through."""

    def __init__(
        self, sock: socket.socket, identity: Identity, *, server: bool, stall_s: float
    ) -> None:
        super().__init__(sock, stall_s)
        self._identity = identity
        context = identity.server_context if server else identity.client_context
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=server)
        self._place: Bytes | None = None
        # How a server receives what is not the beginning of a request: `Turns.receive`.
        self.receive_in_turn: Callable[[int, Bytes], int] | None = None
        self._more = False  # there may be decrypted bytes

    @property
    def plain_fd(self) -> int | None:
        return None

    def rest(self) -> None:
        self._place = None

    def handshake(self, deadline: float) -> None:
        """Raise Unauthenticated unless the peer has this identity's certificate."""
        done = False
        while not done:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._flush(deadline)  # what is wrong, for the peer
                raise Unauthenticated(f"the peer has another identity: {error}") from error
            self._flush(deadline)
            while not done and (count := self._read_records()) <= 0:
                if count == 0:
                    raise Unreachable("the peer closed the connection")
                self.stalled(deadline)
        if self._tls.getpeercert(binary_form=True) != self._identity.certificate_der:
            raise Unauthenticated("the peer has another identity")

    def write(self, data: bytes | memoryview, deadline: float | None) -> None:
        self._tls.write(data)
        self._flush(deadline)

    def send(self, buffers: Sequence[AnyBuffer], _nbytes: int, deadline: float | None) -> None:
        small: list[AnyBuffer] = []
        for buffer in buffers:
            if memoryview(buffer).nbytes < _RECORD_NBYTES:
                small.append(buffer)
                continue
            if small:
                self._tls.write(b"".join(small))
                small = []
            view = flat(buffer)
            for start in range(0, len(view), _TLS_NBYTES):
                self._tls.write(view[start : start + _TLS_NBYTES])
                self._flush(deadline)
        if small:
            self.write(b"".join(small), deadline)

    def receive_some(self, view: memoryview) -> int:
        return self._receive_records(view, None)

    def _receive_more(self, view: memoryview) -> int:
        return self._receive_records(view, self.receive_in_turn)

    def _receive_records(
        self, view: memoryview, receive: Callable[[int, Bytes], int] | None
    ) -> int:
        while True:
            if self._more or self._received.pending:
                try:
                    count: int = self._tls.read(len(view), view)  # type: ignore[assignment]
                    self._more = count == len(view)
                    return count
                except ssl.SSLWantReadError:
                    self._more = False
            count = self._read_records(receive)
            if count <= 0:
                return count

    def _read_records(self, receive: Callable[[int, Bytes], int] | None = None) -> int:
        """Return encrypted bytes, of several records or a part of one.

        -1: nothing in time, 0: closed.
        """
        if self._place is None:
            self._place = fresh(_TLS_NBYTES)
        records = memoryview(self._place)  # type: ignore[arg-type]
        if receive is None:
            count = super().receive_some(records)
        else:
            count = receive(self._sock.fileno(), self._place)
        if count > 0:
            self._received.write(records[:count])
        return count

    def _flush(self, deadline: float | None) -> None:
        if self._to_send.pending:
            if deadline is not None:
                self.arm(deadline)
            super().write(self._to_send.read(), deadline)
