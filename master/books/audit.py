"""The audit of the books: each record of the plan in one state, its tasks in order. Pure.

The numbers of `records` come from different parts of the books (a counter of what is done, the open
tasks, the ranges that nobody has touched, the plan), so that their sum is the plan's total only if
no record is lost and none counts twice.
"""

from __future__ import annotations

from typing import Any

from .queue_view import QueueView
from .task import UNPLANNED_IDS, State

Run = tuple[int, int, str]  # first id, one past the last, and the state of all between


def records(queue: QueueView, redone: int) -> dict[str, int | None]:
    """Return how many records of the plan are in which state; `total` None: it has no end.

    `redone`: those that were computed more than once; each is applied once all the same.
    """
    standing = queue.standing
    passed, leased, ahead = standing.finished, 0, 0
    todo = 0 if queue.closed else _untouched(queue)
    for task in standing.begun:
        if task.id < UNPLANNED_IDS:
            at = max(task.position, task.heard)
            skips = sum(position >= at for position in task.skips)
            passed, ahead = passed + at, ahead + skips
            if task.state is State.LEASED:
                leased += task.size - at - skips
            else:
                todo += task.size - at - skips
    skipped = sum(len(each.records) for each in queue.quarantined if each.task < UNPLANNED_IDS)
    return {
        "applied": passed - (skipped - ahead),
        "leased": leased,
        "todo": todo,
        "quarantined": skipped,
        "recomputed": redone,
        "total": queue.records_planned,
    }


def _untouched(queue: QueueView) -> int:
    """Return the records of tasks that nobody has leased, in epochs that are opened or not."""
    plan = queue.plan
    opened = sum(plan.records_between(first, end) for first, end, _ in queue.standing.untouched)
    unopened = 0 if plan.records is None else plan.records - plan.of_first(queue.opened)[1]
    return opened + unopened


def tasks(queue: QueueView) -> dict[str, Any]:
    """Return the tasks of the newest epoch in their order: runs of a state and how many have it.

    It is found from the tasks that are open or were of note, however many are done.
    """
    epoch = max(0, queue.opened - 1)
    if not queue.opened:
        return {"epoch": epoch, "runs": []}
    first = queue.plan.first_id_of(epoch)
    return {"epoch": epoch, "runs": _runs(queue, range(first, first + queue.plan.tasks_of(epoch)))}


def _runs(queue: QueueView, ids: range) -> list[list[str | int]]:
    standing = queue.standing
    known: dict[int, Run] = {first: (first, end, "todo") for first, end, _ in standing.untouched}
    known |= {number: (number, number + 1, "recomputed") for number in standing.redone}
    skipped = {each.task for each in queue.quarantined}
    known |= {number: (number, number + 1, "quarantined") for number in skipped}
    for task in standing.begun:
        state = "leased" if task.state is State.LEASED else "todo"
        known[task.id] = (task.id, task.id + 1, state)
    runs: list[list[str | int]] = []

    def add(state: str, count: int) -> None:
        if count and runs and runs[-1][0] == state:
            runs[-1][1] = int(runs[-1][1]) + count
        elif count:
            runs.append([state, count])

    place = ids.start
    for first, end, state in sorted(known[number] for number in known if number in ids):
        add("done", first - place)
        add(state, end - first)
        place = end
    add("done", ids.stop - place)
    return runs
