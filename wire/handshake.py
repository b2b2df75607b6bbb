"""The handshake of the tensor plane: both ends prove that they hold the job's token.

In TLS, where it is, and before anything else is read: hello and a nonce, the server's nonce and
proof, the client's proof, accepted or not.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time

from ..common.errors import PeerError, Unauthenticated, Unreachable
from ..common.identity import Identity
from ..common.listen import is_loopback
from .stream import HANDSHAKE_S, SILENT_S, Stream
from .tls import TlsStream

MAGIC = 0x504C4445  # "EDLP"
PROTOCOL = 2
HELLO = struct.Struct("<IHH32s")  # magic, protocol, 0, nonce
CHALLENGE = struct.Struct("<IHH32s32s")  # magic, protocol, shard + 1, nonce, proof
VERDICT = struct.Struct("<IHH")  # magic, protocol, 1 accepted
_TLS_HANDSHAKE = b"\x16"  # first byte of a TLS record; a hello begins with "E"
_NONCE_NBYTES = 32


def greet(
    sock: socket.socket,
    identity: Identity,
    tls: bool,
    deadline: float,
    stall_s: float = SILENT_S,
    shard: int | None = None,
) -> Stream:
    """Prove who one is as a client, and return the stream to the server.

    Raises Unauthenticated, PeerError, Unreachable, OSError.

    `shard`: whom it is to reach. Unreachable where it is another one's, which was given the port of
    one that is gone.
    """
    stream = _begun(sock, identity, tls, deadline, stall_s, server=False)
    ours = os.urandom(_NONCE_NBYTES)
    stream.send([HELLO.pack(MAGIC, PROTOCOL, 0, ours)], HELLO.size, deadline)
    told = memoryview(bytearray(CHALLENGE.size))
    stream.receive(told, deadline)
    magic, protocol, number, theirs, proof = CHALLENGE.unpack(told)
    _same_protocol(magic, protocol)
    if shard is not None and number not in (0, shard + 1):
        raise Unreachable(f"server {number - 1} listens there now, not server {shard}")
    if not hmac.compare_digest(proof, identity.proof(b"server", ours, theirs)):
        raise Unauthenticated("the peer does not hold this job's token")
    proof = identity.proof(b"client", ours, theirs)
    stream.send([proof], len(proof), deadline)
    told = memoryview(bytearray(VERDICT.size))
    stream.receive(told, deadline)
    magic, protocol, accepted = VERDICT.unpack(told)
    if not accepted:
        raise Unauthenticated("the job's token is missing or wrong")
    return stream


def admit(sock: socket.socket, identity: Identity, stall_s: float, shard: int) -> Stream:
    """Let a peer of the job in as server `shard`, and return the stream to it.

    Raises like `greet`.
    """
    deadline = time.monotonic() + HANDSHAKE_S
    sock.settimeout(HANDSHAKE_S)
    tls = sock.family != socket.AF_UNIX and sock.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
    if not tls and sock.family != socket.AF_UNIX and not is_loopback(sock.getpeername()[0]):
        raise Unauthenticated("a peer on another host must come with TLS")
    stream = _begun(sock, identity, tls, deadline, stall_s, server=True)
    told = memoryview(bytearray(HELLO.size))
    stream.receive(told, deadline)
    magic, protocol, _, theirs = HELLO.unpack(told)
    ours = os.urandom(_NONCE_NBYTES)
    proof = identity.proof(b"server", theirs, ours)
    challenge = CHALLENGE.pack(MAGIC, PROTOCOL, shard + 1, ours, proof)
    stream.send([challenge], len(challenge), deadline)
    _same_protocol(magic, protocol)
    answer = memoryview(bytearray(len(proof)))
    stream.receive(answer, deadline)
    accepted = hmac.compare_digest(answer, identity.proof(b"client", theirs, ours))
    stream.send([VERDICT.pack(MAGIC, PROTOCOL, accepted)], VERDICT.size, deadline)
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
