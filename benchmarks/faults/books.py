"""The fate of the records, how long survivors stood still, and the table of both (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Books:
    """The records that are not in the model once, though they should be.

    `lost`: the system went on as if they were; `untrained`: it ended, or hung, before them, and
    does not claim them.
    """

    lost: int
    repeated: int
    untrained: int = 0


def balance(counts: Sequence[float], acknowledged: Iterable[int] | None = None) -> Books:
    """Compare the model that is left with what it should have.

    `counts`: how often it has each record. `acknowledged`: the records whose update a worker was
    told, or had to believe, to be in; None: all, since the job ended as done.
    """
    times = [round(count) for count in counts]
    missing = [record for record, count in enumerate(times) if count < 1]
    claimed = set(missing) if acknowledged is None else set(acknowledged).intersection(missing)
    repeated = sum(count - 1 for count in times if count > 1)
    return Books(len(claimed), repeated, len(missing) - len(claimed))


@dataclass(frozen=True)
class Stall:
    """The longest time between two steps. Not `over`: it was still standing when watching ended."""

    seconds: float
    over: bool = True

    def __str__(self) -> str:
        return f"{'' if self.over else '> '}{self.seconds:.2f}"


def stall(steps: Sequence[float], since: float, until: float | None = None) -> Stall | None:
    """Return the longest stall of a survivor whose steps ended at these times.

    `since`: the kill; only what ends after it counts. `until`: when watching ended, of one that did
    not end by itself. None: no step at all.
    """
    gaps = [after - before for before, after in pairwise(steps) if after > since]
    longest = Stall(max(gaps)) if gaps else None
    if until is not None and steps and (longest is None or until - steps[-1] > longest.seconds):
        return Stall(until - max(steps[-1], since), over=False)
    return longest


def worst(stalls: Iterable[Stall | None]) -> Stall | None:
    """Return the worst stall of several survivors."""
    found = [each for each in stalls if each is not None]
    return max(found, key=lambda each: (not each.over, each.seconds), default=None)


@dataclass(frozen=True)
class Row:
    """The outcome of a fault. `books` None: there was nothing left to count in, or nothing ran."""

    system: str
    fault: str
    version: str
    outcome: str
    books: Books | None = None
    stall: Stall | None = None


HEAD = (
    "| system | fault | records lost | records repeated | stall of survivors (s) | outcome | "
    "version |\n|---|---|---|---|---|---|---|"
)


def table(rows: Iterable[Row]) -> str:
    """Make a Markdown table."""
    return "\n".join([HEAD, *map(_line, rows)])


def _line(row: Row) -> str:
    lost, repeated = (row.books.lost, row.books.repeated) if row.books else ("-", "-")
    outcome = row.outcome
    if row.books and row.books.untrained:
        outcome += f"; {row.books.untrained} records not trained"
    standing = "-" if row.stall is None else row.stall
    cells = (row.system, row.fault, lost, repeated, standing, outcome, row.version)
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
