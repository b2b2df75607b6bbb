"""The answers of a shard to pushes and pulls (pure)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from ...common.errors import EdlError
from ..rows.optimizers import Floats
from .dense import ChunkKey
from .ledger import Span, Verdict
from .parameters import Invalid, RowPlan


class NotYet(EdlError):
    """A request that cannot be answered yet: ask again."""


class Outcome(enum.Enum):
    """The outcomes of a push; the names are those of PushReply.Outcome."""

    APPLIED = enum.auto()
    DUPLICATE = enum.auto()
    FENCED = enum.auto()
    GAP = enum.auto()
    STALE = enum.auto()
    UNINITIALIZED = enum.auto()

    __hash__ = object.__hash__  # every push is counted: Enum's own costs as much as the lock


def span_of(task: int, attempt: int, start: int, end: int) -> Span:
    """Return the span that a caller names.

    Raises Invalid.
    """
    try:
        return Span(task, attempt, start, end)
    except ValueError as error:
        raise Invalid(str(error)) from error


REFUSALS = {
    Verdict.DUPLICATE: Outcome.DUPLICATE,
    Verdict.FENCED: Outcome.FENCED,
    Verdict.GAP: Outcome.GAP,
}


class Pushed(NamedTuple):
    """The answer to a push.

    `version` and `applied` are those after the push; `staleness` the versions it lagged.

    `part_of`: the version that has the push's gradients, or will have them once the other pushes of
    a sync version have come (`Store.wait_version(part_of - 1)` waits for it).
    """

    outcome: Outcome
    version: int
    applied: int
    part_of: int
    staleness: int = 0


@dataclass(slots=True)
class PullPlan:
    """The answer to a pull, to be read after the call, without the store's lock.

    `chunks` are the live arrays, flat float32, to be sent as they are. A step that runs meanwhile
    may be half in them, and in rows that are gathered. It is newer than `version`, so what is
    computed on them is pushed as of a version before it: sync refuses that as stale, async does not
    mind, and the next pull that knows `version` gets these chunks again. Of a cut, chunks and rows
    never change.
    """

    version: int
    chunks: list[tuple[ChunkKey, Floats]]
    tables: list[RowPlan]
