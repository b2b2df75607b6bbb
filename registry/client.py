"""A line to a registry, for teachers and students."""

from __future__ import annotations

from typing import Any

from ..common import rpc
from ..common.errors import EdlError, PeerError, Unauthenticated, UsageError
from ..common.identity import Identity
from ..common.listen import host_of, is_loopback
from ..proto import registry_pb2 as pb
from ..proto import registry_pb2_grpc
from .roll import Entry

_ANSWER_S = 5.0  # beyond what a call may be held: as of the master's line


class RegistryClient:
    """A line to the registry at HOST:PORT. Any thread may call; `close` ends calls that run.

    All calls raise Unreachable, Unauthenticated where the registry has another identity, and
    EdlError where no registry is there.
    """

    def __init__(self, address: str, identity: Identity) -> None:
        """Connect at the first call.

        Raises UsageError where the registry may not be called without a certificate.
        """
        self.address = address
        if not is_loopback(host_of(address)) and not identity.certificate_pem:
            raise UsageError(
                f"the registry at {address} is on another host, and EDL_TEACHERS_IDENTITY has no "
                "certificate here: set it to what `edl registry` has printed there"
            )
        self._channel = rpc.Channel(address, identity.token, identity=identity)
        self._stub = registry_pb2_grpc.RegistryStub(self._channel)

    def register(self, name: str, entry: Entry) -> str:
        """Register a teacher, or renew it. Return why it is refused; "": it is not."""
        request = pb.RegisterRequest(name=name, teacher=pb.Teacher(**vars(entry)))
        reply: pb.RegisterReply = self._call("Register", request)
        return reply.refused

    def leave(self, name: str, entry: Entry) -> None:
        """Say that a teacher leaves."""
        request = pb.LeaveRequest(name=name, address=entry.address, incarnation=entry.incarnation)
        self._call("Leave", request)

    def list(self, name: str, known_version: int = 0, wait_s: float = 0.0) -> pb.ListReply:
        """Return who teaches under a name, once the list is another than the known one."""
        request = pb.ListRequest(name=name, known_version=known_version, wait_s=wait_s)
        reply: pb.ListReply = self._call("List", request, wait_s)
        return reply

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: object, wait_s: float = 0.0) -> Any:
        try:
            return rpc.call(getattr(self._stub, method), request, wait_s + _ANSWER_S)
        except Unauthenticated as error:
            raise Unauthenticated(
                f"the registry at {self.address} has another identity: set EDL_TEACHERS_IDENTITY "
                "to what `edl registry` has printed there, or to what it was given"
            ) from error
        except PeerError:
            raise
        except EdlError as error:
            raise EdlError(f"at {self.address} is no registry of teachers: {error}") from error
