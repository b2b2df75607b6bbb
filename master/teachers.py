"""The teachers of a job, as its workers are told of them."""

from __future__ import annotations

from ..proto import master_pb2 as pb
from .core import Core
from .membership import DRAINING, TEACHER


class Teachers:
    """The list of those who may be asked. Its version rises with each change."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._version = core.journal.epoch << 32  # above those of the masters before
        self._addresses: list[str] = []

    @property
    def version(self) -> int:
        """The version of the list of now."""
        there = [
            member.address
            for member in self._core.members.of(TEACHER)
            if member.state not in (DRAINING, "starting")
        ]
        if there != self._addresses or not self._version % (1 << 32):
            self._addresses = there
            self._version += 1
        return self._version

    def reply(self) -> pb.GetTeachersReply:
        """Return the list."""
        return pb.GetTeachersReply(version=self.version, addresses=self._addresses)
