"""The state that a group's books stand at: where it would begin, has begun, and what is left.

To the queue a group is one shard. Whenever a round begins, or its last worker has left a state, the
queue's positions become those of that state: what the round before held comes back, and goes on
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...common import storage
from ..books.decisions import Fenced, Lost, Recovered
from ..books.plan import Kind
from ..core import Core
from .servers import Cut


@dataclass
class Base:
    """A checkpoint or snapshot ("": the first values of the model), its steps and its ledger."""

    path: str
    version: int
    applied: Mapping[int, int]


class Standing:
    """The state that a group's books stand at.

    `restore`: the checkpoint that the group begins from, or "".

    `alone`: there are no servers beside it, so that what a round held is fenced here, and at once.
    `base`: what it begins from where nobody has its state; `newly_durable`: that has changed.
    """

    def __init__(self, core: Core, restore: str, *, alone: bool) -> None:
        self._core = core
        self._alone = alone
        self.base = Base(
            restore, 0, {n: core.queue.tasks[n].position for n in core.queue.unretired}
        )
        if restore:
            self.base.version = storage.load(restore).version
        self.newly_durable = False
        self.is_left = False  # the last worker has left it, and nobody has gone on since
        self._at: Mapping[int, int] = self.base.applied  # where the newest round began, by task

    def remember(self, base: Base) -> None:
        """Go on with the base of the master before."""
        self.base, self._at = base, base.applied

    def keep(self, path: str, version: int, applied: Mapping[int, int]) -> None:
        """Have the group begin anew from this snapshot, from now on."""
        self.base, self.newly_durable = Base(path, version, dict(applied)), True

    @property
    def left(self) -> Cut | None:
        """The state that the last worker has left; `name`: the folder with the files."""
        base = self.base
        return Cut(base.path, base.version, base.applied) if self.is_left else None

    def stand_at(self, there: Mapping[int, int], lessee: str) -> None:
        """Have the queue go on at these positions; the round `lessee` holds nothing any more."""
        core, queue = self._core, self._core.queue
        self._at = there
        core.decide(Lost(lessee))
        core.decide(Recovered({task: there.get(task, 0) for task in queue.unretired}))
        for fence in queue.fencing if self._alone else ():  # else servers have a say
            core.decide(Fenced(fence.task, fence.attempt, [there.get(fence.task, 0)]))

    def position(self, task: int) -> int:
        """Return a position that the group has reached in a task, maybe not its last.

        It drops what it has.
        """
        known = self._core.queue.tasks.get(task)
        return max(self._at.get(task, 0), known.position if known else 0)

    def durable_tasks(self) -> list[int]:
        """Return the train tasks that the newest snapshot has."""
        done = (self._core.queue.tasks[n] for n in self._core.queue.done_tasks)
        return [
            t.id for t in done if t.kind == Kind.TRAIN and self.base.applied.get(t.id) == t.size
        ]
