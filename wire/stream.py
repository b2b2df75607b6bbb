"""A stream of bytes between a worker and a server, over TCP or a unix socket.

Sockets block in the kernel under SO_RCVTIMEO and SO_SNDTIMEO, so that a message costs one system
call and no poll. A stream is used by one thread at a time; only `abort` may come from another.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common.errors import Unreachable
from ..common.listen import is_loopback

HANDSHAKE_S = 10.0
SILENT_S = 10.0  # of a peer that a caller waits for: longer than any but the last hold of a cut
_ALIVE = {  # TCP's own questions to a peer that says nothing, and how long bytes may go unanswered
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 10_000,  # ms
}
UNIX_SEND_NBYTES = 2 << 20  # on its way: with the default of 208 KiB both ends wait by turns
LOOPBACK_CONGESTION = b"reno"  # every kernel has it; one that paces (BBR) has nothing to pace here
# What the send buffer holds more is sent by the receiver's core, beside the sender's: out of order.
LOOPBACK_UNSENT_NBYTES = 1 << 16
_IOV = 512  # buffers of one sendmsg; the kernel takes 1,024
AnyBuffer = Any  # collections.abc.Buffer, once Python 3.12 is the oldest that is supported
_TICK_S = 0.05  # a kernel timeout that is longer than what is left by no more is left alone


def host_id() -> str:
    """Return what is the same for all processes of one running machine, and for no other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Stream:
    """A socket that sends and receives exactly.

    Raises Unreachable (nothing in time, or closed) or OSError.

    A call ends when nothing has moved for `stall_s`, at its deadline at the latest: the way to a
    peer may be gone while both ends hold the connection (`deadline` None: there is no other end).
    """

    def __init__(self, sock: socket.socket, stall_s: float = HANDSHAKE_S) -> None:
        self._sock = sock
        self._stall_s = stall_s
        self._look_s = stall_s  # how often a wait for bytes ends with none
        self._timeout_s = 0.0
        self._to_deadline = False  # what is armed ends at the deadline, not before
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            if is_loopback(sock.getpeername()[0]):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOOPBACK_CONGESTION)
                sock.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LOOPBACK_UNSENT_NBYTES
                )
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_NBYTES)
        sock.settimeout(None)

    @property
    def shares_memory(self) -> bool:
        return self._sock.family == socket.AF_UNIX

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def plain_fd(self) -> int | None:
        """Return the descriptor for compiled code to use; None where bytes are encrypted."""
        return self._sock.fileno()

    def rest(self) -> None:
        """Give buffers back; what follows works as before."""

    def look(self, every_s: float) -> None:
        """Let a wait for some bytes end so often with none; one for many goes on, for `stall_s`.

        For a stream that is armed for good.
        """
        self._look_s = min(every_s, self._stall_s)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._look_s))

    def arm(self, deadline: float | None) -> None:
        """Let the calls that follow end at the deadline, or once nothing moves."""
        left_s = math.inf if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise Unreachable("no answer within the deadline")
        self._to_deadline = left_s <= self._stall_s
        left_s = min(left_s, self._stall_s)
        if left_s <= self._timeout_s <= left_s + _TICK_S:
            return
        self._timeout_s = math.ceil(left_s / _TICK_S) * _TICK_S
        value = _timeval(self._timeout_s)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def stalled(self, deadline: float | None) -> None:
        """Take note that nothing has moved for as long as was armed.

        Raises Unreachable unless that was less.
        """
        if not self._to_deadline:
            raise Unreachable(f"nothing has moved for {self._stall_s:g} s")
        self.arm(deadline)

    def write(self, data: bytes | memoryview, deadline: float | None) -> None:
        """Send all of the bytes: cheaper than `send` of a single buffer."""
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.send([memoryview(data)[sent:]], len(data) - sent, deadline)

    def send(self, buffers: Sequence[AnyBuffer], nbytes: int, deadline: float | None) -> None:
        """Send all of the C-contiguous buffers, `nbytes` in all."""
        sent = self._sendmsg(buffers, deadline) if len(buffers) <= _IOV else 0
        if sent == nbytes:
            return
        views = [flat(buffer) for buffer in buffers if memoryview(buffer).nbytes]
        first = 0
        while True:
            while first < len(views) and sent >= len(views[first]):
                sent -= len(views[first])
                first += 1
            if first == len(views):
                return
            views[first] = views[first][sent:]
            sent = self._sendmsg(views[first : first + _IOV], deadline)

    def _sendmsg(self, buffers: Sequence[AnyBuffer], deadline: float | None) -> int:
        try:
            return self._sock.sendmsg(buffers)
        except BlockingIOError:
            self.stalled(deadline)
            return 0

    def receive_some(self, view: memoryview) -> int:
        """Receive what is there: a byte at least.

        0: closed. -1: nothing in time.
        """
        try:
            return self._sock.recv_into(view)
        except BlockingIOError:
            return -1

    def receive(self, view: memoryview, deadline: float | None) -> None:
        """Fill the view."""
        got, wanted, silent_s = 0, len(view), 0.0
        while got < wanted:
            count = self._receive_more(view[got:] if got else view)
            if count < 0:
                silent_s = self._silent(silent_s, deadline)
            elif count == 0:
                raise Unreachable("the peer closed the connection")
            else:
                got, silent_s = got + count, 0.0
            if got < wanted and deadline is not None:
                self.arm(deadline)

    def _silent(self, silent_s: float, deadline: float | None) -> float:
        """Return for how long nothing has come.

        Raises Unreachable where that is too long.
        """
        silent_s += self._look_s
        if self._to_deadline or silent_s >= self._stall_s:
            self.stalled(deadline)
        return silent_s

    def _receive_more(self, view: memoryview) -> int:
        """Receive as `receive_some`, but wait for the whole view where that costs no more."""
        try:
            return self._sock.recv_into(view, len(view), socket.MSG_WAITALL)
        except BlockingIOError:
            return -1

    def send_descriptor(self, fd: int) -> None:
        socket.send_fds(self._sock, [b"F"], [fd])

    def receive_descriptor(self) -> int | None:
        """Return a file descriptor that the peer sends with one byte; the caller closes it."""
        silent_s = 0.0
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
                return fds[0] if data and fds else None
            except BlockingIOError:
                silent_s = self._silent(silent_s, None)

    def abort(self) -> None:
        """Wake whoever waits on the stream.

        Any thread may call.
        """
        with contextlib.suppress(OSError):  # it is closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def _timeval(seconds: float) -> bytes:
    """Return C's struct timeval."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def flat(buffer: AnyBuffer) -> memoryview:
    """Return the bytes of a C-contiguous buffer that is not empty."""
    return memoryview(buffer).cast("B")
