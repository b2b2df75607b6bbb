"""The open leases, and the answers that workers would be given again. Pure.

A lease is (task, attempt, worker incarnation); it ends with its worker: its deadline is the
worker's (membership.py), so that any sign of life renews all leases. Messages may come twice and
late: a request that was given a task is given the same lease again, and a report the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from .task import State, Task

Key = TypeVar("Key")
Value = TypeVar("Value")
_REPORTS_KEPT = 64  # answers kept of a worker, should it ask again; it holds few leases at once


@dataclass(slots=True)
class Leases:
    """The tasks that are leased, by id, in the order in which they were.

    `answers`: by worker, what its reports of (task, attempt) were answered. `requests`: by worker,
    the (task, attempt) that each of its requests was given.
    """

    leased: dict[int, Task] = field(default_factory=dict)
    answers: dict[str, OrderedDict[tuple[int, int], bool]] = field(default_factory=dict)
    requests: dict[str, OrderedDict[str, tuple[int, int]]] = field(default_factory=dict)
    _held: dict[str, dict[int, Task]] = field(init=False)  # the same, by who holds it

    def __post_init__(self) -> None:
        self._held = {}
        for number, task in self.leased.items():
            self._held.setdefault(task.worker, {})[number] = task

    def __len__(self) -> int:
        """Return how many tasks are leased."""
        return len(self.leased)

    def given(self, worker: str, request: str) -> tuple[int, int] | None:
        """Return the task and the attempt that a worker's request was given; None: none so far."""
        known = self.requests.get(worker)
        return None if known is None else known.get(request)

    def grant(self, task: Task, worker: str, request: str) -> None:
        """Lease a task to a worker, for this request."""
        task.must_be(State.TODO, "lease")
        task.state = State.LEASED
        task.worker = worker
        task.tell(f"attempt {task.attempt} leased by {worker} at {task.position}")
        self.leased[task.id] = task
        self._held.setdefault(worker, {})[task.id] = task
        known = self.requests.setdefault(worker, OrderedDict())
        _keep(known, request, (task.id, task.attempt))

    def release(self, task: Task) -> None:
        """End a lease: nobody holds the task any more."""
        del self.leased[task.id]
        held = self._held[task.worker]
        del held[task.id]
        if not held:
            del self._held[task.worker]
        task.worker = ""

    def forget_requests(self, worker: str) -> None:
        """Forget what a worker was given, because it asks no more."""
        self.requests.pop(worker, None)

    def current(self, worker: str, number: int, attempt: int) -> Task | None:
        """Return the task if this worker holds it under this attempt."""
        task = self.leased.get(number)
        if task is None or task.worker != worker or task.attempt != attempt:
            return None
        return task

    def holds(self, worker: str, task: int, attempt: int) -> bool:
        """Tell whether the worker (or round) has this lease now."""
        return self.current(worker, task, attempt) is not None

    def knows(self, worker: str, request: str) -> bool:
        """Tell whether the request was given a task."""
        return self.given(worker, request) is not None

    def held_by(self, worker: str) -> list[Task]:
        """Return the tasks that a worker (or round) holds."""
        return list(self._held.get(worker, {}).values())

    def confirm(self, worker: str, task: int, attempt: int) -> bool:
        """Answer a report with True, and keep that for when it is repeated."""
        _keep(self.answers.setdefault(worker, OrderedDict()), (task, attempt), True)
        return True

    def answer_again(self, worker: str, task: int, attempt: int) -> bool:
        """Return what this report was answered before; False where it never was."""
        known = self.answers.get(worker)
        return known is not None and known.get((task, attempt), False)


def _keep(known: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    """Keep a value under its key, and the newest `_REPORTS_KEPT` only."""
    known[key] = value
    while len(known) > _REPORTS_KEPT:
        known.popitem(last=False)
