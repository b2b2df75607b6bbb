"""Cuts of all servers: one state of all shards, though their pushes never stand still together.

A cut holds pushes back for a moment. Where shards stand at different positions of a task, a worker
levels them by its next lease; what nobody levels is fenced in the end, which does it too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...common import faults
from ...common.errors import JobError
from ...common.places import Place
from ...durable.loop import Script
from ..books.decisions import Doubt
from ..books.plan import Kind
from ..books.saved import books_of
from ..books.task import State, Task
from ..core import Core
from ..membership import WORKER
from .servers import Cut, Servers, Snapshot

_CUT_HOLD_S = 2.0  # how long a cut may hold back pushes at first; doubled up to
_LONGEST_CUT_HOLD_S = 16.0
_NAMED = 5  # tasks in a message
_TRIES = 2  # after so many what nobody works on is fenced,
_TRIES_OF_A_LEASE = 4  # what somebody has leased, after half a minute, and
_MOST_TRIES = 12  # this is the end, after three minutes


class Shards(Protocol):
    """The servers, as a cut needs them."""

    @property
    def version(self) -> int:
        """The version of the servers' map: with another, whoever has pinned a cut may be gone."""
        ...

    @property
    def shards(self) -> Servers:
        """The client that calls all servers."""
        ...


class ServerCuts:
    """The Cuts (group.py) of servers.

    One is taken at a time; `busy`: one is under way, or a flush.
    """

    left: Cut | None = None

    def __init__(self, core: Core, servers: Shards) -> None:
        self._core = core
        self._servers = servers
        self._numbers = itertools.count(1)
        self.busy = False

    def take(self, gives_up: bool = False) -> Script[tuple[Cut, dict[str, Any]]]:
        """Return one state of all shards, pinned on the servers, and the books of that very state.

        `gives_up`: rather than wait for a worker where none is there. Raises JobError where they
        cannot be brought to one.
        """
        core, queue = self._core, self._core.queue

        def hopeless() -> bool:
            return self._nobody_levels or gives_up and self._is_stuck()

        yield from core.until(
            lambda: not self.busy or gives_up and self._is_stuck(),
            lambda: "another cut of the servers",
        )
        if self.busy:
            raise JobError("another cut of the servers waits for a worker to level them")
        self.busy = True
        hold_s, tries, told = _CUT_HOLD_S, 0, ""
        try:
            while True:
                # Positions that a lost worker left uneven are only levelled by the next lease.
                yield from core.until(
                    lambda: not queue.uneven or hopeless(),
                    lambda: f"a worker to level {_named(queue.uneven)}",
                )
                if queue.uneven:
                    raise JobError(
                        "the servers do not stand at one state, and no worker is left to level "
                        f"{_named(queue.uneven)}"
                    )
                version, done = self._servers.version, queue.done_tasks
                cut = yield from core.insist(lambda: self._try_to_take(hold_s))  # noqa: B023
                if version != self._servers.version:
                    continue  # one that has pinned it may be gone
                if cut is not None:
                    if self._lacks_nothing(done, cut.applied):
                        faults.point("master.cut", cut=cut.name)
                        return cut, books_of(queue, cut.applied)
                    yield from core.insist(lambda: self._servers.shards.unpin(cut.name))  # noqa: B023
                else:
                    tries += 1
                    told = self._resolve(tries, told)
                hold_s = min(2 * hold_s, _LONGEST_CUT_HOLD_S)
                yield from core.loop.sleep(1.0)
        finally:
            self.busy = False

    def now(self) -> Script[tuple[Cut, dict[str, Any] | None]]:
        return (yield from self.take())

    def snapshot(self, cut: str, directory: Place) -> Snapshot:
        return self._servers.shards.snapshot(cut, directory)

    def values(
        self, cut: str, directory: Place, since: str
    ) -> tuple[Snapshot, dict[str, int]] | None:
        """Write what serving needs of a cut (`Servers.values`), as `snapshot` does."""
        return self._servers.shards.values(cut, directory, since)

    def unpin(self, cut: str) -> None:
        self._servers.shards.unpin(cut)

    def stand(self) -> None:
        """Do nothing: servers stand where they are."""

    def kept(self, _left: Cut, _directory: Place) -> Snapshot:
        raise JobError("workers that train with servers leave no state of their own")

    @property
    def _nobody_levels(self) -> bool:
        core = self._core
        return core.status.state == "stopping" and not core.replicas.running(WORKER)

    def _is_stuck(self) -> bool:
        """Tell whether only a worker could bring the servers to one state, and none is there."""
        queue = self._core.queue
        return bool(queue.uneven) and not queue.fencing and not self._core.replicas.running(WORKER)

    def _lacks_nothing(self, done: Sequence[int], applied: Mapping[int, int]) -> bool:
        """Tell whether the cut has all of these tasks, which were done when it began.

        A task that it lacks is leased again from where the servers stand: a worker that is none of
        ours may have said that it has done what it has not pushed.
        """
        queue = self._core.queue
        tasks = [queue.tasks[n] for n in done if n in queue.tasks]
        lacking = [
            t
            for t in tasks
            if t.kind == Kind.TRAIN
            and t.state == State.DONE
            and t.id >= queue.low_water
            and applied.get(t.id, 0) < t.size
        ]
        for task in lacking:
            at = applied.get(task.id, 0)
            self._core.tell(
                f"task {task.id} was reported as done, and the servers have {at} of its "
                f"{task.size} records: it is leased again from there"
            )
            self._core.decide(Doubt(task.id, at))
        return not lacking

    def _resolve(self, tries: int, told: str) -> str:
        """Say what keeps a cut from being taken, and remove it in the end; return what was told.

        What a living worker pushes right now differs for a moment. Whatever differs twice and is
        nobody's, or after a while, is fenced, which levels it.

        Raises JobError where that is no use.
        """
        core, queue = self._core, self._core.queue
        uneven = self._servers.shards.uneven
        held = {t.id: t.worker for t in queue.leases.leased.values()}
        texts = []
        for number, positions in uneven.items():
            if number < queue.low_water:
                continue  # retired: nobody can ask for it
            where = ", ".join(f"{p} on server {shard}" for shard, p in enumerate(positions))
            member = core.members.get(held.get(number, ""))
            who = f", leased by worker {member.index}" if member else ""
            text = f"task {number} stands at {where}{who}"
            task = queue.find(number)
            if task is None or max(positions) > task.size:
                why = "which the master has not made" if task is None else f"of {task.size} records"
                raise JobError(
                    f"{text}: somebody who holds the job's token has pushed spans of a task {why}, "
                    "so what the servers hold is not this job's alone. Start again from a "
                    "checkpoint, and let foreign clients push only what they have leased "
                    "(docs/protocol.md)"
                )
            texts.append(text)
            if tries >= (_TRIES_OF_A_LEASE if number in held else _TRIES):
                core.decide(Doubt(number, min(positions)))
        if tries >= _MOST_TRIES:
            raise JobError(
                f"the servers could not be brought to one state in {tries} tries: "
                f"{'; '.join(texts) or 'their pushes did not end'}"
            )
        text = "; ".join(texts)
        if not text or text == told or tries < _TRIES:
            return told
        core.tell(f"a checkpoint or an evaluation waits for the servers to be level: {text}")
        return text

    def _try_to_take(self, hold_s: float) -> Cut | None:
        """Try to take a cut, in the background, one at a time.

        A try that failed may have left its name pinned on some shards, at a state that is old by
        now: each try has a name of its own.
        """
        name = f"cut-{self._core.journal.epoch}-{next(self._numbers)}"
        return self._servers.shards.take_cut(name, hold_s)

    def flush(self) -> Script[None]:
        """Step with the pushes that wait for others, in sync mode.

        It waits for a cut under way, which would have the step on some shards only.
        """
        yield from self._core.until(lambda: not self.busy, lambda: "a cut of the servers")
        self.busy = True
        try:
            self._core.version = yield from self._core.insist(lambda: self._servers.shards.flush())
        finally:
            self.busy = False


def _named(tasks: Sequence[Task]) -> str:
    """Return a few of the tasks, and where they stand, for a message."""
    few = [f"task {t.id}, at {sorted({t.position, *t.boundaries})}" for t in tasks[:_NAMED]]
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return f"{'; '.join(few)}{more}"
