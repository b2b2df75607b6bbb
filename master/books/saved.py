"""The books in a checkpoint: what it says of the queue, and the queue that goes on with it.

Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from .plan import Kind, Plan
from .queue_view import QueueView
from .task import UNPLANNED_IDS, IllegalTransition, Quarantine, State, Task, planned
from .task_queue import TaskQueue


def books_of(queue: QueueView, applied: Mapping[int, int] | None = None) -> dict[str, Any]:
    """Return the plan's state as JSON values, at a cut of all shards.

    `applied` is the cut's position of each task that the shards' ledgers hold, and it alone
    decides: what was done since belongs to the next checkpoint. Without it, what the queue
    itself knows. Lists the tasks that are not done at the cut; the untouched ones, of which no
    shard has anything, as ranges of ids.
    """
    plan, state = queue.plan, queue.state()
    tasks = []
    for task in state.tasks:
        if task.kind != plan.kind or task.id >= UNPLANNED_IDS:
            continue
        if applied is not None:
            position = applied.get(task.id, 0)
        else:
            position = task.size if task.state == State.DONE else task.position
        if position < task.size:
            tasks.append([task.id, task.epoch, position, task.attempt, sorted(task.skips)])
    untouched: list[tuple[int, int]] = []
    for first, end, _ in state.untouched:
        # A client that pushed what it had not leased, the same to all: so it is.
        strays = sorted(n for n in applied or () if first <= n < end)
        for number in strays:
            task = planned(plan, number)
            if (position := (applied or {})[number]) < task.size:
                tasks.append([number, task.epoch, position, task.attempt, []])
        bounds = [first - 1, *strays, end]
        untouched += [(a + 1, b) for a, b in itertools.pairwise(bounds) if a + 1 < b]
    return {
        "plan": plan.fingerprint(),
        "contents": [list(content) for content in plan.contents],
        "first_id": plan.first_id,
        "next_id": plan.first_id_of(queue.opened),
        "epochs_opened": queue.opened,
        "tasks": tasks,
        "untouched": untouched,
        "quarantined": [
            [q.task, q.source, list(q.records), q.error, int(q.kind), q.epoch]
            for q in queue.quarantined
        ],
    }


def queue_of(plan: Plan, books: Mapping[str, Any], *, tolerance: int = 3) -> TaskQueue:
    """Return a queue that goes on where `books` ended.

    Each open task that was touched is to be fenced first. Raises ValueError where the books name
    what is not of the plan.
    """
    if books["plan"] != plan.fingerprint() or books["first_id"] != plan.first_id:
        raise IllegalTransition("the books are those of another plan")
    opened = books["epochs_opened"]
    tasks_done, records_done = plan.of_first(opened)
    open_of_epoch: Counter[int] = Counter()
    tasks: dict[int, Task] = {}
    for number, _, position, attempt, skips in books["tasks"]:
        task = planned(plan, number)
        if task.epoch >= opened:
            raise ValueError(f"there is no task {number}")
        if number in tasks:
            raise ValueError(f"task {number} stands there twice")
        task.position, task.attempt, task.skips = position, attempt + 1, set(skips)
        task.tell(f"restored at {task.position}")
        task.state = State.FENCING
        tasks[number] = task
        open_of_epoch[task.epoch] += 1
        tasks_done -= 1
        records_done -= task.size
    untouched: list[tuple[int, int, str]] = []
    before = plan.first_id
    for first, end in books.get("untouched", ()):  # books of before list them as tasks
        last = planned(plan, end - 1)
        is_open = before <= first < end and plan.epoch_of(first) == last.epoch < opened
        if not is_open or any(first <= number < end for number in tasks):
            raise ValueError(f"tasks {first} to {end - 1} are not open, or stand there twice")
        before = end
        untouched.append((first, end, ""))
        open_of_epoch[last.epoch] += end - first
        tasks_done -= end - first
        records_done -= plan.records_between(first, end)
    queue = TaskQueue(plan, tolerance=tolerance)
    blank = queue.state()
    queue.restore(
        dataclasses.replace(
            blank,
            tasks=list(tasks.values()),
            untouched=untouched,
            opened=opened,
            quarantined=[
                Quarantine(task, source, tuple(records), error, Kind(kind), epoch)
                for task, source, records, error, kind, epoch in (
                    (*row, Kind.TRAIN, 0)[:6] for row in books["quarantined"]
                )
            ],
            proven={plan.kind} if tasks_done else set(),
            fencing=list(tasks),
            begun=list(tasks),
            open_of_epoch=open_of_epoch,
            tasks_done=tasks_done,
            records_done=records_done,
        )
    )
    return queue
