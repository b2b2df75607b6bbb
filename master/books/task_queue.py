"""The task queue: who does which records, so that each is applied exactly once. Pure.

    todo --lease--> leased --done--> done --durable--> (retired)
      ^                |               |
      |   lost, failed, handed back    |  a server lacks it
      +--- fenced <--- fencing <-------+

A lease ends with its worker (leases.py). A train task that comes back is first fenced: every shard
refuses its old attempt from then on and says up to which position it applied the task. It is leased
again from the least of these positions, with the others as boundaries of its minibatches, so that
each shard drops exactly what it has. Tasks that push nothing (evaluate, predict, the two ends) come
back at once, from their beginning; results of old attempts are refused.

A server that was replaced stands where its snapshot does: tasks that were done are fenced and
leased again from there, and a position that was reached is reached no more (`recovered`). A task
that was done under servers that have been replaced since is fenced too, to see how far it is.

In which order tasks are leased says todo.py, and what failures count against failures.py.

Events may come twice, late and in any order: what is not about the current lease changes nothing
and is answered as before. An event that no order of messages can explain raises IllegalTransition.
Fences to send are a state (`fencing`), not an event, so that none is ever forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from .endings import Ending
from .plan import Kind, Piece
from .queue_view import QueueView
from .task import UNPLANNED_IDS, Failure, Fence, IllegalTransition, State, Task
from .todo import CAME_BACK, FAILED, FRESH

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Decision(Protocol[Result_co]):
    """A decision of the books: see decisions.py, which has them all."""

    def apply(self, queue: TaskQueue, /) -> Result_co:
        """Make the decision, and return what the queue answers."""
        ...


class TaskQueue(QueueView):
    """The books of a job's tasks: each public method is an event that changes them.

    `tolerance`: tries of a failing span before it is quarantined.
    """

    def decide(self, decision: Decision[Result]) -> Result:
        """Make one decision; the same ones in the same order always give the same queue."""
        return decision.apply(self)

    # -- what there is to do

    def open_epoch(self, group: str = "") -> int:
        """Open the next epoch, so that its tasks may be leased; returns its number."""
        tasks = self._epochs.open_next(group)
        self._table.expect(group, len(tasks))
        return self._epochs.opened - 1

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
            number = self._table.next_id()
            task = Task(number, kind, source, start, end, epoch, cut, payload, group)
            self._table.add(task)
            self._todo.push(task, FRESH)
            ids.append(number)
        return ids

    def close(self) -> None:
        """Begin no more of the plan: what has begun is done to its end, the rest stays undone."""
        self._epochs.close()

    # -- events of workers

    def lease(self, worker: str, request: str, planned: bool | None = None) -> Task | None:
        """Lease the next task for a worker's request, and return it; None: none now.

        A request that is repeated gets the same lease again. planned: only one of the plan, where
        none outside of it comes first; or only one outside.
        """
        given = self.leases.given(worker, request)
        if given is not None:  # a repeat, however late, never leases another task
            return self.leases.current(worker, *given)
        number = self._todo.first(self._epochs.next_untouched)
        if number is None or planned not in (None, number < UNPLANNED_IDS):
            return None
        task = self._table.tasks.get(number)
        if task is not None:
            self._todo.pop()
        else:
            task = self._table.tasks[number] = self._epochs.touch(number)
        self.leases.grant(task, worker, request)
        self._table.begin(task)
        return task

    def lease_some(self, worker: str, request: str, most: int) -> list[Task]:
        """Lease the next tasks for a worker's request, at most so many; empty: none now.

        A request that is repeated gets those of its tasks that the worker still holds. A task to be
        done with care comes last.
        """
        names = (f"{request}#{number}" for number in itertools.count())
        if self.leases.knows(worker, f"{request}#0"):
            known = itertools.takewhile(lambda name: self.leases.knows(worker, name), names)
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

    def progress(self, worker: str, task: int, attempt: int, position: int) -> None:
        """Hear how far all shards have acknowledged a worker's lease. For the eye only."""
        current = self.leases.current(worker, task, attempt)
        if current is not None and position <= current.size:
            current.heard = max(current.heard, position)
            self._failures.prove(current, position)

    def prove(self, kind: Kind) -> None:
        """Know that some record of such a task was used, as `progress` has found."""
        self._failures.proven.add(kind)

    def done(
        self, worker: str, task: int, attempt: int, result: bytes = b"", doubtful: bool = False
    ) -> bool:
        """End a lease that is done: all shards have all its spans.

        False: it is the worker's no more.

        doubtful: by shards of which one has been replaced since, and may lack them.
        """
        current = self.leases.current(worker, task, attempt)
        if current is None:
            return self.leases.answer_again(worker, task, attempt)
        if doubtful and current.kind == Kind.TRAIN:
            self._come_back(current, f"done by {worker}, at servers of which one was replaced")
            return self.leases.confirm(worker, task, attempt)
        self.leases.release(current)
        self._failures.survive_whole()
        current.result = result
        current.tell(f"attempt {attempt} done by {worker}")
        self._finish(current)
        return self.leases.confirm(worker, task, attempt)

    def hand_back(self, worker: str, task: int, attempt: int) -> bool:
        """Take a lease back that its worker gives up. False: it is the worker's no more.

        Where the task goes on, the fence tells.
        """
        current = self.leases.current(worker, task, attempt)
        if current is None:
            return self.leases.answer_again(worker, task, attempt)
        self._failures.survive()
        self._come_back(current, f"handed back by {worker}")
        return self.leases.confirm(worker, task, attempt)

    def failed(self, worker: str, task: int, attempt: int, failure: Failure) -> bool:
        """End a lease with a span whose content failed. False: it is the worker's no more.

        An empty span: what failed was about no record (a callback, the end of an evaluation).
        """
        current = self.leases.current(worker, task, attempt)
        if current is None:
            return self.leases.answer_again(worker, task, attempt)
        self._failures.count(current, failure)
        self._come_back(current, f"failed with {worker} at {failure.start}: {failure.error}")
        return self.leases.confirm(worker, task, attempt)

    # -- events of membership and shards

    def tries(
        self, worker: str, task: int, attempt: int, start: int, end: int, lessee: str = ""
    ) -> None:
        """Note that the worker begins with this span, and does nothing beside.

        `lessee`: its round, which holds the lease. An empty span: what is done at the task's end.
        """
        current = self.leases.current(lessee or worker, task, attempt)
        if current is not None and 0 <= start <= end <= current.size:
            if worker in current.trying:  # the span before
                self._failures.survive()
            current.trying[worker] = (start, end)

    def ended(
        self, worker: str, how: str, certain: bool, lessee: str = ""
    ) -> list[tuple[int, int, int]]:
        """Note that the worker's process has ended, and nobody had asked for that; `lost` follows.

        Returns the spans that it was at: [task, start, endings so far].
        """
        at = []
        held_by_round = self.leases.held_by(lessee) if lessee else []
        for held in (self.leases.held_by(worker), held_by_round):
            before = 0
            for task in held:
                start, end = task.trying.get(worker, (-1, -1))
                task.ended = Ending(how, certain, start, end, before)
                before = task.id
                if start >= 0:
                    at.append((task.id, start, task.deaths.get(start, 0) + 1))
        return at

    def lost(self, worker: str) -> list[Fence]:
        """End the leases of a worker that is gone; returns the fences that this makes necessary."""
        held = self.leases.held_by(worker)
        for task in held:
            self._come_back(task, f"lost with {worker}")
        self.leases.forget_requests(worker)
        return [Fence(t.id, t.attempt) for t in held if t.state == State.FENCING]

    def fenced(self, task: int, attempt: int, applied: Sequence[int]) -> None:
        """Have a task go on, since every shard refuses attempts below `attempt`.

        `applied`: each one's position.
        """
        current = self._table.tasks.get(task)
        if current is None or attempt < current.attempt or current.state != State.FENCING:
            return  # late: fenced again since, or leased again by the first of two answers
        if attempt > current.attempt or not applied:
            raise current.illegal(f"fenced with attempt {attempt}")
        if not current.position <= min(applied) <= max(applied) <= current.size:
            raise current.illegal(f"fenced at {list(applied)} of {current.size}")
        del self._table.fencing[task]
        ahead = max(applied)  # of its last lease, unless an earlier one had got as far
        own = ahead if ahead > max(current.boundaries, default=0) else 0
        self._table.redo(current, max(current.reached, own) - min(applied))
        current.reached, current.position = 0, min(applied)
        current.boundaries = tuple(sorted({p for p in applied if p > current.position}))
        current.tell(f"attempt {attempt} fenced at {list(applied)}")
        current.heard = 0
        if current.position == current.size:
            self._finish(current)
        else:
            self._failures.prove(current, current.position)
            self._requeue(current)

    def forgive(self) -> None:
        """Forget what counted against the tasks: a job that has failed goes on."""
        self._failures.forgive(self._table.tasks.values())

    def recovered(self, applied: Mapping[int, int]) -> None:
        """Fall back to where a replaced shard stands: its positions of the tasks in `unretired`."""
        for number, position in applied.items():
            task = self._table.tasks.get(number)
            if task is None or position > task.size:
                raise IllegalTransition(
                    f"a server was restored with {position} positions of task {number}, which "
                    "are more than it has, or it has none any more"
                )
            if position >= task.position and task.state != State.DONE:
                if task.state == State.LEASED:  # its worker will find a gap there
                    self._table.redo(task, task.heard - position)
                continue
            task.tell(f"a server was restored at {position}")
            if task.state == State.DONE:
                if position == task.size:
                    continue
                self._reopen(task)
            elif task.state in (State.TODO, State.LEASED):
                self._table.redo(task, max(task.position, task.heard) - position)
                ahead = {task.position, *task.boundaries}
                task.boundaries = tuple(sorted(p for p in ahead if p > position))
            task.position = min(task.position, position)
            task.heard = min(task.heard, position)

    def doubt(self, task: int, position: int) -> None:
        """Fence a train task of which shards do not stand where they should, to see where they do.

        `position`: the least of theirs. The task goes on from there; whoever holds it loses it.
        """
        is_untouched = task not in self._table.tasks
        if is_untouched:
            self._table.tasks[task] = self._epochs.touch(task)
        current = self._table.tasks[task]
        if current.kind != Kind.TRAIN or current.state == State.FENCING:
            return
        current.tell(f"doubted: a server stands at {position}")
        if current.state == State.DONE:
            self._reopen(current)
        elif current.state == State.LEASED:
            self._come_back(current, "doubted")
        else:
            if not is_untouched:
                self._todo.remove(task)
            self._table.fence(current)
        current.position = min(current.position, position)
        current.heard = min(current.heard, position)

    def cancel(self, group: str) -> None:
        """Forget the tasks of a group; whoever holds one is fenced."""
        for task in [t for t in self._table.tasks.values() if t.group == group]:
            if task.id < UNPLANNED_IDS:
                raise task.illegal(f"cancelled with group {group}")
            if task.state == State.TODO:
                self._todo.remove(task.id)
            if task.state == State.LEASED:
                self.leases.release(task)
            self._table.forget(task)
        del self._table.open_of_group[group]

    def durable(self, tasks: Iterable[int]) -> None:
        """Retire these tasks, all done, which need not be remembered. Again is harmless."""
        for number in tasks:
            task = self._table.tasks.get(number)
            if task is not None:
                self._table.retire(task)

    # -- inside

    def _come_back(self, task: Task, why: str) -> None:
        """End the lease of a task that is not done: it is fenced, or waits again at once."""
        task.must_be(State.LEASED, why)
        self.leases.release(task)
        task.tell(f"attempt {task.attempt} {why}")
        task.trying.clear()
        if task.kind == Kind.TRAIN:
            self._table.fence(task)
            return
        task.attempt += 1
        self._table.redo(task, task.heard)
        task.heard = 0
        self._requeue(task)

    def _requeue(self, task: Task) -> None:
        """Have a task wait again.

        After a failure at the back, unless its shards must be level first.
        """
        self._failures.weigh_ending(task, self._table)
        at_the_back = task.failure is not None and not task.boundaries
        self._failures.quarantine(task, self._anything_left)
        task.state = State.TODO
        if at_the_back:
            self._todo.push(task, FAILED, behind=self._failures.failures.total())
        else:
            self._todo.push(task, CAME_BACK)

    def _finish(self, task: Task) -> None:
        self._failures.finish(task)
        self._table.finish(task)
        self._epochs.finish(task)

    def _reopen(self, task: Task) -> None:
        """Fence a train task that was done, and is not any more."""
        self._table.reopen(task)
        self._epochs.reopen(task)

    def _anything_left(self, kind: Kind) -> bool:
        """Tell whether a task of this kind that is not done has a record that is not skipped."""
        if kind == self.plan.kind and self._epochs.next_untouched is not None:
            return True
        return any(len(task.skips) < task.size for task in self._table.open_tasks(kind))
