"""The task queue as everybody may read it: its parts, and what they say together. Pure.

Only a decision changes them (task_queue.py), so that the journal has all that ever changed, or the
reading of a journal (`restore`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from .epochs import Epochs
from .failures import Failures
from .leases import Leases
from .plan import Kind, Plan
from .task import Fence, Quarantine, QueueState, Task, planned
from .task_table import TaskTable
from .todo import Todo


class Standing(NamedTuple):
    """The parts of the books that audit.py puts together.

    `finished`: records of tasks of the plan that are done; `untouched`: first id, one past the
    last, and group of tasks that nobody has leased yet; `begun`: tasks that were leased, now or
    before, and are not done; `redone`: records that were computed more than once, by task, as far
    as this queue saw it; `recomputed`: all of these.
    """

    finished: int
    untouched: list[tuple[int, int, str]]
    begun: Collection[Task]
    redone: dict[int, int]
    recomputed: int


class QueueView:
    """The state of a queue: what is to do, who has it, how far it is, and what has failed."""

    def __init__(self, plan: Plan, *, tolerance: int = 3) -> None:
        self.plan = plan
        self.tolerance = tolerance
        self.leases = Leases()
        self._table = TaskTable(low=plan.first_id)
        self._todo = Todo()
        self._epochs = Epochs(plan)
        self._failures = Failures(plan, tolerance)

    # -- tasks

    @property
    def tasks(self) -> dict[int, Task]:
        """The tasks by id that are not retired, and not among the untouched ones."""
        return self._table.tasks

    def find(self, number: int) -> Task | None:
        """Return the task if it is not retired; one that nobody has touched as it would be made."""
        known = self._table.tasks.get(number)
        if known is None and self._epochs.is_untouched(number):
            return planned(self.plan, number)
        return known

    @property
    def fencing(self) -> list[Fence]:
        """The fences that every shard must answer."""
        return self._table.fences

    @property
    def done_tasks(self) -> list[int]:
        """The ids of the tasks that are done and not yet retired."""
        return list(self._table.done)

    @property
    def done_results(self) -> list[int]:
        """The ids of the done tasks that pushed nothing: no server need know of them."""
        return list(self._table.results)

    @property
    def unretired(self) -> dict[int, int]:
        """The train tasks of which a shard's ledger may have something: their attempts."""
        return self._table.unretired

    @property
    def uneven(self) -> list[Task]:
        """The tasks of which shards stand at different positions, and those that are being fenced.

        A task is among them until somebody works on it.
        """
        return self._table.uneven

    @property
    def low_water(self) -> int:
        """The first train task that is not retired: all below it are, for good."""
        return self._table.low_water(self._epochs.all_touched_below)

    @property
    def todo(self) -> int:
        """The number of tasks that may be leased now."""
        return len(self._todo) + (0 if self.closed else self._epochs.num_untouched)

    def group_done(self, group: str) -> bool:
        """Tell whether all tasks of a group are done."""
        return self._table.group_done(group)

    # -- the plan

    @property
    def opened(self) -> int:
        """The number of epochs that are opened."""
        return self._epochs.opened

    @property
    def closed(self) -> bool:
        """Tell whether nothing more of the plan is begun."""
        return self._epochs.closed

    def epochs_done(self, epochs: int) -> bool:
        """Tell whether the first so many epochs are done."""
        return self._epochs.are_done(epochs)

    @property
    def all_epochs_opened(self) -> bool:
        """Tell whether all epochs are opened, or no more of them is."""
        return self._epochs.all_opened

    @property
    def plan_done(self) -> bool:
        """Tell whether every task of the plan is done."""
        return self._epochs.plan_done

    @property
    def records_done(self) -> int:
        """The records of the plan that are applied (as far as was heard)."""
        return self._epochs.records_done + self._table.records_begun

    @property
    def records_planned(self) -> int | None:
        """The records of the plan that are applied or will be; None: it has no end."""
        return self._epochs.records_planned

    @property
    def standing(self) -> Standing:
        """The parts of the books that an audit puts together."""
        table, epochs = self._table, self._epochs
        finished, begun = epochs.records_done, table.begun.values()
        return Standing(finished, epochs.untouched, begun, table.redone, table.recomputed)

    def counts(self) -> dict[str, int]:
        """Return the number of tasks by state; `done` counts retired ones too."""
        counts = {
            "todo": self.todo,
            "leased": len(self.leases),
            "fencing": len(self._table.fencing),
            "done": self._table.num_done,
        }
        left = self._epochs.num_untouched if self.closed else 0
        return {**counts, "total": sum(counts.values()) + left}

    # -- failures

    @property
    def proven(self) -> set[Kind]:
        """The kinds of tasks of which some record was used, so that the definition works."""
        return self._failures.proven

    @property
    def broken(self) -> str | None:
        """The reason why the job cannot go on, if there is one."""
        return self._failures.broken

    @property
    def quarantined(self) -> list[Quarantine]:
        """The records that are skipped because their content failed too often."""
        return self._failures.quarantined

    # -- to the journal and back

    def state(self) -> QueueState:
        """Return what a queue of the same plan and tolerance needs to be as this one.

        Nothing is copied.
        """
        table, epochs, failures = self._table, self._epochs, self._failures
        return QueueState(
            tasks=list(table.tasks.values()),
            untouched=epochs.untouched,
            opened=epochs.opened,
            closed=epochs.closed,
            quarantined=failures.quarantined,
            broken=failures.broken,
            proven=failures.proven,
            failures=failures.failures,
            failures_of_no_record=failures.of_no_record,
            deaths=failures.deaths,
            by_chance=failures.by_chance,
            survived=failures.survived,
            todo=self._todo.heap,
            leased=list(self.leases.leased),
            fencing=list(table.fencing),
            done=list(table.done),
            results=list(table.results),
            begun=list(table.begun),
            open_of_epoch=epochs.open_tasks,
            open_of_group=table.open_of_group,
            records_done=epochs.records_done,
            tasks_done=table.num_done,
            next_unplanned=table.next_unplanned,
            low=table.low,
            answers=self.leases.answers,
            requests=self.leases.requests,
        )

    def restore(self, state: QueueState) -> None:
        """Become as the queue whose state this is, which is not used by anybody else."""
        tasks = {task.id: task for task in state.tasks}

        def by_id(numbers: Iterable[int]) -> dict[int, Task]:
            return {number: tasks[number] for number in numbers}

        self._table = TaskTable(
            tasks=tasks,
            fencing=by_id(state.fencing),
            done=by_id(state.done),
            results=by_id(state.results),
            begun=by_id(state.begun),
            open_of_group=state.open_of_group,
            num_done=state.tasks_done,
            next_unplanned=state.next_unplanned,
            low=state.low,
        )
        self._todo = Todo(state.todo)
        self.leases = Leases(by_id(state.leased), state.answers, state.requests)
        self._epochs = Epochs(
            self.plan,
            opened=state.opened,
            closed=state.closed,
            untouched=state.untouched,
            open_tasks=state.open_of_epoch,
            records_done=state.records_done,
        )
        self._failures = Failures(
            self.plan,
            self.tolerance,
            quarantined=state.quarantined,
            broken=state.broken,
            proven=state.proven,
            failures=state.failures,
            of_no_record=state.failures_of_no_record,
            deaths=state.deaths,
            by_chance=state.by_chance,
            survived=state.survived,
        )
