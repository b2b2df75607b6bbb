"""The tasks of a queue, and what is said about them: failures, quarantine, fences. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from ...common.errors import EdlError
from .endings import Ending
from .plan import Kind, Plan

# Tasks outside of the plan (evaluations, ends) are numbered from here, so that the ids of train
# tasks, and with them the order of records, do not depend on when evaluations happen.
UNPLANNED_IDS = 10**12
CAREFUL_AT = 2  # endings without progress; one may be preemption, and two are rare
_STORY_KEPT = 12


class IllegalTransition(EdlError):
    """A bug of the master or of a server: the books would no longer be exact."""


class State(Enum):
    """The state of a task in the queue (task_queue.py)."""

    TODO = "todo"
    LEASED = "leased"
    FENCING = "fencing"
    DONE = "done"


@dataclass(slots=True)
class Task:
    """A range of records of one epoch.

    Positions count from its start, in its own order.

    `attempt` is that of the current lease, or of the next one. `position` is where the lease
    begins: all shards have applied what is before it. `heard` is how far its worker says that it
    is.
    """

    id: int
    kind: Kind
    source: str
    start: int
    end: int
    epoch: int = 0
    cut: str = ""
    payload: bytes = b""
    group: str = ""  # the evaluation that it belongs to, or the end of one
    state: State = State.TODO
    attempt: int = 1
    position: int = 0
    boundaries: tuple[int, ...] = ()
    skips: set[int] = field(default_factory=set)
    tries: dict[int, int] = field(default_factory=dict)  # failures by start of the span
    worker: str = ""  # the incarnation that holds it
    heard: int = field(default=0, compare=False)
    reached: int = field(default=0, compare=False)  # how far it was when it was last fenced
    failure: Failure | None = None  # how its last lease ended, until that is fenced
    ended: Ending | None = None  # of its worker's process, likewise
    ends: int = 0  # of such, in a row at position `ended_at`, where nobody knows the span
    ended_at: int = 0
    deaths: dict[int, int] = field(default_factory=dict)  # of such, by start of the span
    trying: dict[str, tuple[int, int]] = field(default_factory=dict)  # the span, by worker
    result: bytes = b""
    story: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def careful(self) -> bool:
        """Tell whether the worker is to do one span after the other, and to say which."""
        return self.ends >= CAREFUL_AT or bool(self.deaths)

    def tell(self, event: str) -> None:
        self.story = [*self.story[1 - _STORY_KEPT :], event]

    def must_be(self, state: State, event: str) -> None:
        """Raise IllegalTransition unless this event may happen, which it may in this state."""
        if self.state != state:
            raise self.illegal(event)

    def illegal(self, event: str) -> IllegalTransition:
        """Return the error that this event cannot happen to the task as it is."""
        story = "; ".join(self.story)
        return IllegalTransition(
            f"task {self.id} is {self.state.value} (attempt {self.attempt}) and was told: {event}. "
            f"Its story: {story or 'none'}"
        )


@dataclass(frozen=True)
class Failure:
    """The failure of the content of positions [start, end).

    `record`: that of the source which is to blame, where known.
    """

    start: int
    end: int
    error: str
    source: str = ""
    record: int | None = None
    traceback: str = ""


@dataclass(frozen=True)
class Quarantine:
    """Records of a task that are skipped because their content failed too often."""

    task: int
    source: str
    records: tuple[int, ...]
    error: str
    kind: Kind = Kind.TRAIN
    epoch: int = 0


@dataclass(frozen=True)
class Fence:
    """The demand to raise the task's attempt on every shard."""

    task: int
    attempt: int


def planned(plan: Plan, number: int, group: str = "") -> Task:
    """Return the task of the plan with this id as it is before anybody has touched it.

    Raises ValueError where the plan has none.
    """
    epoch, piece = plan.task(number)
    return Task(number, plan.kind, *piece, epoch=epoch, group=group)


@dataclass(frozen=True)
class QueueState:
    """The content of a queue, for the journal, without its plan and its tolerance.

    So a compacted journal has it: a field that is added, renamed or taken out is another format
    (state.py). Tasks and the numbers of tasks stand in the queue's own order.
    """

    tasks: list[Task]
    untouched: list[tuple[int, int, str]]
    opened: int
    closed: bool
    quarantined: list[Quarantine]
    broken: str | None
    proven: set[Kind]
    failures: Counter[Kind]
    failures_of_no_record: int
    deaths: Counter[Kind]
    by_chance: int
    survived: int
    todo: list[tuple[int, int, int]]
    leased: list[int]
    fencing: list[int]
    done: list[int]
    results: list[int]
    begun: list[int]
    open_of_epoch: Counter[int]
    open_of_group: Counter[str]
    records_done: int
    tasks_done: int
    next_unplanned: int
    low: int
    answers: dict[str, OrderedDict[tuple[int, int], bool]]
    requests: dict[str, OrderedDict[str, tuple[int, int]]]
