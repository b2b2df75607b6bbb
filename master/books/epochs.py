"""The epochs of the plan: which are opened, and how much of each is not done. Pure.

The tasks of an epoch may be leased once it is opened. Those that nobody has touched are a range of
numbers and nothing else, so that they cost nothing however many there are; a task is made when it
is leased. When the plan is closed, what nobody has touched is not waited for any more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .plan import Plan
from .task import UNPLANNED_IDS, IllegalTransition, Task, planned


@dataclass(slots=True)
class Epochs:
    """The epochs of a plan.

    `opened`: how many are; `closed`: nothing more of the plan is begun. `untouched`: first id, one
    past the last, and the group of tasks that nobody has leased. `open_tasks`: by epoch, those that
    are not done and, once closed, were begun. `records_done`: of tasks that are done.
    """

    plan: Plan
    opened: int = 0
    closed: bool = False
    untouched: list[tuple[int, int, str]] = field(default_factory=list)
    open_tasks: Counter[int] = field(default_factory=Counter)
    records_done: int = 0

    def open_next(self, group: str) -> range:
        """Open the next epoch; returns the ids of its tasks. Raises IllegalTransition: not yet."""
        epoch = self.opened
        if not self.plan.overlap_epochs and not self.are_done(epoch):
            raise IllegalTransition(
                f"epoch {epoch} opened while {self.open_tasks} tasks of earlier ones are open"
            )
        if self.plan.epochs is not None and epoch >= self.plan.epochs:
            raise IllegalTransition(f"epoch {epoch} opened of {self.plan.epochs}")
        self.opened += 1
        first = self.plan.first_id_of(epoch)
        tasks = range(first, first + self.plan.tasks_of(epoch))
        if tasks:
            self.untouched.append((tasks.start, tasks.stop, group))
            self.open_tasks[epoch] += len(tasks)
        return tasks

    def close(self) -> None:
        """Begin no more of the plan."""
        if self.closed:
            return
        self.closed = True
        for first, end, _ in self.untouched:
            self.open_tasks[self.plan.epoch_of(first)] -= end - first

    def touch(self, number: int) -> Task:
        """Make a task that was untouched until now. Raises KeyError where it was not."""
        for place, (first, end, group) in enumerate(self.untouched):
            if first <= number < end:
                rest = ((first, number, group), (number + 1, end, group))
                self.untouched[place : place + 1] = [each for each in rest if each[0] < each[1]]
                task = planned(self.plan, number, group)
                self.open_tasks[task.epoch] += self.closed  # it was no more counted
                return task
        raise KeyError(number)

    def finish(self, task: Task) -> None:
        """Count a task as done, if it is one of the plan."""
        if task.id < UNPLANNED_IDS:
            self.open_tasks[task.epoch] -= 1
            self.records_done += task.size

    def reopen(self, task: Task) -> None:
        """Count a task of the plan, which was done, as not done."""
        self.open_tasks[task.epoch] += 1
        self.records_done -= task.size

    @property
    def next_untouched(self) -> int | None:
        """The first task that nobody has touched and that may be leased."""
        return self.untouched[0][0] if self.untouched and not self.closed else None

    @property
    def num_untouched(self) -> int:
        """The number of tasks of opened epochs that nobody has touched."""
        return sum(end - first for first, end, _ in self.untouched)

    @property
    def all_touched_below(self) -> int:
        """The first id that nobody has touched, in an epoch that is opened or in the next one."""
        return self.untouched[0][0] if self.untouched else self.plan.first_id_of(self.opened)

    @property
    def records_planned(self) -> int | None:
        """The records of all tasks that are done or will be; None: the plan has no end."""
        if not self.closed:
            return self.plan.records
        opened = self.plan.of_first(self.opened)[1]
        return opened - sum(self.plan.records_between(a, b) for a, b, _ in self.untouched)

    def is_untouched(self, number: int) -> bool:
        """Tell whether this is a task of an opened epoch that nobody has touched."""
        return any(first <= number < end for first, end, _ in self.untouched)

    def are_done(self, epochs: int) -> bool:
        """Tell whether the first so many epochs are done."""
        return self.opened >= epochs and not any(e < epochs for e in +self.open_tasks)

    @property
    def all_opened(self) -> bool:
        """Tell whether all epochs are opened, or no more of them is."""
        return self.closed or (self.plan.epochs is not None and self.opened >= self.plan.epochs)

    @property
    def plan_done(self) -> bool:
        """Tell whether every task of the plan is done."""
        return self.all_opened and self.are_done(self.opened)
