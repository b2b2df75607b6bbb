"""The tasks that wait to be leased, in the order in which they will be. Pure.

Tasks that came back go first, evaluations go before training, and what failed goes to the back,
behind all that had failed less often in all, so that others prove the definition meanwhile. Tasks
of the plan that nobody has touched are not in it (epochs.py): they go between those that came back
and those that failed, in the order of their numbers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from .task import UNPLANNED_IDS, Task

# Which tasks go first, of those outside of the plan and then of the plan.
CAME_BACK, FRESH, FAILED, _RANKS = range(4)


@dataclass(slots=True)
class Todo:
    """The tasks that wait to be leased. `heap`: of rank, failures of all tasks so far, and id."""

    heap: list[tuple[int, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many tasks wait."""
        return len(self.heap)

    def first(self, untouched: int | None) -> int | None:
        """Return the task that is leased next; None: none now.

        `untouched`: the first of those that are not here.
        """
        if self.heap and (untouched is None or self.heap[0] < (_RANKS + FRESH, 0, untouched)):
            return self.heap[0][-1]
        return untouched

    def push(self, task: Task, rank: int, behind: int = 0) -> None:
        """Have a task wait, among those of its rank behind those with a lower number `behind`."""
        outside = task.id >= UNPLANNED_IDS
        heapq.heappush(self.heap, (rank if outside else _RANKS + rank, behind, task.id))

    def pop(self) -> None:
        """Take out the task that is first."""
        heapq.heappop(self.heap)

    def remove(self, number: int) -> None:
        """Take out this task, wherever it stands."""
        self.heap = [entry for entry in self.heap if entry[-1] != number]
        heapq.heapify(self.heap)
