"""One authenticated stream between a worker and a server, and the shared regions beside it.

Sockets block in the kernel under SO_RCVTIMEO and SO_SNDTIMEO, so that a message costs one system
call and no poll. TLS is between the bytes of a message and the socket, in memory: the ssl module's
own sockets take two system calls and more for each record of 16 KiB. A stream is used by one thread
at a time; only `abort` may come from another.

Handshake (in TLS, where it is), before anything else is read: hello and a nonce, the server's
nonce and proof, the client's proof, accepted or not. Both ends so prove that they hold the token.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import math
import mmap
import os
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.errors import EdlError, PeerError, Unauthenticated, Unreachable
from ...common.identity import Identity
from ...common.listen import is_loopback
from ..rows.memory import fresh
from .frames import MAGIC, PROTOCOL, Bytes

if TYPE_CHECKING:
    from .turns import Turns  # numba: clients do without

HANDSHAKE_S = 10.0
SILENT_S = 10.0  # of a peer that a caller waits for: longer than any but the last hold of a cut
_ALIVE = {  # TCP's own questions to a peer that says nothing, and how long bytes may go unanswered
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 10_000,  # ms
}
_HELLO = struct.Struct("<IHH32s")  # magic, protocol, 0, nonce
_CHALLENGE = struct.Struct("<IHH32s32s")  # magic, protocol, shard + 1, nonce, proof
_VERDICT = struct.Struct("<IHH")  # magic, protocol, 1 accepted
_TLS_HANDSHAKE = b"\x16"  # first byte of a TLS record; a hello begins with "E"
_NONCE_NBYTES = 32
UNIX_SEND_NBYTES = 2 << 20  # on its way: with the default of 208 KiB both ends wait by turns
LOOPBACK_CONGESTION = b"reno"  # every kernel has it; one that paces (BBR) has nothing to pace here
# What the send buffer holds more is sent by the receiver's core, beside the sender's: out of order.
LOOPBACK_UNSENT_NBYTES = 1 << 16
_IOV = 512  # buffers of one sendmsg; the kernel takes 1,024
_RECORD_NBYTES = 1 << 14  # of TLS: smaller buffers are joined
_TLS_NBYTES = 1 << 18  # encrypted or received at once: both ends work at the same time, in L2
_TICK_S = 0.05  # a kernel timeout that is longer than what is left by no more is left alone


def host_id() -> str:
    """The same for all processes of one running machine, and for no other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Stream:
    """Sends and receives exactly. Raises Unreachable (nothing in time, or closed) or OSError.

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
        """For compiled code to receive and send with; None where bytes are encrypted."""
        return self._sock.fileno()

    def rest(self) -> None:
        """Give buffers back. What follows works as before."""

    def look(self, every_s: float) -> None:
        """Let a wait for some bytes end so often with none; one for many goes on, for `stall_s`. Once
        it is armed for good."""
        self._look_s = min(every_s, self._stall_s)
        value = struct.pack("ll", int(self._look_s), int(self._look_s % 1 * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def arm(self, deadline: float | None) -> None:
        """Let the calls that follow end at the deadline, or once nothing moves."""
        left_s = math.inf if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise Unreachable("no answer within the deadline")
        self._to_deadline = left_s <= self._stall_s
        left_s = min(left_s, self._stall_s)
        if left_s <= self._timeout_s <= left_s + _TICK_S:
            return
        self._timeout_s = timeout_s = math.ceil(left_s / _TICK_S) * _TICK_S
        value = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def stalled(self, deadline: float | None) -> None:
        """Nothing has moved for as long as was armed. Raises Unreachable unless that was less."""
        if not self._to_deadline:
            raise Unreachable(f"nothing has moved for {self._stall_s:g} s")
        self.arm(deadline)

    def write(self, data: bytes | memoryview, deadline: float | None) -> None:
        """All of the bytes: cheaper than `send` of a single buffer."""
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.send([memoryview(data)[sent:]], len(data) - sent, deadline)

    def send(self, buffers: Sequence[Any], nbytes: int, deadline: float | None) -> None:
        """All of the C-contiguous buffers, `nbytes` in all."""
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

    def _sendmsg(self, buffers: Sequence[Any], deadline: float | None) -> int:
        try:
            return self._sock.sendmsg(buffers)
        except BlockingIOError:
            self.stalled(deadline)
            return 0

    def receive_some(self, view: memoryview) -> int:
        """What is there, at most the view: waits for a byte. 0: closed. -1: nothing in time."""
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
        """For how long nothing has come. Raises Unreachable where that is too long."""
        silent_s += self._look_s
        if self._to_deadline or silent_s >= self._stall_s:
            self.stalled(deadline)
        return silent_s

    def _receive_more(self, view: memoryview) -> int:
        """Like `receive_some`, but waits for the whole view where that costs no more."""
        try:
            return self._sock.recv_into(view, len(view), socket.MSG_WAITALL)
        except BlockingIOError:
            return -1

    def send_descriptor(self, fd: int) -> None:
        socket.send_fds(self._sock, [b"F"], [fd])

    def receive_descriptor(self) -> int | None:
        """A file descriptor that the peer sends with one byte; the caller closes it."""
        silent_s = 0.0
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
                return fds[0] if data and fds else None
            except BlockingIOError:
                silent_s = self._silent(silent_s, None)

    def abort(self) -> None:
        """Wake whoever waits on it. Any thread."""
        with contextlib.suppress(OSError):  # it is closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class TlsStream(Stream):
    """Encrypted once `handshake` is through."""

    def __init__(
        self, sock: socket.socket, identity: Identity, *, server: bool, stall_s: float
    ) -> None:
        super().__init__(sock, stall_s)
        self._identity = identity
        context = identity.server_context if server else identity.client_context
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=server)
        self._place: Bytes | None = None
        self.turns: Turns | None = None  # a server's
        self._more = False  # there may be decrypted bytes

    @property
    def plain_fd(self) -> int | None:
        return None

    def rest(self) -> None:
        self._place = None

    def handshake(self, deadline: float) -> None:
        """Raises Unauthenticated unless the peer has this identity's certificate."""
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

    def send(self, buffers: Sequence[Any], nbytes: int, deadline: float | None) -> None:
        small: list[Any] = []
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
        return self._receive_records(view, self.turns)

    def _receive_records(self, view: memoryview, turns: Turns | None) -> int:
        while True:
            if self._more or self._received.pending:
                try:
                    count: int = self._tls.read(len(view), view)  # type: ignore[assignment]
                    self._more = count == len(view)
                    return count
                except ssl.SSLWantReadError:
                    self._more = False
            count = self._read_records(turns)
            if count <= 0:
                return count

    def _read_records(self, turns: Turns | None = None) -> int:
        """Encrypted bytes, of several records or a part of one; -1: nothing in time, 0: closed."""
        if self._place is None:
            self._place = fresh(_TLS_NBYTES)
        records = memoryview(self._place)  # type: ignore[arg-type]
        if turns is None:
            count = super().receive_some(records)
        else:
            count = turns.receive(self._sock.fileno(), self._place)
        if count > 0:
            self._received.write(records[:count])
        return count

    def _flush(self, deadline: float | None) -> None:
        if self._to_send.pending:
            if deadline is not None:
                self.arm(deadline)
            super().write(self._to_send.read(), deadline)


def flat(buffer: Any) -> memoryview:
    """The bytes of a C-contiguous buffer that is not empty."""
    return memoryview(buffer).cast("B")


# -- Handshake


def greet(
    sock: socket.socket,
    identity: Identity,
    tls: bool,
    deadline: float,
    stall_s: float = SILENT_S,
    shard: int | None = None,
) -> Stream:
    """The client's part. Raises Unauthenticated, PeerError, Unreachable, OSError.

    `shard`: whom it is to reach. Unreachable where it is another one's, which was given the port of
    one that is gone.
    """
    stream = _begun(sock, identity, tls, deadline, stall_s, server=False)
    ours = os.urandom(_NONCE_NBYTES)
    stream.send([_HELLO.pack(MAGIC, PROTOCOL, 0, ours)], _HELLO.size, deadline)
    told = memoryview(bytearray(_CHALLENGE.size))
    stream.receive(told, deadline)
    magic, protocol, number, theirs, proof = _CHALLENGE.unpack(told)
    _same_protocol(magic, protocol)
    if shard is not None and number not in (0, shard + 1):
        raise Unreachable(f"server {number - 1} listens there now, not server {shard}")
    if not hmac.compare_digest(proof, identity.proof(b"server", ours, theirs)):
        raise Unauthenticated("the parameter server does not hold this job's token")
    proof = identity.proof(b"client", ours, theirs)
    stream.send([proof], len(proof), deadline)
    told = memoryview(bytearray(_VERDICT.size))
    stream.receive(told, deadline)
    magic, protocol, accepted = _VERDICT.unpack(told)
    if not accepted:
        raise Unauthenticated("the job's token is missing or wrong")
    return stream


def admit(sock: socket.socket, identity: Identity, stall_s: float, shard: int) -> Stream:
    """The part of server `shard`: a stream to a peer of the job. Raises like `greet`."""
    deadline = time.monotonic() + HANDSHAKE_S
    sock.settimeout(HANDSHAKE_S)
    tls = sock.family != socket.AF_UNIX and sock.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
    if not tls and sock.family != socket.AF_UNIX and not is_loopback(sock.getpeername()[0]):
        raise Unauthenticated("a peer on another host must come with TLS")
    stream = _begun(sock, identity, tls, deadline, stall_s, server=True)
    told = memoryview(bytearray(_HELLO.size))
    stream.receive(told, deadline)
    magic, protocol, _, theirs = _HELLO.unpack(told)
    ours = os.urandom(_NONCE_NBYTES)
    proof = identity.proof(b"server", theirs, ours)
    challenge = _CHALLENGE.pack(MAGIC, PROTOCOL, shard + 1, ours, proof)
    stream.send([challenge], len(challenge), deadline)
    _same_protocol(magic, protocol)
    answer = memoryview(bytearray(len(proof)))
    stream.receive(answer, deadline)
    accepted = hmac.compare_digest(answer, identity.proof(b"client", theirs, ours))
    stream.send([_VERDICT.pack(MAGIC, PROTOCOL, accepted)], _VERDICT.size, deadline)
    if not accepted:
        raise Unauthenticated("a peer's token is missing or wrong")
    stream.arm(None)
    return stream


def _begun(
    sock: socket.socket,
    identity: Identity,
    tls: bool,
    deadline: float,
    stall_s: float,
    *,
    server: bool,
) -> Stream:
    if not tls:
        stream = Stream(sock, stall_s)
        stream.arm(deadline)
        return stream
    encrypted = TlsStream(sock, identity, server=server, stall_s=stall_s)
    encrypted.arm(deadline)
    encrypted.handshake(deadline)
    return encrypted


def _same_protocol(magic: int, protocol: int) -> None:
    if magic != MAGIC or protocol != PROTOCOL:
        raise PeerError(f"the peer speaks protocol {protocol} ({magic:#x}), not {PROTOCOL}")


# -- Shared regions


def make_region(nbytes: int) -> tuple[int, Bytes]:
    """New memory to share: the descriptor, which the caller closes, and the bytes."""
    fd = os.memfd_create("edl-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return fd, np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    except OSError:
        os.close(fd)
        raise


def map_region(fd: int, nbytes: int) -> Bytes:
    """A peer's region. Raises EdlError unless it is, and stays, at least `nbytes` long.

    Without the seal the peer could shrink it, and touching it would end this process (SIGBUS).
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < nbytes:
            raise EdlError("a shared region must be sealed against shrinking, and long enough")
        return np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    except OSError as error:
        raise EdlError(f"no shared region: {error}") from error
