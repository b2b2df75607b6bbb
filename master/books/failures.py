"""The failures in the books, and whose doing they were: retries, quarantine, the end of a job.

Pure.

Preemption never counts against a task. A span whose content fails `tolerance` times is quarantined:
its positions join the task's `skips` and `quarantined`. `broken` tells where that would be wrong:
the definition fails everywhere (`tolerance` + 2 failures before any record of that kind of task was
used, or nothing would be left), or it failed `tolerance` times at no record (an end, a callback).

A worker that ends while it holds a lease may have been ended by what it computed. A task that comes
back so without progress (twice, or once where the process did it itself) is leased as `careful`:
its worker does one span after the other and nothing beside, and says which one before it begins
(`tries`). If it ends then, that counts for the span: as a failure of its content where the process
did it itself, else once it is beyond chance (endings.py). Only endings count that nobody has asked
for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...common.order import order
from .endings import Ending, beyond_chance
from .plan import Kind, Plan
from .task import CAREFUL_AT, Failure, Quarantine, State, Task
from .task_table import TaskTable

_OF_ONE_PLACE = 5  # endings that count for how often chance strikes


@dataclass(slots=True)
class Failures:
    """The failures of spans and the endings of workers, and what follows from them.

    `tolerance`: tries of a failing span before it is quarantined. `broken`: why the job cannot go
    on. `proven`: kinds of tasks of which some record was used, so that the definition works.
    `failures`, by kind; `of_no_record`: those in a row that were about none. `deaths`: endings at a
    known span, of a kind that is not proven; `by_chance`: endings that were no span's doing;
    `survived`: leases that ended otherwise, and careful spans.
    """

    plan: Plan
    tolerance: int
    quarantined: list[Quarantine] = field(default_factory=list)
    broken: str | None = None
    proven: set[Kind] = field(default_factory=set)
    failures: Counter[Kind] = field(default_factory=Counter)
    of_no_record: int = 0
    deaths: Counter[Kind] = field(default_factory=Counter)
    by_chance: int = 0
    survived: int = 0

    # -- what went well

    def prove(self, task: Task, position: int) -> None:
        """Note that the positions before this one were computed, or skipped."""
        if task.kind not in self.proven and any(p not in task.skips for p in range(position)):
            self.proven.add(task.kind)

    def survive(self) -> None:
        """Count a lease, or a careful span, that has not ended its worker."""
        self.survived += 1

    def survive_whole(self) -> None:
        """Count a lease that was done to its end, callbacks and all."""
        self.of_no_record = 0
        self.survived += 1

    def finish(self, task: Task) -> None:
        """Note that a task is done: where workers ended at it, that was chance."""
        self.prove(task, task.size)
        task.trying.clear()
        task.ended = None
        self.by_chance += sum(task.deaths.values())
        task.deaths.clear()

    def forgive(self, tasks: Iterable[Task]) -> None:
        """Forget what counted against these tasks, and against the job."""
        self.broken = None
        self.failures.clear()
        self.of_no_record = 0
        self.deaths.clear()
        self.by_chance = 0
        for task in tasks:
            task.tries.clear()
            task.deaths.clear()
            task.ends, task.ended = 0, None

    # -- what did not

    def count(self, task: Task, failure: Failure) -> None:
        """Count a failure of a task's content; what comes before it was computed."""
        self.prove(task, failure.start)
        if failure.start == failure.end:
            self.of_no_record += 1
            hopeless = self.of_no_record >= self.tolerance
        else:
            task.failure = failure
            task.tries[failure.start] = task.tries.get(failure.start, 0) + 1
            self.failures[task.kind] += 1
            unproven = task.kind not in self.proven
            hopeless = unproven and self.failures[task.kind] >= self.tolerance + 2
        if hopeless:
            self._break(task, failure)

    def weigh_ending(self, task: Task, table: TaskTable) -> None:
        """Find out whose doing it was that the task's last worker ended, where it did."""
        ending, task.ended = task.ended, None
        if ending is None:
            return
        start = ending.start
        before = table.tasks.get(ending.before)
        if start < 0 and before is not None and before.state != State.DONE:
            return  # it was not begun: its worker had leased it for later
        if start < 0 or task.position > start:  # nobody knows where, or it had got beyond
            if task.position != task.ended_at:
                task.ends, task.ended_at = 0, task.position
            self.by_chance += not ending.certain
            task.ends += CAREFUL_AT if ending.certain else 1
        else:
            self._weigh_death(task, ending, table)

    def _weigh_death(self, task: Task, ending: Ending, table: TaskTable) -> None:
        """Count an ending at a known span, and blame the span where that is no chance any more."""
        start, kind = ending.start, task.kind
        deaths = task.deaths[start] = task.deaths.get(start, 0) + 1
        task.tries[start] = task.tries.get(start, 0) + ending.certain
        times = f"{deaths} times; the last time it" if deaths > 1 else "once: it"
        place = f"position {start}" if start < ending.end else "the end"
        error = f"{place} of task {task.id} has ended its worker {times} {ending.how}"
        failure = Failure(start, ending.end, error)
        self.failures[kind] += ending.certain
        if kind not in self.proven:
            self.deaths[kind] += 1
            hopeless = self.failures[kind] >= self.tolerance + 2
            if hopeless or beyond_chance(self.deaths[kind], 0, 0):
                self._break(task, failure)
        if task.tries[start] >= self.tolerance:
            task.failure = failure
        elif beyond_chance(deaths, self._endings_but_at(task, start, table), self.survived):
            task.failure, task.tries[start] = failure, self.tolerance
        elif ending.certain and start < ending.end:
            task.failure = failure  # to the back, as any failure
        if task.tries[start] >= self.tolerance:
            del task.deaths[start]  # they are explained

    def _endings_but_at(self, task: Task, start: int, table: TaskTable) -> int:
        """Count endings elsewhere that may be chance.

        Few of one place count, which may be a span's doing.
        """
        places = ((t, at, n) for t in table.begun.values() for at, n in t.deaths.items())
        others = (min(n, _OF_ONE_PLACE) for t, at, n in places if (t, at) != (task, start))
        return self.by_chance + sum(others)

    def quarantine(self, task: Task, anything_left: Callable[[Kind], bool]) -> None:
        """Skip the positions to blame from now on, after so many tries, and name them (rule 7).

        anything_left: tells whether some record of a kind of task is not skipped and not done.
        """
        failure, task.failure = task.failure, None
        if failure is None or task.tries[failure.start] < self.tolerance:
            return
        del task.tries[failure.start]  # what else is broken in the span has tries of its own
        shuffled = self.plan.shuffle and task.kind == Kind.TRAIN
        offsets = order(self.plan.seed, task.epoch, task.id, task.size, shuffled)
        blamed = [p for p in range(failure.start, failure.end) if p < task.size]
        if failure.record is not None:
            named = [p for p in blamed if task.start + int(offsets[p]) == failure.record]
            blamed = named or blamed
        blamed = [p for p in blamed if p not in task.skips]
        task.skips.update(blamed)
        if not blamed or (task.kind not in self.proven and not anything_left(task.kind)):
            self._break(task, failure)
            return
        where = failure.source or task.source
        records = tuple(sorted(task.start + int(offsets[p]) for p in blamed))
        found = Quarantine(task.id, where, records, failure.error, task.kind, task.epoch)
        self.quarantined.append(found)
        task.tell(f"quarantined records {list(records)}")

    def _break(self, task: Task, failure: Failure) -> None:
        where = failure.source or task.source
        at = ", ".join(filter(None, (where, f"{task.kind.name.lower()} task {task.id}")))
        self.broken = self.broken or f"{failure.error} ({at})"
