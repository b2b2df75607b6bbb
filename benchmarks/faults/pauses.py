"""The members' pauses around one kill, by a group's journals, and the table of many kills (pure).

A survivor is a process that stepped before the kill and after it. Its pause is the time between two
of its steps, less the median of those in the seconds before. The pauses are those that begin before
the replacement is up (`stall`), and those from then until it has been in the group for a second
(`coming`). Where everybody was started again, the stall is that of the job: from the last step
before the kill to the first one after it, whether that step is a new one or not.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from benchmarks.faults.books import Books
from benchmarks.measure import spread

Journal = Sequence[Mapping[str, Any]]  # of one process, in order: see tallying.py

_NEAR_S = 2.0  # before a kill
_AFTER_S = 1.0  # for which the replacement's first steps are watched


@dataclass(frozen=True)
class Kill:
    """A kill. `at`: when; `load`: the load average of the minute before."""

    system: str
    members: int
    how: str
    victim: int
    at: float
    load: float = 0.0


@dataclass(frozen=True)
class Seen:
    """The seconds lost by a kill, and the steps that were computed again.

    `again`: steps that had been applied by somebody and were computed anew. `replaced`: from the
    kill to the first new step that a new process had a part in. `restarted`: processes, beside the
    one that was killed, that ended.
    """

    step: float
    stall: float
    coming: float
    replaced: float | None
    again: int
    restarted: int
    last: str = ""  # that the victim said
    over: bool = True  # else nobody had gone on when watching ended

    @property
    def longest(self) -> float:
        return max(self.stall, self.coming)


def seen(at: float, victim: int, journals: Mapping[int, Journal], until: float) -> Seen:
    """Return what a kill of the process `victim` did; `until`: when watching ended."""
    journals = {pid: [e for e in lines if e["at"] <= until] for pid, lines in journals.items()}
    last = next(e["event"] for e in reversed(journals[victim]) if e["at"] <= at)
    steps = {pid: [e for e in lines if e["event"] == "step"] for pid, lines in journals.items()}
    old = {pid for pid in steps if any(at - _NEAR_S < e["at"] <= at for e in steps[pid])}
    new = {pid for pid, lines in journals.items() if lines and lines[0]["at"] > at}
    others = old - {victim}
    ordinary = statistics.median(
        b["at"] - a["at"]
        for pid in old
        for a, b in pairwise(steps[pid])
        if at - _NEAR_S < a["at"] and b["at"] <= at
    )
    # An end is seen by what a process does not do any more: it steps no more, and others do.
    survivors = {pid for pid in others if _steps_on(steps[pid], at, steps, until)}
    top = max(e["step"] for pid in old for e in steps[pid] if e["at"] <= at)
    up = min((journals[pid][0]["at"] for pid in new), default=until)
    parts = [e for pid in new for e in steps[pid] if e["counts"] and e["step"] > top]
    replaced = min((e["at"] for e in parts), default=None)
    end = min(until, (replaced or until) + _AFTER_S)
    restarted = len(others) - len(survivors)
    if not survivors:
        stood = max(e["at"] for pid in others for e in steps[pid] if e["at"] <= at)
        after = [e for pid in new for e in steps[pid]]
        first = min((e["at"] for e in after), default=until)
        again = top - min((e["step"] for e in after), default=top + 1) + 1
        return Seen(
            step=ordinary,
            stall=first - stood - ordinary,
            coming=0.0,
            replaced=replaced and replaced - at,
            again=again,
            restarted=restarted if after else 0,
            last=last,
            over=bool(after),
        )
    pauses = [
        (a["at"], b["at"] - a["at"] - ordinary)
        for pid in survivors
        for a, b in pairwise(steps[pid])
        if at < b["at"] and a["at"] <= end
    ]
    furthest = max(survivors, key=lambda pid: max(e["step"] for e in steps[pid] if e["at"] <= at))
    went_on = next(e["step"] for e in steps[furthest] if e["at"] > at)
    return Seen(
        step=ordinary,
        stall=max(pause for begun, pause in pauses if begun < max(up, at)),
        coming=max((pause for begun, pause in pauses if begun >= up), default=0.0),
        replaced=replaced and replaced - at,
        again=max(0, top - went_on + 1),
        restarted=restarted,
        last=last,
    )


def _steps_on(
    mine: Sequence[Mapping[str, Any]], at: float, steps: Mapping[int, Journal], until: float
) -> bool:
    """Tell whether a process still steps in the second half of what was watched.

    One that was started again does not.
    """
    last = max((line["at"] for lines in steps.values() for line in lines), default=until)
    return bool(mine) and mine[-1]["at"] > at and mine[-1]["at"] > last - _NEAR_S


COLUMNS = (
    "system",
    "members",
    "kill",
    "of",
    "kills",
    "step (ms)",
    "stall (ms)",
    "pause as the replacement comes in (ms)",
    "replacement has a part after (s)",
    "steps again",
    "survivors that ended",
    "load average",
)


def table(found: Iterable[tuple[Kill, Seen]]) -> str:
    """Make a Markdown table: medians with min-max."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]

    def named(pair: tuple[Kill, Seen]) -> tuple[str, int, str, str]:
        kill = pair[0]
        return kill.system, kill.members, kill.how, "rank 0" if kill.victim == 0 else "another"

    for name, group in groupby(sorted(found, key=named), key=named):
        kills, rows = zip(*group, strict=True)
        endless = sum(not row.over for row in rows)
        cells = [
            *name,
            len(rows),
            spread([1e3 * row.step for row in rows]),
            ("> " if endless else "") + spread([1e3 * row.stall for row in rows]),
            spread([1e3 * row.coming for row in rows]),
            _of([row.replaced for row in rows]),
            spread([row.again for row in rows]),
            sum(row.restarted for row in rows),
            spread([kill.load for kill in kills]),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _of(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return spread(there) if there else "-"


def books_table(found: Iterable[tuple[str, int, Books]]) -> str:
    """Make a Markdown table of whole runs: (system, steps, books)."""
    lines = ["| run | kills | records lost | records repeated |", "|---" * 4 + "|"]
    for name, kills, books in found:
        lines.append(f"| {name} | {kills} | {books.lost} | {books.repeated} |")
    return "\n".join(lines)
