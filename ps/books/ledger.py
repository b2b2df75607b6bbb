"""The shard's ledger: per open task, the highest attempt seen and the position applied up to.

Pure. Rules 1, 2, 3 and 8 of docs/architecture.md, "The books":
- a span is applied only by the ledger's attempt (or a higher one, which then is the ledger's) and
  only where it starts at `applied`; `advance` stands in the same critical section as the update;
- a span that ends at or before `applied` is a duplicate: acknowledged, not applied;
- a lower attempt is a zombie and is fenced for ever, and so is a task below the low-water mark.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [start, end) of a task, pushed under a lease's attempt."""

    task: int
    attempt: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not (0 <= self.start < self.end and self.attempt >= 1 and self.task >= 0):
            raise ValueError(
                f"span [{self.start}, {self.end}) of task {self.task}, attempt {self.attempt}: "
                "positions must rise from 0 and attempts from 1"
            )


@dataclass(frozen=True, slots=True)
class Entry:
    """A task's line in the ledger."""

    task: int
    attempt: int
    applied: int


class Verdict(enum.Enum):
    """The ledger's answer to a span that is offered."""

    APPLY = enum.auto()
    DUPLICATE = enum.auto()
    FENCED = enum.auto()
    GAP = enum.auto()
    UNLEASED = enum.auto()


class Ledger:
    """The record of what has been applied. Positions and attempts only rise.

    `tasks_below`: the master has made tasks up to this number, and leases no attempt beyond the
    first that it has not fenced here before. None: nobody has said so, and any attempt is taken.
    """

    def __init__(
        self, entries: Iterable[Entry] = (), low_water: int = 0, tasks_below: int | None = None
    ) -> None:
        self.low_water = low_water
        self.tasks_below = tasks_below
        self._entries = {e.task: e for e in entries if e.task >= low_water}

    def __len__(self) -> int:
        return len(self._entries)

    def applied(self, task: int) -> int:
        """Return the position up to which the task is applied (0 where unknown or retired)."""
        entry = self._entries.get(task)
        return entry.applied if entry else 0

    def offer(self, span: Span) -> Verdict:
        """Say whether this span may be applied now.

        Raises the attempt, never the position.
        """
        if span.task < self.low_water:
            return Verdict.FENCED
        entry = self._entries.get(span.task) or Entry(span.task, 0, 0)
        if span.attempt < entry.attempt:
            return Verdict.FENCED
        if span.attempt > entry.attempt:
            below = self.tasks_below
            if below is not None and (span.attempt > 1 or span.task >= below):
                return Verdict.UNLEASED
            self._entries[span.task] = Entry(span.task, span.attempt, entry.applied)
        if span.end <= entry.applied:
            return Verdict.DUPLICATE
        return Verdict.APPLY if span.start == entry.applied else Verdict.GAP

    def advance(self, span: Span) -> None:
        """Take note that the span, which `offer` has let through, is applied.

        While it was, the task may have been fenced or retired: who does so awaits this, or does not
        ask for the position any more.
        """
        if span.task < self.low_water:
            return
        entry = self._entries[span.task]
        if entry.applied != span.start or entry.attempt < span.attempt:
            raise ValueError(f"{span} was not offered: the ledger says {entry}")
        self._entries[span.task] = Entry(span.task, entry.attempt, span.end)

    def fence(self, task: int, attempt: int) -> int | None:
        """Refuse attempts below `attempt` from now on, and return the position applied.

        None: the task is retired.
        """
        if task < self.low_water:
            return None
        entry = self._entries.get(task, Entry(task, 0, 0))
        self._entries[task] = Entry(task, max(attempt, entry.attempt), entry.applied)
        return entry.applied

    def retire(self, low_water: int) -> None:
        """Forget tasks below the mark, which never falls."""
        if low_water > self.low_water:
            self.low_water = low_water
            self._entries = {t: e for t, e in self._entries.items() if t >= low_water}

    def entries(self) -> tuple[Entry, ...]:
        """Return all lines, by task."""
        return tuple(self._entries[task] for task in sorted(self._entries))
