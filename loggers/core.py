"""The pieces of a job's history that a logger is still to be told, by a cursor. Pure.

The history (jobs/history.py) is only ever appended to, and what is told of a line depends on the
lines before it alone, so that telling it again from an older cursor says the same again, however
it is cut into batches. Who is told may therefore be asked what it has, by series, and is told the
rest. The steps of a series rise strictly: a master that was started again repeats evaluations, and
servers that were restored go through versions once more; neither is told twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..jobs.history import Line, curves

EVENTS = "events"  # the series of the events' texts
_ROWS = ""  # the series of all that was told
_NOT_NAMES = re.compile(r"[^\w/.\- ]")  # MLflow takes no others
_NAMES = {"loss": "loss/train", "records_per_s": "records_per_second"}  # else as in the history

Known = Mapping[str, int]  # the last step of each series


@dataclass(frozen=True)
class Told:
    """A piece of the history: numbers at a version (`step`) by series, or an event's `text`.

    The step of a text rises with each, and is at least the version that was told last. So does
    `row`, over all pieces. `t`: seconds since the job's start.
    """

    step: int
    row: int
    t: float
    values: Mapping[str, float] = field(default_factory=dict)
    text: str = ""

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series."""
        return (EVENTS,) if self.text else tuple(self.values)


@dataclass(frozen=True)
class Cursor:
    """How far a history was told: the bytes of it, the newest version, each series' last step."""

    offset: int = 0
    version: int = 0
    last: Known = field(default_factory=dict)


def tell(cursor: Cursor, lines: Iterable[Line], offset: int) -> tuple[list[Told], Cursor]:
    """Return what is to be told of the lines after the cursor, and the cursor after them.

    `offset`: where the lines end.
    """
    told: list[Told] = []
    last, version = dict(cursor.last), cursor.version
    for line in lines:
        if "text" in line:
            step = max(version, last.get(EVENTS, -1) + 1)
            one = Told(step, 0, float(line["t"]), text=str(line["text"]) or "-")
        else:
            at = line.get("version")
            if not isinstance(at, int) or at < 0:
                continue
            version = max(version, at)
            new = {k: v for k, v in _values(line).items() if at > last.get(k, -1)}
            one = Told(at, 0, float(line["t"]), new)
        if one.series:
            one = replace(one, row=max(version, last.get(_ROWS, -1) + 1))
            last |= dict.fromkeys(one.series, one.step)
            last[_ROWS] = one.row
            told.append(one)
    return told, Cursor(offset, version, last)


def fresh(told: Sequence[Told], known: Known) -> list[Told]:
    """Return of it what somebody who knows so much does not know yet."""
    left = []
    for one in told:
        if one.text:
            if one.step > known.get(EVENTS, -1):
                left.append(one)
            continue
        values = {k: v for k, v in one.values.items() if one.step > known.get(k, -1)}
        if values:
            left.append(replace(one, values=values))
    return left


def _values(line: Line) -> dict[str, float]:
    """Return the numbers of a line by series."""
    told, about = line.get("scalars"), line.get("job")
    if not isinstance(told, dict):
        return {}
    own = curves(told)
    values = {_NAMES.get(name, name): value for name, value in own.items()}
    for name, value in told.items():
        if name not in own and isinstance(value, int | float):
            values[_NOT_NAMES.sub("_", f"eval/{name.removeprefix('evaluated ')}")] = float(value)
    for name, value in (about if isinstance(about, dict) else {}).items():
        if isinstance(value, int | float):
            values[name] = float(value)
    return values
