"""The task queue: who does which records, so that each is applied exactly once. Pure.

    todo --lease--> leased --done--> done --durable--> (retired)
      ^                |               |
      |   lost, failed, handed back    |  a server lacks it
      +--- fenced <--- fencing <-------+

A lease is (task, attempt, worker incarnation); it ends with its worker: its deadline is the worker's
(membership.py), so that any sign of life renews all leases. A train task that comes back is first
fenced: every shard refuses its old attempt from then on and says up to which position it applied
the task. It is leased again from the least of these positions, with the others as boundaries of its
minibatches, so that each shard drops exactly what it has. Tasks that push nothing (evaluate,
predict, the two ends) come back at once, from their beginning; results of old attempts are refused.

A server that was replaced stands where its snapshot does: tasks that were done are fenced and leased
again from there, and a position that was reached is reached no more (`recovered`). A task that was
done under servers that have been replaced since is fenced too, to see how far it is.

Tasks that came back go first, evaluations go before training, and the tasks of an epoch are leased
only when the epoch is opened. Preemption never counts against a task. A task that failed goes to the
back, so that others prove the definition meanwhile. A span whose content fails `tolerance` times is
quarantined: its positions join `skips` and `quarantined`. `broken` tells where that would be wrong:
the definition fails everywhere (`tolerance` + 2 failures before any record of that kind of task was
used, or nothing would be left), or it failed `tolerance` times at no record (an end, a callback).

A worker that ends while it holds a lease may have been ended by what it computed. A task that comes
back so without progress (twice, or once where the process did it itself) is leased as `careful`: its
worker does one span after the other and nothing beside, and says which one before it begins
(`tries`). If it ends then, that counts for the span (`ended`): as a failure of its content where the
process did it itself, else once it is beyond chance (endings.py). Only endings count that nobody has
asked for.

Events may come twice, late and in any order: what is not about the current lease changes nothing
and is answered as before. An event that no order of messages can explain raises IllegalTransition.
Fences to send are a state (`fencing`), not an event, so that none is ever forgotten.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from ..common.order import order
from .endings import Ending, beyond_chance
from .plan import Kind, Piece, Plan
from .task import (
    CAREFUL_AT,
    UNPLANNED_IDS,
    Failure,
    Fence,
    IllegalTransition,
    Quarantine,
    QueueState,
    State,
    Task,
    planned,
)

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

_REPORTS_KEPT = (
    64  # answers kept per worker for repeated reports; a worker holds few leases at once
)
_OF_ONE_PLACE = 5  # endings that count for how often chance strikes
# Which tasks go first, of those outside of the plan and then of the plan.
_CAME_BACK, _FRESH, _FAILED, _RANKS = range(4)


class Decision(Protocol[Result_co]):
    """A decision of the books: see decisions.py, which has them all."""

    def apply(self, queue: TaskQueue, /) -> Result_co:
        """Make it, and return what the queue answers."""
        ...


class TaskQueue:
    """See the module. `tolerance`: tries of a failing span before it is quarantined."""

    def __init__(self, plan: Plan, *, tolerance: int = 3) -> None:
        self.plan = plan
        self.tolerance = tolerance
        self.tasks: dict[int, Task] = {}  # not retired, and not among the untouched ones
        # Tasks of opened epochs that nobody has leased: first id, one past the last, group. They are
        # made when they are: however many there are, they cost nothing.
        self._untouched: list[tuple[int, int, str]] = []
        self.opened = 0  # epochs opened
        self.closed = False  # nothing more of the plan is begun
        self.quarantined: list[Quarantine] = []
        self.broken: str | None = None  # why the job cannot go on
        self.proven: set[Kind] = set()  # some record of such a task was used: the definition works
        self._failures: Counter[Kind] = Counter()
        self._failures_of_no_record = 0  # in a row
        self._deaths: Counter[Kind] = Counter()  # endings at a known span, of a kind not proven
        self._by_chance = 0  # endings that were no span's doing
        self._survived = 0  # leases that ended otherwise, and careful spans
        self._todo: list[tuple[int, int, int]] = []  # heap of (rank, failures so far, id)
        self._leased: dict[int, None] = {}
        self._held: dict[str, dict[int, None]] = {}  # the same, by who holds it
        self._fencing: dict[int, None] = {}
        self._done: dict[int, None] = {}
        self._results: dict[int, None] = {}  # those of them that pushed nothing
        self._begun: dict[int, None] = {}  # not done, but leased before
        self._open_of_epoch: Counter[int] = Counter()
        self._open_of_group: Counter[str] = Counter()
        self._records_done = 0
        self._tasks_done = 0
        self._next_unplanned = UNPLANNED_IDS
        self._low = plan.first_id
        self._answers: dict[str, OrderedDict[tuple[int, int], bool]] = {}
        self._requests: dict[str, OrderedDict[str, tuple[int, int]]] = {}  # worker, request: lease

    def decide(self, decision: Decision[Result]) -> Result:
        """Make one decision; the same ones in the same order always give the same queue."""
        return decision.apply(self)

    # -- what there is to do

    def open_epoch(self, group: str = "") -> int:
        """Make the tasks of the next epoch; returns its number."""
        epoch = self.opened
        if not self.plan.overlap_epochs and not self.epochs_done(epoch):
            raise IllegalTransition(
                f"epoch {epoch} opened while {self._open_of_epoch} tasks of earlier ones are open"
            )
        if self.plan.epochs is not None and epoch >= self.plan.epochs:
            raise IllegalTransition(f"epoch {epoch} opened of {self.plan.epochs}")
        self.opened += 1
        first, tasks = self.plan.first_id_of(epoch), self.plan.tasks_of(epoch)
        self._leave_untouched(first, first + tasks, group)
        return epoch

    def add(
        self,
        kind: Kind,
        pieces: Iterable[Piece],
        *,
        epoch: int = 0,
        cut: str = "",
        payload: bytes = b"",
        group: str = "",
    ) -> list[int]:
        """Make tasks outside of the plan; returns their ids."""
        ids = []
        for source, start, end in pieces:
            number = self._next_unplanned
            self._next_unplanned += 1
            self._add(
                Task(number, kind, source, start, end, epoch, cut, payload, group),
            )
            ids.append(number)
        return ids

    def close(self) -> None:
        """Begin no more of the plan: what has begun is done to its end, the rest stays undone."""
        if self.closed:
            return
        self.closed = True
        for first, end, _ in self._untouched:
            self._open_of_epoch[self.plan.epoch_of(first)] -= end - first

    # -- events of workers

    def lease(self, worker: str, request: str, planned: bool | None = None) -> Task | None:
        """The task for a worker's request; None: none now. Asked again, the same lease again.

        planned: only one of the plan, where none outside of it comes first; or only one outside.
        """
        known = self._requests.setdefault(worker, OrderedDict())
        if request in known:  # a repeat, however late, never leases another task
            return self._current(worker, *known[request])
        number = self._next()
        if number is None or planned not in (None, number < UNPLANNED_IDS):
            return None
        task = self.tasks.get(number)
        if task is not None:
            heapq.heappop(self._todo)
        else:
            task = self._touch(number)
        self._must(task, State.TODO, "lease")
        task.state = State.LEASED
        task.worker = worker
        task.tell(f"attempt {task.attempt} leased by {worker} at {task.position}")
        self._leased[task.id] = None
        self._held.setdefault(worker, {})[task.id] = None
        self._begun[task.id] = None
        known[request] = (task.id, task.attempt)
        while len(known) > _REPORTS_KEPT:
            known.popitem(last=False)
        return task

    def lease_some(self, worker: str, request: str, most: int) -> list[Task]:
        """The next tasks for a worker's request, at most so many; empty: none now.

        Asked again, those of them that it still holds. A task to be done with care comes last.
        """
        names = (f"{request}#{number}" for number in itertools.count())
        if self.knows(worker, f"{request}#0"):
            known = itertools.takewhile(lambda name: self.knows(worker, name), names)
            again = [self.lease(worker, name) for name in known]
            return [task for task in again if task is not None]
        tasks: list[Task] = []
        for name in itertools.islice(names, most):
            task = self.lease(worker, name)
            if task is not None:
                tasks.append(task)
            if task is None or task.careful:
                break
        return tasks

    def holds(self, worker: str, task: int, attempt: int) -> bool:
        """The worker (or round) has this lease now."""
        return self._current(worker, task, attempt) is not None

    def knows(self, worker: str, request: str) -> bool:
        """The request was given a task."""
        return request in self._requests.get(worker, ())

    def progress(self, worker: str, task: int, attempt: int, position: int) -> None:
        """The worker says how far all shards have acknowledged its lease. For the eye only."""
        current = self._current(worker, task, attempt)
        if current is not None and position <= current.size:
            current.heard = max(current.heard, position)
            self._prove(current, position)

    def prove(self, kind: Kind) -> None:
        """Some record of such a task was used, as `progress` has found."""
        self.proven.add(kind)

    def done(
        self, worker: str, task: int, attempt: int, result: bytes = b"", doubtful: bool = False
    ) -> bool:
        """A lease is done: all shards have all its spans. False: it is the worker's no more.

        doubtful: by shards of which one has been replaced since, and may lack them.
        """
        current = self._current(worker, task, attempt)
        if current is None:
            return self._answer(worker, task, attempt)
        if doubtful and current.kind == Kind.TRAIN:
            self._come_back(current, f"done by {worker}, at servers of which one was replaced")
            return self._answer(worker, task, attempt, True)
        self._let_go(current)
        self._failures_of_no_record = 0
        self._survived += 1
        current.result = result
        current.tell(f"attempt {attempt} done by {worker}")
        self._finish(current)
        return self._answer(worker, task, attempt, True)

    def hand_back(self, worker: str, task: int, attempt: int) -> bool:
        """The worker gives its lease back. Where the task goes on, the fence tells. False: fenced."""
        current = self._current(worker, task, attempt)
        if current is None:
            return self._answer(worker, task, attempt)
        self._survived += 1
        self._come_back(current, f"handed back by {worker}")
        return self._answer(worker, task, attempt, True)

    def failed(self, worker: str, task: int, attempt: int, failure: Failure) -> bool:
        """The content of a span failed. False: the lease is the worker's no more.

        An empty span: what failed was about no record (a callback, the end of an evaluation).
        """
        current = self._current(worker, task, attempt)
        if current is None:
            return self._answer(worker, task, attempt)
        self._prove(current, failure.start)  # what comes before was computed
        if failure.start == failure.end:
            self._failures_of_no_record += 1
            hopeless = self._failures_of_no_record >= self.tolerance
        else:
            current.failure = failure
            current.tries[failure.start] = current.tries.get(failure.start, 0) + 1
            self._failures[current.kind] += 1
            unproven = current.kind not in self.proven
            hopeless = unproven and self._failures[current.kind] >= self.tolerance + 2
        if hopeless:
            self._break(current, failure)
        self._come_back(current, f"failed with {worker} at {failure.start}: {failure.error}")
        return self._answer(worker, task, attempt, True)

    # -- events of membership and shards

    def tries(
        self, worker: str, task: int, attempt: int, start: int, end: int, lessee: str = ""
    ) -> None:
        """The worker begins with this span, and does nothing beside. `lessee`: its round, which
        holds the lease. An empty span: what is done at the task's end."""
        current = self._current(lessee or worker, task, attempt)
        if current is not None and 0 <= start <= end <= current.size:
            self._survived += worker in current.trying  # the span before
            current.trying[worker] = (start, end)

    def ended(
        self, worker: str, how: str, certain: bool, lessee: str = ""
    ) -> list[tuple[int, int, int]]:
        """The worker's process has ended, and nobody had asked for that; `lost` follows.

        Returns the spans that it was at: [task, start, endings so far].
        """
        at = []
        for held in (self.held_by(worker), self.held_by(lessee) if lessee else []):
            before = 0
            for task in held:
                start, end = task.trying.get(worker, (-1, -1))
                task.ended = Ending(how, certain, start, end, before)
                before = task.id
                if start >= 0:
                    at.append((task.id, start, task.deaths.get(start, 0) + 1))
        return at

    def lost(self, worker: str) -> list[Fence]:
        """The worker is gone: its leases end. Returns the fences that this makes necessary."""
        held = self.held_by(worker)
        for task in held:
            self._come_back(task, f"lost with {worker}")
        self._requests.pop(worker, None)  # it asks no more
        return [Fence(t.id, t.attempt) for t in held if t.state == State.FENCING]

    def fenced(self, task: int, attempt: int, applied: Sequence[int]) -> None:
        """Every shard refuses attempts below `attempt`; `applied`: each one's position."""
        current = self.tasks.get(task)
        if current is None or attempt < current.attempt or current.state != State.FENCING:
            return  # late: fenced again since, or leased again by the first of two answers
        if attempt > current.attempt or not applied:
            raise self._illegal(current, f"fenced with attempt {attempt}")
        if not current.position <= min(applied) <= max(applied) <= current.size:
            raise self._illegal(current, f"fenced at {list(applied)} of {current.size}")
        del self._fencing[task]
        current.position = min(applied)
        current.boundaries = tuple(sorted({p for p in applied if p > current.position}))
        current.tell(f"attempt {attempt} fenced at {list(applied)}")
        current.heard = 0
        if current.position == current.size:
            self._finish(current)
        else:
            self._prove(current, current.position)
            self._requeue(current)

    def forgive(self) -> None:
        """A job that has failed goes on: what counted against its tasks is forgotten."""
        self.broken = None
        self._failures.clear()
        self._failures_of_no_record = 0
        self._deaths.clear()
        self._by_chance = 0
        for task in self.tasks.values():
            task.tries.clear()
            task.deaths.clear()
            task.ends, task.ended = 0, None

    def recovered(self, applied: Mapping[int, int]) -> None:
        """A shard was replaced by one that stands at these positions of the tasks in `unretired`."""
        for number, position in applied.items():
            task = self.tasks.get(number)
            if task is None or position > task.size:
                raise IllegalTransition(
                    f"a server was restored with {position} positions of task {number}, which "
                    "are more than it has, or it has none any more"
                )
            if position >= task.position and task.state != State.DONE:
                continue
            task.tell(f"a server was restored at {position}")
            if task.state == State.DONE:
                if position == task.size:
                    continue
                self._reopen(task)
            elif task.state in (State.TODO, State.LEASED):
                ahead = {task.position, *task.boundaries}
                task.boundaries = tuple(sorted(p for p in ahead if p > position))
            task.position = min(task.position, position)
            task.heard = min(task.heard, position)

    def doubt(self, task: int, position: int) -> None:
        """Shards do not stand where a train task should; `position`: the least of theirs.

        It is fenced, to see where they do stand, and goes on from there; whoever holds it loses it.
        """
        is_untouched = task not in self.tasks
        current = self._touch(task) if is_untouched else self.tasks[task]
        if current.kind != Kind.TRAIN or current.state == State.FENCING:
            return
        current.tell(f"doubted: a server stands at {position}")
        if current.state == State.DONE:
            self._reopen(current)
        elif current.state == State.LEASED:
            self._come_back(current, "doubted")
        else:
            if not is_untouched:
                self._todo = [entry for entry in self._todo if entry[-1] != task]
                heapq.heapify(self._todo)
            current.state = State.FENCING
            current.attempt += 1
            self._fencing[task] = self._begun[task] = None
        current.position = min(current.position, position)
        current.heard = min(current.heard, position)

    def cancel(self, group: str) -> None:
        """Forget the tasks of a group; whoever holds one is fenced."""
        for task in [t for t in self.tasks.values() if t.group == group]:
            if task.id < UNPLANNED_IDS:
                raise self._illegal(task, f"cancelled with group {group}")
            if task.state == State.TODO:
                self._todo = [entry for entry in self._todo if entry[-1] != task.id]
                heapq.heapify(self._todo)
            if task.state == State.LEASED:
                self._let_go(task)
            for places in (self.tasks, self._done, self._results, self._begun):
                places.pop(task.id, None)
        del self._open_of_group[group]

    def durable(self, tasks: Iterable[int]) -> None:
        """These tasks, all done, need not be remembered: they are retired. Again is harmless."""
        for number in tasks:
            task = self.tasks.get(number)
            if task is not None:
                self._must(task, State.DONE, "durable")
                del self.tasks[number], self._done[number]
                self._results.pop(number, None)

    # -- views

    @property
    def fencing(self) -> list[Fence]:
        """Fences that every shard must answer."""
        return [Fence(number, self.tasks[number].attempt) for number in self._fencing]

    @property
    def done_tasks(self) -> list[int]:
        """Done, not yet retired."""
        return list(self._done)

    @property
    def done_results(self) -> list[int]:
        """Those that pushed nothing: no server need know of them."""
        return list(self._results)

    @property
    def unretired(self) -> dict[int, int]:
        """Train tasks of which a shard's ledger may have something: their attempts."""
        there = (self.tasks[n] for n in (*self._begun, *self._done))
        return {t.id: t.attempt for t in there if t.kind == Kind.TRAIN}

    def find(self, number: int) -> Task | None:
        """The task, where it is not retired; one that nobody has touched as it would be made."""
        known = self.tasks.get(number)
        if known is None and any(first <= number < end for first, end, _ in self._untouched):
            return planned(self.plan, number)
        return known

    @property
    def low_water(self) -> int:
        """The first train task that is not retired: all below it are, for good."""
        end = self.plan.first_id_of(self.opened)
        if self._untouched:
            end = self._untouched[0][0]
        while self._low < end and self._low not in self.tasks:
            self._low += 1
        return self._low

    def epochs_done(self, epochs: int) -> bool:
        """The first so many epochs are done."""
        return self.opened >= epochs and not any(e < epochs for e in +self._open_of_epoch)

    @property
    def all_epochs_opened(self) -> bool:
        """Or no more of them is."""
        return self.closed or (self.plan.epochs is not None and self.opened >= self.plan.epochs)

    @property
    def plan_done(self) -> bool:
        """The plan is done: every task of it is."""
        return self.all_epochs_opened and self.epochs_done(self.opened)

    @property
    def has_todo(self) -> bool:
        return self._next() is not None

    @property
    def todo(self) -> int:
        """Tasks that may be leased now."""
        untouched = sum(end - first for first, end, _ in self._untouched)
        return len(self._todo) + (0 if self.closed else untouched)

    def group_done(self, group: str) -> bool:
        return not self._open_of_group[group]

    @property
    def leased_tasks(self) -> list[Task]:
        return [self.tasks[number] for number in self._leased]

    def held_by(self, worker: str) -> list[Task]:
        return [self.tasks[number] for number in self._held.get(worker, ())]

    @property
    def records_done(self) -> int:
        """Records of the plan that are applied (as far as was heard)."""
        begun = (self.tasks[n] for n in self._begun if n < UNPLANNED_IDS)
        return self._records_done + sum(max(t.position, t.heard) for t in begun)

    @property
    def uneven(self) -> bool:
        """Shards stand at different positions of a task, until somebody works on it."""
        return any(map(_is_uneven, (self.tasks[number] for number in self._begun)))

    @property
    def uneven_tasks(self) -> list[Task]:
        """Those tasks, and what is being fenced."""
        return [t for t in (self.tasks[number] for number in self._begun) if _is_uneven(t)]

    def counts(self) -> dict[str, int]:
        """Tasks by state; `done` counts retired ones too."""
        untouched = sum(end - first for first, end, _ in self._untouched)
        counts = {
            "todo": self.todo,
            "leased": len(self._leased),
            "fencing": len(self._fencing),
            "done": self._tasks_done,
        }
        return {**counts, "total": sum(counts.values()) + (untouched if self.closed else 0)}

    # -- to the journal and back

    def state(self) -> QueueState:
        """Return what a queue of the same plan and tolerance needs to be as this one. Nothing is copied."""
        return QueueState(
            tasks=list(self.tasks.values()),
            untouched=self._untouched,
            opened=self.opened,
            closed=self.closed,
            quarantined=self.quarantined,
            broken=self.broken,
            proven=self.proven,
            failures=self._failures,
            failures_of_no_record=self._failures_of_no_record,
            deaths=self._deaths,
            by_chance=self._by_chance,
            survived=self._survived,
            todo=self._todo,
            leased=list(self._leased),
            fencing=list(self._fencing),
            done=list(self._done),
            results=list(self._results),
            begun=list(self._begun),
            open_of_epoch=self._open_of_epoch,
            open_of_group=self._open_of_group,
            records_done=self._records_done,
            tasks_done=self._tasks_done,
            next_unplanned=self._next_unplanned,
            low=self._low,
            answers=self._answers,
            requests=self._requests,
        )

    def restore(self, state: QueueState) -> None:
        """Be as the queue whose state this is, which is not used by anybody else."""
        self.tasks = {task.id: task for task in state.tasks}
        self._untouched = state.untouched
        self.opened, self.closed = state.opened, state.closed
        self.quarantined = state.quarantined
        self.broken, self.proven = state.broken, state.proven
        self._failures = state.failures
        self._failures_of_no_record = state.failures_of_no_record
        self._deaths = state.deaths
        self._by_chance, self._survived = state.by_chance, state.survived
        self._todo = state.todo
        self._leased = dict.fromkeys(state.leased)
        self._held = {}
        for number in state.leased:
            self._held.setdefault(self.tasks[number].worker, {})[number] = None
        self._fencing = dict.fromkeys(state.fencing)
        self._done = dict.fromkeys(state.done)
        self._results = dict.fromkeys(state.results)
        self._begun = dict.fromkeys(state.begun)
        self._open_of_epoch = state.open_of_epoch
        self._open_of_group = state.open_of_group
        self._records_done, self._tasks_done = state.records_done, state.tasks_done
        self._next_unplanned, self._low = state.next_unplanned, state.low
        self._answers, self._requests = state.answers, state.requests

    # -- inside

    def _next(self) -> int | None:
        """The task that is leased next."""
        first = self._untouched[0][0] if self._untouched and not self.closed else None
        if self._todo and (first is None or self._todo[0] < (_RANKS + _FRESH, 0, first)):
            return self._todo[0][-1]
        return first

    def _leave_untouched(self, first: int, end: int, group: str = "") -> None:
        if first < end:
            self._untouched.append((first, end, group))
            self._open_of_epoch[self.plan.epoch_of(first)] += end - first
            if group:
                self._open_of_group[group] += end - first

    def _touch(self, number: int) -> Task:
        """Make a task that was untouched until now. Raises KeyError where it was not."""
        for place, (first, end, group) in enumerate(self._untouched):
            if first <= number < end:
                rest = ((first, number, group), (number + 1, end, group))
                self._untouched[place : place + 1] = [each for each in rest if each[0] < each[1]]
                task = self.tasks[number] = planned(self.plan, number, group)
                self._open_of_epoch[task.epoch] += self.closed  # it was no more counted
                return task
        raise KeyError(number)

    def _register(self, task: Task) -> None:
        self.tasks[task.id] = task
        if task.id < UNPLANNED_IDS:
            self._open_of_epoch[task.epoch] += 1
        if task.group:
            self._open_of_group[task.group] += 1

    def _add(self, task: Task) -> None:
        self._register(task)
        self._push(task, _FRESH)

    def _push(self, task: Task, rank: int) -> None:
        first = task.id >= UNPLANNED_IDS
        behind = self._failures.total() if rank == _FAILED else 0
        heapq.heappush(self._todo, (rank if first else _RANKS + rank, behind, task.id))

    def _requeue(self, task: Task) -> None:
        """After a failure to the back, unless a cut waits for its shards to be level."""
        self._weigh(task)
        rank = _CAME_BACK if task.failure is None or task.boundaries else _FAILED
        self._quarantine(task)
        task.state = State.TODO
        self._push(task, rank)

    def _prove(self, task: Task, position: int) -> None:
        """The positions before this one were computed, or skipped."""
        if task.kind not in self.proven and any(p not in task.skips for p in range(position)):
            self.proven.add(task.kind)

    def _break(self, task: Task, failure: Failure) -> None:
        where = failure.source or task.source
        at = ", ".join(filter(None, (where, f"{task.kind.name.lower()} task {task.id}")))
        self.broken = self.broken or f"{failure.error} ({at})"

    def _current(self, worker: str, number: int, attempt: int) -> Task | None:
        """The task if this worker holds it under this attempt."""
        task = self.tasks.get(number)
        if task is None or task.state != State.LEASED:
            return None
        return task if (task.worker, task.attempt) == (worker, attempt) else None

    def _answer(self, worker: str, task: int, attempt: int, given: bool | None = None) -> bool:
        """Give an answer and keep it, or give again the one that was given before."""
        answers = self._answers.setdefault(worker, OrderedDict())
        if given is None:
            return answers.get((task, attempt), False)
        answers[task, attempt] = given
        while len(answers) > _REPORTS_KEPT:
            answers.popitem(last=False)
        return given

    def _come_back(self, task: Task, why: str) -> None:
        self._must(task, State.LEASED, why)
        self._let_go(task)
        task.tell(f"attempt {task.attempt} {why}")
        task.trying.clear()
        task.attempt += 1
        if task.kind == Kind.TRAIN:
            task.state = State.FENCING
            self._fencing[task.id] = None
            return
        task.heard = 0
        self._requeue(task)

    def _let_go(self, task: Task) -> None:
        """Nobody holds it any more."""
        del self._leased[task.id]
        held = self._held[task.worker]
        del held[task.id]
        if not held:
            del self._held[task.worker]
        task.worker = ""

    def _finish(self, task: Task) -> None:
        self._prove(task, task.size)
        task.state = State.DONE
        task.trying.clear()
        task.ended = None
        self._by_chance += sum(task.deaths.values())
        task.deaths.clear()
        self._done[task.id] = None
        if task.kind != Kind.TRAIN:
            self._results[task.id] = None
        del self._begun[task.id]
        if task.group:
            self._open_of_group[task.group] -= 1
        if task.id < UNPLANNED_IDS:
            self._open_of_epoch[task.epoch] -= 1
            self._records_done += task.size
        self._tasks_done += 1

    def _reopen(self, task: Task) -> None:
        """A train task that was done, and is not any more."""
        del self._done[task.id]
        self._begun[task.id] = None
        if task.group:
            self._open_of_group[task.group] += 1
        self._open_of_epoch[task.epoch] += 1
        self._records_done -= task.size
        self._tasks_done -= 1
        task.state = State.FENCING
        task.attempt += 1
        task.position, task.heard = task.size, 0
        self._fencing[task.id] = None

    def _weigh(self, task: Task) -> None:
        """Whose doing it was that the task's last worker ended, where it did."""
        ending, task.ended = task.ended, None
        if ending is None:
            return
        start, kind = ending.start, task.kind
        before = self.tasks.get(ending.before)
        if start < 0 and before is not None and before.state != State.DONE:
            return  # it was not begun: its worker had leased it for later
        if start < 0 or task.position > start:  # nobody knows where, or it had got beyond
            if task.position != task.ended_at:
                task.ends, task.ended_at = 0, task.position
            self._by_chance += not ending.certain
            task.ends += CAREFUL_AT if ending.certain else 1
            return
        deaths = task.deaths[start] = task.deaths.get(start, 0) + 1
        task.tries[start] = task.tries.get(start, 0) + ending.certain
        times = f"{deaths} times; the last time it" if deaths > 1 else "once: it"
        place = f"position {start}" if start < ending.end else "the end"
        error = f"{place} of task {task.id} has ended its worker {times} {ending.how}"
        failure = Failure(start, ending.end, error)
        self._failures[kind] += ending.certain
        if kind not in self.proven:
            self._deaths[kind] += 1
            hopeless = self._failures[kind] >= self.tolerance + 2
            if hopeless or beyond_chance(self._deaths[kind], 0, 0):
                self._break(task, failure)
        if task.tries[start] >= self.tolerance:
            task.failure = failure
        elif beyond_chance(deaths, self._endings_but_at(task, start), self._survived):
            task.failure, task.tries[start] = failure, self.tolerance
        elif ending.certain and start < ending.end:
            task.failure = failure  # to the back, as any failure
        if task.tries[start] >= self.tolerance:
            del task.deaths[start]  # they are explained

    def _endings_but_at(self, task: Task, start: int) -> int:
        """Count endings elsewhere that may be chance: few of one place, which may be a span's doing."""
        begun = (self.tasks[number] for number in self._begun)
        places = ((t, at, n) for t in begun for at, n in t.deaths.items())
        others = (min(n, _OF_ONE_PLACE) for t, at, n in places if (t, at) != (task, start))
        return self._by_chance + sum(others)

    def _quarantine(self, task: Task) -> None:
        """Rule 7: after so many tries the positions to blame are never read again, and are named."""
        failure, task.failure = task.failure, None
        if failure is None or task.tries[failure.start] < self.tolerance:
            return
        del task.tries[failure.start]  # what else is broken in the span has tries of its own
        offsets = order(
            self.plan.seed,
            task.epoch,
            task.id,
            task.size,
            self.plan.shuffle and task.kind == Kind.TRAIN,
        )
        blamed = [p for p in range(failure.start, failure.end) if p < task.size]
        if failure.record is not None:
            named = [p for p in blamed if task.start + int(offsets[p]) == failure.record]
            blamed = named or blamed
        blamed = [p for p in blamed if p not in task.skips]
        task.skips.update(blamed)
        if not blamed or (task.kind not in self.proven and not self._anything_left(task.kind)):
            self._break(task, failure)
            return
        where = failure.source or task.source
        records = tuple(sorted(task.start + int(offsets[p]) for p in blamed))
        found = Quarantine(task.id, where, records, failure.error, task.kind, task.epoch)
        self.quarantined.append(found)
        task.tell(f"quarantined records {list(records)}")

    def _anything_left(self, kind: Kind) -> bool:
        """Tell whether a task of this kind that is not done has a record that is not skipped."""
        if kind == self.plan.kind and self._untouched and not self.closed:
            return True
        alike = (t for t in self.tasks.values() if t.kind == kind and t.state != State.DONE)
        return any(len(t.skips) < t.size for t in alike)

    def _must(self, task: Task, state: State, event: str) -> None:
        if task.state != state:
            raise self._illegal(task, event)

    def _illegal(self, task: Task, event: str) -> IllegalTransition:
        story = "; ".join(task.story)
        return IllegalTransition(
            f"task {task.id} is {task.state.value} (attempt {task.attempt}) and was told: {event}. "
            f"Its story: {story or 'none'}"
        )


def _is_uneven(task: Task) -> bool:
    ahead = max(task.boundaries, default=0)
    return task.state == State.FENCING or max(task.position, task.heard) < ahead
