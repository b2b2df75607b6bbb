"""The two tables, of jobs and of a job's processes: their columns, and the rows in an order. Pure.

A column says by what its rows are sorted and how it is written. A row without a value is the last
one whichever way the others are sorted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...jobs import figures
from ...jobs.job import ENDED, Status
from ..model import Snapshot

Row = Mapping[str, Any]

_ROLES = {"master": 0, "node": 1, "worker": 2, "server": 3, "teacher": 4}
_LISTS = {"nodes": "node", "workers": "worker", "servers": "server", "teachers": "teacher"}
_UNITS = {"worker": "rec/s", "server": "calls/s", "teacher": "rows/s"}
_LARGE = 1000
_UNPLANNED = 10**12  # the first task of no plan (master/books/task.py)
_STATES = ("running", "waiting", "starting", "stopping", "silent", "queued", "suspended")


@dataclass(frozen=True)
class Column:
    """A column. `falls`: the greatest is first; `need`: the least width of a screen that has it."""

    name: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    falls: bool = False
    right: bool = True
    need: int = 0


def number(value: object) -> float | None:
    """Return a number to sort by; None for anything else, and for NaN, which has no place."""
    known = isinstance(value, int | float) and not math.isnan(value)
    return float(value) if known else None  # type: ignore[arg-type]


def ordered(rows: Sequence[Row], column: Column, backwards: bool) -> list[Row]:
    """Return the rows by a column, or the other way round."""
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    return [*sorted(known, key=column.value, reverse=column.falls != backwards), *unknown]


def _figure(name: str) -> Callable[[Row], float | None]:
    return lambda row: number(row.get(name))


def _said(name: str) -> Callable[[Row], str]:
    return lambda row: figures.or_dash(row.get(name))


def _by_text(name: str) -> Callable[[Row], str | None]:
    return lambda row: None if row.get(name) in (None, "") else str(row[name])


# -- jobs


def _standing(status: Row) -> int:
    """Return the place of a job's state: those that go on are first, and those that ended last."""
    state = str(status.get("state"))
    if state in ENDED:
        return len(_STATES) + 1
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _share(status: Row) -> float | None:
    done, total = number(status.get("records_done")), number(status.get("records_total"))
    return None if done is None or not total else done / total


def _rate(row: Row) -> str:
    rate = number(row.get("records_per_s"))
    return f"{rate:,.0f}" if rate else "-"


def short(value: float) -> str:
    """Return a measure as text: a fraction with four digits, a large number without."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:,.0f}"


def _loss(status: Row) -> str:
    loss = status.get("loss")
    return short(loss) if isinstance(loss, int | float) else "-"


def _crew(status: Row) -> Any:
    return status.get("nodes" if status.get("command") == "launch" else "workers")


JOBS = (
    Column("job", _by_text("job_name"), _said("job_name"), right=False),
    Column("state", _standing, _said("state"), right=False),
    Column("done", _share, lambda row: figures.percent(dict(row)), falls=True),
    Column("epoch", _figure("epoch"), lambda r: figures.epoch(dict(r)) or "-", falls=True, need=72),
    Column("records/s", _figure("records_per_s"), _rate, falls=True),
    Column("loss", _figure("loss"), _loss, need=66),
    Column(
        "workers",
        lambda row: len(_crew(row) or ()) if _crew(row) is not None else None,
        lambda row: figures.counted(_crew(row)),
        falls=True,
        need=64,
    ),
    Column("time", _figure("started_s_ago"), lambda r: figures.duration(r.get("started_s_ago"))),
    Column("message", _by_text("message"), _said("message"), right=False, need=100),
)
JOBS_BY = 1  # the state, where nobody has said by which column


def jobs(statuses: Sequence[Status], column: int, backwards: bool) -> list[Row]:
    """Return the jobs in order; among those of one rank the newest is first."""
    return ordered(statuses[::-1], JOBS[column % len(JOBS)], backwards)


# -- processes


def _place(row: Row) -> tuple[int, int]:
    return _ROLES.get(row["role"], len(_ROLES)), row["index"]


def _pace(row: Row) -> str:
    rate = number(row.get("rate"))
    return f"{rate:,.0f} {_UNITS.get(row['role'], '')}".rstrip() if rate else "-"


def _task(row: Row) -> str:
    """Return a task's number; of one that no plan has, an evaluation's, the number after a +."""
    task = number(row.get("task"))
    if task is None or task < _UNPLANNED:
        return figures.or_dash(row.get("task"))
    return f"+{task - _UNPLANNED:.0f}"


def _heard(row: Row) -> str:
    age = number(row.get("heard_s"))
    return "-" if age is None else f"{age:.1f} s"


PROCESSES = (
    Column("process", _place, _said("name"), right=False),
    Column("state", _by_text("state"), _said("state"), right=False),
    Column("life", _figure("life"), _said("life"), falls=True),
    Column("incarnation", _by_text("incarnation"), _said("incarnation"), right=False, need=76),
    Column("rate", _figure("rate"), _pace, falls=True),
    Column("heard", _figure("heard_s"), _heard, falls=True),
    Column("task", _figure("task"), _task),
    Column("version", _figure("version"), _said("version"), falls=True, need=64),
    Column("pid", _figure("pid"), _said("pid"), need=160),
)


def processes(snapshot: Snapshot, column: int = 0, backwards: bool = False) -> list[Row]:
    """Return the processes of a job in order, its master too."""
    status, lives = snapshot["status"], snapshot["incarnations"]
    born = Counter((life["role"], life["index"]) for life in lives)
    calls = {shard["name"]: shard for shard in snapshot["shards"]}
    rows = [_master(snapshot, born)]
    for name, role in _LISTS.items():
        for told in status.get(name) or ():
            rows.append(_process(told, role, born, calls))
    return ordered(rows, PROCESSES[column % len(PROCESSES)], backwards)


def _process(told: Row, role: str, born: Counter[Any], calls: Mapping[Any, Row]) -> Row:
    index = int(told.get("index") or 0)
    row = {"role": role, "index": index, "name": f"{role}-{index}", "rate": None}
    for key in ("state", "incarnation", "task", "version", "pid"):
        row[key] = told.get(key)
    shard: Row = calls.get(row["name"], {})
    paces = [told.get("records_per_s"), told.get("rows_per_s")]
    paces += [shard.get(key) for key in ("pulls_per_s", "pushes_per_s")]
    known = [pace for each in paces if (pace := number(each)) is not None]
    row["rate"] = sum(known) if known else None
    row["heard_s"] = told.get("heartbeat_age_s")
    row["life"] = born[role, index] or None
    place = told.get("place") if role == "node" else index  # an agent's log is its place's
    row["log"] = "worker" if role == "node" else role, place
    return row


def _master(snapshot: Snapshot, born: Counter[Any]) -> Row:
    """Return the row of the master, of which the status says nothing but by being there."""
    row: dict[str, Any] = {"role": "master", "index": 0, "name": "master"}
    row["log"] = "master", None
    lives = [life for life in snapshot["incarnations"] if life["role"] == "master"]
    if snapshot["live"]:
        row["state"] = "serving"
    else:
        ended = lives[-1]["end"] if lives else None
        row["state"] = ended or str(snapshot["status"].get("state") or "")
    row["incarnation"] = lives[-1]["id"].removeprefix("master-0-") if lives else None
    row["life"] = born["master", 0] or None
    row["heard_s"] = snapshot["heard_s"]
    return row
