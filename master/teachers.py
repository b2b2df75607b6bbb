"""The teachers of a job: how many are wanted, and where those are that workers may ask.

Their number is what the user says, or is within bounds and follows the need (need.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..common.contradictions import why_not_teachers
from ..common.teacher_address import another_one
from ..proto import master_pb2 as pb
from .core import Core
from .membership import DRAINING, TEACHER, WORKER, Member
from .need import Look, Need, Taught
from .processes import Processes

_LOOK_S = 1.0  # between two looks at the need: a heartbeat
TEACHING = "teaching"  # the state of a teacher that answers


@dataclass(frozen=True)
class TeachersMemory:
    """What a restarted master must know of the teachers.

    `bounds`: what somebody has set since the start, one number twice where that is all; None:
    those of the settings. `start_s`: what a start took; 0: unknown. `lessons`: `Lessons.of`.
    `fingerprint`: that of all who teach the job; "": nobody has met one. `whose`: who had it first.
    """

    bounds: tuple[int, int] | None = None
    start_s: float = 0.0
    lessons: dict[str, dict[str, float]] = field(default_factory=dict)
    fingerprint: str = ""
    whose: str = ""


class Teachers:
    """The teachers. The version of their list rises with each change."""

    def __init__(self, core: Core, processes: Processes) -> None:
        self._core, self._processes = core, processes
        self._version = core.journal.epoch << 32  # above those of the masters before
        self._addresses: list[str] = []
        self._bounds: tuple[int, int] | None = None
        self._need = Need(core.settings.num_teachers, core.settings.most_teachers)
        self._looked = core.clock.now()
        self._fingerprint = self._whose = ""
        self._strangers = set[tuple[str, str]]()  # that the user was told of

    def memory(self) -> TeachersMemory:
        """Return what a restarted master must know."""
        lessons = self._core.lessons.of
        start_s = self._need.start_s
        return TeachersMemory(self._bounds, start_s, lessons, self._fingerprint, self._whose)

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most that are wanted; one number twice where no need decides."""
        settings = self._core.settings
        return self._bounds or (settings.num_teachers, settings.most_teachers)

    def heard(self, incarnation: str, scalars: Mapping[str, float]) -> None:
        """Hear how many records a worker has trained with a teacher's answer, and without."""
        if self._core.lessons.heard(incarnation, scalars):
            self._core.save_soon()

    def remember(self, memory: TeachersMemory) -> None:
        """Go on where the master before ended."""
        self._bounds = memory.bounds
        self._need = Need(*self.bounds, memory.start_s)
        self._core.lessons.remember(memory.lessons)
        self._fingerprint, self._whose = memory.fingerprint, memory.whose

    def meet(self, address: str, fingerprint: str) -> None:
        """Hear of a teacher that a worker has met: the first one says which all others must be.

        `address` "": whose the fingerprint is nobody knows any more.
        """
        if not self._fingerprint:
            self._fingerprint = fingerprint
            self._whose = f"that at {address}" if address else "the job's own"
            self._core.save_soon()
        elif fingerprint != self._fingerprint and (address, fingerprint) not in self._strangers:
            self._strangers.add((address, fingerprint))
            why = another_one(address, fingerprint, self._whose, self._fingerprint)
            self._core.tell(f"a teacher is not asked: {why}")

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
        return pb.GetTeachersReply(
            version=self.version, addresses=self._addresses, fingerprint=self._fingerprint
        )

    def scale(self, number: int, most: int = 0) -> str:
        """Want so many, as somebody says; or from so many to `most`, by need, where that is more.

        Return why not; "": it is so.
        """
        if refused := why_not_teachers(self._core.settings, number, most):
            return refused
        bounds = number, max(number, most)
        if self._core.status.state in ("starting", "running") and bounds != self.bounds:
            self._scale(*bounds)
        return ""

    def _scale(self, number: int, most: int) -> None:
        by_need = self._need.most > self._need.least
        self._bounds = number, most
        self._need.bound(number, most)
        if most > number:
            self._core.tell(f"teachers wanted: from {number} to {most}, by need")
        elif number != self._core.replicas.wanted_of(TEACHER):
            no_more = ", and the need decides no more" if by_need else ""
            self._want(number, f"somebody said so{no_more}")
        elif by_need:
            self._core.tell(f"teachers wanted: {number}, and the need decides no more")
        self._core.save_soon()

    def settle(self, now: float) -> None:
        """Look at the need, where it decides, and want as many as it says."""
        core = self._core
        is_time = now - self._looked >= _LOOK_S and core.status.state == "running"
        if not is_time or self._need.most == self._need.least:
            return
        self._looked = now
        students = [m for m in core.members.of(WORKER) if "taught_per_s" in m.scalars]
        if not students:
            return
        choice = self._need.look(self._look(now, students))
        if choice is not None:
            self._want(choice.number, choice.why)

    def _look(self, now: float, students: Sequence[Member]) -> Look:
        core = self._core
        planned, done = core.queue.records_planned, core.queue.records_done
        told = (m.scalars for m in core.members.of(TEACHER) if m.state == TEACHING)
        names = "rows_per_s", "busy_share", "queued"
        return Look(
            now=now,
            records_per_s=sum(m.scalars["taught_per_s"] for m in students),
            wait_share=sum(m.scalars["teacher_wait_share"] for m in students) / len(students),
            teaching=[Taught(*(each.get(name, 0.0) for name in names)) for each in told],
            wanted=core.replicas.wanted_of(TEACHER),
            records_left=None if planned is None else planned - done,
        )

    def _want(self, number: int, why: str) -> None:
        """Want so many, and drain the others."""
        core = self._core
        previous = core.replicas.scale(number, TEACHER)
        for slot in core.replicas.running(TEACHER):
            if slot.leaving:
                self._processes.stop(TEACHER, slot.index, core.settings.drain_grace_s)
        core.status.decide(core.clock.now(), number, previous, why)
        core.tell(f"teachers wanted: {number} (were {previous}): {why}")
        core.save_soon()
