"""The decisions of the books: what the journal keeps, one by one.

A decision is a frozen record of what was decided and of nothing else: made again in the same order
on the same state, by `TaskQueue.decide`, the same decisions give the same queue. Its class's name
and its fields are what stands in the journal, so that they are part of its format (state.py): who
renames one, or adds a field, writes another format and reads this one on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...durable.schema import Json, dump_all, load_all
from .plan import Kind, Piece
from .task import Failure, Fence, Task
from .task_queue import Decision, TaskQueue


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """The decision that the tasks of the next epoch may be leased.

    `group`: what they are together.
    """

    group: str = ""

    def apply(self, queue: TaskQueue) -> int:
        return queue.open_epoch(self.group)


@dataclass(frozen=True, slots=True)
class Add:
    """The decision that tasks outside of the plan are made."""

    kind: Kind
    pieces: list[Piece]
    epoch: int = 0
    cut: str = ""
    payload: bytes = b""
    group: str = ""

    def apply(self, queue: TaskQueue) -> list[int]:
        return queue.add(
            self.kind,
            self.pieces,
            epoch=self.epoch,
            cut=self.cut,
            payload=self.payload,
            group=self.group,
        )


@dataclass(frozen=True, slots=True)
class Close:
    """The decision that no more of the plan is begun."""

    def apply(self, queue: TaskQueue) -> None:
        queue.close()


@dataclass(frozen=True, slots=True)
class Lease:
    """The decision that a worker, or a round, gets the next task.

    `planned`: of the plan; or not; None: any.
    """

    worker: str
    request: str
    planned: bool | None = None

    def apply(self, queue: TaskQueue) -> Task | None:
        return queue.lease(self.worker, self.request, self.planned)


@dataclass(frozen=True, slots=True)
class LeaseSome:
    """The decision that a worker gets the next tasks, at most so many."""

    worker: str
    request: str
    most: int

    def apply(self, queue: TaskQueue) -> list[Task]:
        return queue.lease_some(self.worker, self.request, self.most)


@dataclass(frozen=True, slots=True)
class Prove:
    """The decision that the definition works: some record of such a task was used."""

    kind: Kind

    def apply(self, queue: TaskQueue) -> None:
        queue.prove(self.kind)


@dataclass(frozen=True, slots=True)
class Done:
    """The decision that a lease is done.

    `doubtful`: by servers of which one has been replaced since.
    """

    worker: str
    task: int
    attempt: int
    result: bytes = b""
    doubtful: bool = False

    def apply(self, queue: TaskQueue) -> bool:
        return queue.done(self.worker, self.task, self.attempt, self.result, self.doubtful)


@dataclass(frozen=True, slots=True)
class HandBack:
    """The decision that a worker gives a lease back."""

    worker: str
    task: int
    attempt: int

    def apply(self, queue: TaskQueue) -> bool:
        return queue.hand_back(self.worker, self.task, self.attempt)


@dataclass(frozen=True, slots=True)
class Failed:
    """The decision that the content of a span failed."""

    worker: str
    task: int
    attempt: int
    failure: Failure

    def apply(self, queue: TaskQueue) -> bool:
        return queue.failed(self.worker, self.task, self.attempt, self.failure)


@dataclass(frozen=True, slots=True)
class Tries:
    """The decision that a worker begins with this span of a careful lease.

    The lease is its own or that of the round `lessee`.
    """

    worker: str
    task: int
    attempt: int
    start: int
    end: int
    lessee: str = ""

    def apply(self, queue: TaskQueue) -> None:
        queue.tries(self.worker, self.task, self.attempt, self.start, self.end, self.lessee)


@dataclass(frozen=True, slots=True)
class Ended:
    """The decision that the process of a worker has ended, and nobody had asked for that."""

    worker: str
    how: str
    certain: bool
    lessee: str = ""

    def apply(self, queue: TaskQueue) -> list[tuple[int, int, int]]:
        return queue.ended(self.worker, self.how, self.certain, self.lessee)


@dataclass(frozen=True, slots=True)
class Lost:
    """The decision that a worker, or a round, is gone, and its leases with it."""

    worker: str

    def apply(self, queue: TaskQueue) -> list[Fence]:
        return queue.lost(self.worker)


@dataclass(frozen=True, slots=True)
class Fenced:
    """The decision that every shard refuses older attempts at a task.

    `applied`: where each stands.
    """

    task: int
    attempt: int
    applied: list[int]

    def apply(self, queue: TaskQueue) -> None:
        queue.fenced(self.task, self.attempt, self.applied)


@dataclass(frozen=True, slots=True)
class Forgive:
    """The decision that a failed job goes on: what counted against its tasks is forgotten."""

    def apply(self, queue: TaskQueue) -> None:
        queue.forgive()


@dataclass(frozen=True, slots=True)
class Recovered:
    """The decision that a shard was replaced by one that stands at these positions, by task."""

    applied: dict[int, int]

    def apply(self, queue: TaskQueue) -> None:
        queue.recovered(self.applied)


@dataclass(frozen=True, slots=True)
class Doubt:
    """The decision that shards do not stand where a task should.

    `position`: the least of theirs.
    """

    task: int
    position: int

    def apply(self, queue: TaskQueue) -> None:
        queue.doubt(self.task, self.position)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The decision that the tasks of a group are forgotten."""

    group: str

    def apply(self, queue: TaskQueue) -> None:
        queue.cancel(self.group)


@dataclass(frozen=True, slots=True)
class Durable:
    """The decision that these tasks, which are done, need not be remembered any more."""

    tasks: list[int]

    def apply(self, queue: TaskQueue) -> None:
        queue.durable(self.tasks)


_KINDS = (
    *(OpenEpoch, Add, Close, Lease, LeaseSome, Prove, Done, HandBack, Failed, Tries, Ended, Lost),
    *(Fenced, Forgive, Recovered, Doubt, Cancel, Durable),
)
DECISIONS: dict[str, type[Decision[Any]]] = {kind.__name__: kind for kind in _KINDS}


def written(decision: Decision[Any]) -> tuple[str, dict[str, Json]]:
    """Return the name and the fields by which the journal has a decision."""
    return type(decision).__name__, dump_all(decision)


def read(name: str, fields: dict[str, Json]) -> Decision[Any]:
    """Return the decision that the journal has so. Raises ValueError, which says what is wrong."""
    kind = DECISIONS.get(name)
    if kind is None:
        raise ValueError(f"there is no decision {name!r}")
    return load_all(kind, fields)
