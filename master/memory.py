"""The memory of a master: what its successor must know that is not the queue's, as one record."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..durable.schema import Json
from ..runtime.base import Replica
from .course import CourseMemory
from .evaluation import EvaluationsState
from .machines import MachinesState
from .membership import Member
from .replicas import ReplicasState
from .status import StatusMemory
from .teachers import TeachersMemory


@dataclass(frozen=True)
class Memory:
    """The memory of a master, which is journaled as a whole.

    `gone`: incarnations that are lost for good; `group`: in the words of the job's group.

    Its fields are part of the journal's format (state.py).
    """

    status: StatusMemory
    members: list[Member]
    gone: list[str]
    replicas: ReplicasState
    processes: list[Replica]
    evaluations: EvaluationsState
    version: int
    connected: bool
    stop_reason: str
    group: Json
    course: CourseMemory
    machines: MachinesState = field(default_factory=MachinesState)
    teachers: TeachersMemory = field(default_factory=TeachersMemory)
