"""The tasks that the books remember, by state, and how many of each group are not done. Pure.

A task is remembered from when it is first leased (one of the plan) or made (one outside of it)
until it is retired. The ids of a state stand in the order in which the tasks reached it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .plan import Kind
from .task import UNPLANNED_IDS, Fence, State, Task


@dataclass(slots=True)
class TaskTable:
    """The tasks that are not retired and not untouched, by id, and those of each state.

    `results`: those that are done and pushed nothing. `begun`: not done, but leased before.
    `open_of_group`: tasks that are not done, by group, untouched ones too. `num_done`: tasks that
    are done, retired ones too. `low`: a train task below which all are retired. `redone`: by task
    of the plan, its records that were computed more than once, and `recomputed` all of these; for
    the eye, and kept nowhere.
    """

    tasks: dict[int, Task] = field(default_factory=dict)
    fencing: dict[int, Task] = field(default_factory=dict)
    done: dict[int, Task] = field(default_factory=dict)
    results: dict[int, Task] = field(default_factory=dict)
    begun: dict[int, Task] = field(default_factory=dict)
    open_of_group: Counter[str] = field(default_factory=Counter)
    num_done: int = 0
    next_unplanned: int = UNPLANNED_IDS
    low: int = 0
    redone: dict[int, int] = field(default_factory=dict, compare=False)
    recomputed: int = field(default=0, compare=False)

    # -- what becomes of a task

    def next_id(self) -> int:
        """Return the number of a new task outside of the plan."""
        self.next_unplanned += 1
        return self.next_unplanned - 1

    def add(self, task: Task) -> None:
        """Remember a new task outside of the plan."""
        self.tasks[task.id] = task
        self.expect(task.group, 1)

    def expect(self, group: str, tasks: int) -> None:
        """Count so many more tasks of a group as not done."""
        if group and tasks:
            self.open_of_group[group] += tasks

    def begin(self, task: Task) -> None:
        """Remember that a task is leased."""
        self.begun[task.id] = task

    def fence(self, task: Task) -> None:
        """Have every shard refuse what was pushed for the task so far: raise its attempt."""
        task.attempt += 1
        task.reached = max(task.reached, task.position, task.heard)
        task.state = State.FENCING
        self.fencing[task.id] = self.begun[task.id] = task

    def finish(self, task: Task) -> None:
        """Remember that a task, which was begun, is done."""
        task.state = State.DONE
        self.done[task.id] = task
        if task.kind != Kind.TRAIN:
            self.results[task.id] = task
        del self.begun[task.id]
        self.expect(task.group, -1)
        self.num_done += 1

    def reopen(self, task: Task) -> None:
        """Remember that a train task that was done is not any more: it is fenced."""
        del self.done[task.id]
        self.expect(task.group, 1)
        self.num_done -= 1
        task.position, task.heard = task.size, 0
        self.fence(task)

    def redo(self, task: Task, records: int) -> None:
        """Note that so many records of a task, which were computed, will be once more."""
        if records > 0 and task.id < UNPLANNED_IDS:
            self.redone[task.id] = self.redone.get(task.id, 0) + records
            self.recomputed += records

    def retire(self, task: Task) -> None:
        """Forget a task that is done, for good. Raises IllegalTransition where it is not."""
        task.must_be(State.DONE, "durable")
        del self.tasks[task.id], self.done[task.id]
        self.results.pop(task.id, None)

    def forget(self, task: Task) -> None:
        """Forget a task, whatever its state, as if it had never been made."""
        for places in (self.tasks, self.done, self.results, self.begun):
            places.pop(task.id, None)

    # -- views

    @property
    def fences(self) -> list[Fence]:
        """The fences that every shard must answer."""
        return [Fence(task.id, task.attempt) for task in self.fencing.values()]

    @property
    def unretired(self) -> dict[int, int]:
        """The train tasks of which a shard's ledger may have something: their attempts."""
        there = (*self.begun.values(), *self.done.values())
        return {task.id: task.attempt for task in there if task.kind == Kind.TRAIN}

    @property
    def uneven(self) -> list[Task]:
        """The tasks of which shards stand at different positions, and those being fenced."""
        return [task for task in self.begun.values() if _is_uneven(task)]

    @property
    def records_begun(self) -> int:
        """The plan's records that are applied in tasks that are not done, as far as was heard."""
        begun = (task for task in self.begun.values() if task.id < UNPLANNED_IDS)
        return sum(max(task.position, task.heard) for task in begun)

    def group_done(self, group: str) -> bool:
        """Tell whether no task of a group is open."""
        return not self.open_of_group[group]

    def open_tasks(self, kind: Kind) -> Iterable[Task]:
        """Yield the tasks of a kind that are not done."""
        return (t for t in self.tasks.values() if t.kind == kind and t.state != State.DONE)

    def low_water(self, end: int) -> int:
        """Return the first train task, up to `end`, that is not retired; all below it are."""
        while self.low < end and self.low not in self.tasks:
            self.low += 1
        return self.low


def _is_uneven(task: Task) -> bool:
    ahead = max(task.boundaries, default=0)
    return task.state == State.FENCING or max(task.position, task.heard) < ahead
