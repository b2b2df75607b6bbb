"""The teachers of a job: how many are wanted, and where those are that workers may ask."""

from __future__ import annotations

from ..proto import master_pb2 as pb
from .core import Core
from .membership import DRAINING, TEACHER
from .processes import Processes


class Teachers:
    """The teachers. The version of their list rises with each change."""

    def __init__(self, core: Core, processes: Processes) -> None:
        self._core, self._processes = core, processes
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

    def scale(self, number: int) -> None:
        """Want so many, and drain the others."""
        core = self._core
        previous = core.replicas.wanted_of(TEACHER)
        if core.status.state not in ("starting", "running") or number == previous:
            return
        core.replicas.scale(number, TEACHER)
        for slot in core.replicas.running(TEACHER):
            if slot.leaving:
                self._processes.stop(TEACHER, slot.index, core.settings.drain_grace_s)
        core.tell(f"teachers wanted: {number} (were {previous})")
        core.save_soon()
