"""The state machine of `edl top`: what is shown, and what a key or news changes of it. Pure.

`step` takes a state and an event, and returns the next state and the effects: what the loop must
open, close or do. Nothing is done to a job without a question that was answered by `y`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...jobs import figures
from ...jobs.job import Status
from ..model import Snapshot
from . import tables
from .events import (
    Act,
    Close,
    Effect,
    Event,
    Follow,
    Height,
    Key,
    Lines,
    Listed,
    Open,
    Quit,
    Seen,
    Told,
)
from .tables import JOBS, JOBS_BY, PROCESSES, Column, Row

LINES = 5000  # of a log that are kept
_LEAST_ROWS = 1
_AROUND = 4  # lines of the screen that no log has
_SIDE = 20  # columns of a log by which an arrow goes aside
_DIGITS = 5
_MOST = 99_999
_NAME = 20  # characters of a job's name in a question

# -- the state


@dataclass(frozen=True)
class Cursor:
    """A place in a table: the name of its row, where it was last, and the order of the rows."""

    row: str = ""
    at: int = 0
    column: int = 0
    backwards: bool = False


@dataclass(frozen=True)
class Log:
    """A log that is open. `below`: its lines below the screen, 0: it is followed."""

    of: str
    lines: tuple[str, ...] = ()
    below: int = 0
    aside: int = 0
    over: bool = False


@dataclass(frozen=True)
class Ask:
    """A question. `number`: the digits typed so far, None: a yes or no to `asked`."""

    asked: Mapping[str, Any]
    number: str | None = None


@dataclass(frozen=True)
class State:
    """The state: all that is shown. `alone`: one job was asked for, and there is no list behind it.

    `rows`: of the table that is shown, in its order, which `step` keeps.
    """

    job: str = ""
    alone: bool = False
    jobs: tuple[Status, ...] | None = None
    snapshot: Snapshot | None = None
    log: Log | None = None
    ask: Ask | None = None
    help: bool = False
    note: str = ""
    curve: int = 0
    height: int = 24
    in_jobs: Cursor = field(default=Cursor(column=JOBS_BY))
    in_job: Cursor = field(default=Cursor())
    rows: Sequence[Row] = ()

    @property
    def cursor(self) -> Cursor:
        return self.in_job if self.job else self.in_jobs

    @property
    def columns(self) -> tuple[Column, ...]:
        return PROCESSES if self.job else JOBS

    @property
    def actions(self) -> Sequence[str]:
        """Return what may be done to the job that is open."""
        return tuple(self.snapshot["actions"]) if self.snapshot else ()

    @property
    def wanted(self) -> int:
        """Return how many workers, or nodes of a script, the job is to have."""
        status = self.snapshot["status"] if self.snapshot else {}
        crew = status.get("nodes" if status.get("command") == "launch" else "workers")
        return sum(figures.is_there(each) for each in crew or ())


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Return what follows of an event."""
    effects: tuple[Effect, ...] = ()
    before = state
    match event:
        case Key():
            state, effects = _key(replace(state, note=""), event.name)
        case Listed():
            state = replace(state, jobs=tuple(event.jobs))
        case Seen() if event.job == state.job:
            state = replace(state, snapshot=event.snapshot)
        case Lines() if state.log is not None and event.of == state.log.of:
            state = replace(state, log=_longer(state.log, event))
        case Told():
            state = replace(state, note=event.text)
        case Height():
            state = replace(state, height=event.lines)
    return _settled(state if _is_in_order(before, state) else _sorted(state)), effects


def _is_in_order(before: State, state: State) -> bool:
    """Tell whether the rows are those of before: to sort a thousand takes milliseconds."""
    had, has = before.cursor, state.cursor
    return (
        before.snapshot is state.snapshot
        and before.jobs is state.jobs
        and (before.job, had.column, had.backwards) == (state.job, has.column, has.backwards)
    )


def _sorted(state: State) -> State:
    at = state.cursor
    rows: Sequence[Row] = ()
    if not state.job:
        rows = tables.jobs(state.jobs or (), at.column, at.backwards)
    elif state.snapshot is not None:
        rows = tables.processes(state.snapshot, at.column, at.backwards)
    return replace(state, rows=rows)


def _settled(state: State) -> State:
    """Return the state with its cursor on a row, and its log no further than it goes."""
    names = [name_of(row) for row in state.rows]
    state = _moved(state, _found(state.cursor, names))
    if state.log is not None:
        furthest = max(0, len(state.log.lines) - max(_LEAST_ROWS, state.height - _AROUND))
        below = min(max(0, state.log.below), furthest)
        state = replace(state, log=replace(state.log, below=below))
    return state


def name_of(row: Row) -> str:
    """Return the name of a row of either table."""
    return str(row.get("name") or row.get("job_name") or "")


def _found(cursor: Cursor, names: Sequence[str]) -> Cursor:
    """Return the cursor where its row is now; where that is gone, at its place."""
    if not names:
        return replace(cursor, row="", at=0)
    at = cursor.at
    if not (0 <= at < len(names) and names[at] == cursor.row):
        known = cursor.row in names
        at = names.index(cursor.row) if known else min(max(0, at), len(names) - 1)
    return replace(cursor, row=names[at], at=at)


def _moved(state: State, cursor: Cursor) -> State:
    return replace(state, in_job=cursor) if state.job else replace(state, in_jobs=cursor)


def _longer(log: Log, event: Lines) -> Log:
    """Return a log with its next lines; who reads further up goes on to see the same ones."""
    lines = (*log.lines, *event.lines)[-LINES:]
    below = log.below + len(event.lines) if log.below else 0
    return replace(log, lines=lines, below=below, over=log.over or event.over)


# -- keys


def _key(state: State, key: str) -> tuple[State, tuple[Effect, ...]]:
    if state.ask is not None:
        return _answered(state, state.ask, key)
    if state.help:
        return replace(state, help=False), ()
    if key == "?":
        return replace(state, help=True), ()
    if state.log is not None:
        return _in_log(state, state.log, key)
    if (cursor := _travelled(state, key)) is not None:
        return _moved(state, cursor), ()
    return _in_job(state, key) if state.job else _in_jobs(state, key)


def _travelled(state: State, key: str) -> Cursor | None:
    """Return where a key takes the cursor, or how it sorts; None: it is another key."""
    cursor, rows = state.cursor, state.rows
    page = max(_LEAST_ROWS, state.height // 2)
    by = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}
    by |= {"home": -len(rows), "g": -len(rows), "end": len(rows), "G": len(rows)}
    if key in by:
        at = min(max(0, cursor.at + by[key]), max(0, len(rows) - 1))
        return replace(cursor, at=at, row=name_of(rows[at]) if rows else "")
    if key in ("s", "S"):
        column = (cursor.column + (1 if key == "s" else -1)) % len(state.columns)
        return replace(cursor, column=column, backwards=False)
    if key == "r":
        return replace(cursor, backwards=not cursor.backwards)
    return None


def _in_jobs(state: State, key: str) -> tuple[State, tuple[Effect, ...]]:
    if key in ("q", "esc"):
        return state, (Quit(),)
    job = state.in_jobs.row
    if key in ("enter", "right", "l") and job:
        return replace(state, job=job, snapshot=None, in_job=Cursor()), (Open(job),)
    return state, ()


def _in_job(state: State, key: str) -> tuple[State, tuple[Effect, ...]]:
    if key in ("q", "esc", "left"):
        if not state.alone:
            return replace(state, job="", snapshot=None), (Close(),)
        return state, (Quit(),) if key != "left" else ()
    if key in ("l", "enter", "right"):
        return _open_log(state)
    if key == "m":
        return replace(state, curve=state.curve + 1), ()
    asked = _wish(state, key)
    if asked is None:
        return state, ()
    if asked["action"] not in state.actions:
        name = asked["action"]
        return replace(state, note=f"{state.job} cannot {name} now: {_why_not(state)}"), ()
    return replace(state, ask=Ask(asked, "" if key == "c" else None)), ()


def _wish(state: State, key: str) -> dict[str, Any] | None:
    """Return the action that a key asks for; None: none."""
    if key in ("+", "=", "-", "c"):
        by = {"+": 1, "=": 1, "-": -1}.get(key, 0)
        return {"action": "scale", "num_workers": _bounded(state.wanted + by)}
    if key == "x":
        return {"action": "stop"}
    if key == "z":
        suspended = state.snapshot and state.snapshot["status"].get("state") == "suspended"
        return {"action": "resume" if suspended else "suspend"}
    return None


def _why_not(state: State) -> str:
    if state.snapshot is None:
        return "nothing was heard of it yet."
    if not state.actions:
        return "it is over."
    return f"it may {', '.join(state.actions)}."


def _bounded(number: int) -> int:
    return max(1, min(number, _MOST))


def _open_log(state: State) -> tuple[State, tuple[Effect, ...]]:
    row = next((row for row in state.rows if name_of(row) == state.in_job.row), None)
    if row is None:
        return state, ()
    name, (role, index) = name_of(row), row["log"]
    return replace(state, log=Log(name)), (Follow(role, index, name),)


def _in_log(state: State, log: Log, key: str) -> tuple[State, tuple[Effect, ...]]:
    if key in ("q", "esc", "l"):
        return replace(state, log=None), (Follow(None),)
    page = max(_LEAST_ROWS, state.height - _AROUND - 1)
    by = {"up": 1, "k": 1, "down": -1, "j": -1, "pageup": page, "pagedown": -page, " ": -page}
    by |= {"home": LINES, "g": LINES, "end": -LINES, "G": -LINES, "f": -LINES}
    aside = {"right": _SIDE, "left": -_SIDE}.get(key, 0)
    log = replace(log, below=log.below + by.get(key, 0), aside=max(0, log.aside + aside))
    return replace(state, log=log), ()


# -- questions


def _answered(state: State, ask: Ask, key: str) -> tuple[State, tuple[Effect, ...]]:
    if key in ("esc", "q", "n"):
        return replace(state, ask=None), ()
    if ask.number is not None:
        return replace(state, ask=_typed(ask, ask.number, key)), ()
    if key in ("+", "=", "-") and ask.asked["action"] == "scale":
        number = ask.asked["num_workers"] + (-1 if key == "-" else 1)
        asked = {**ask.asked, "num_workers": _bounded(number)}
        return replace(state, ask=replace(ask, asked=asked)), ()
    if key != "y":
        return state, ()
    state = replace(state, ask=None)
    if ask.asked["action"] not in state.actions:  # the job has ended meanwhile
        return replace(state, note=f"{state.job} cannot {ask.asked['action']}: it is over."), ()
    return replace(state, note=f"{question(state, ask)} Asked for …"), (Act(state.job, ask.asked),)


def _typed(ask: Ask, number: str, key: str) -> Ask:
    if key == "backspace":
        return replace(ask, number=number[:-1])
    if key == "enter" and number and int(number):
        return Ask({**ask.asked, "num_workers": int(number)})
    if len(key) == 1 and key in "0123456789" and len(number) < _DIGITS:
        return replace(ask, number=number + key)
    return ask


def question(state: State, ask: Ask) -> str:
    """Return a question in words, without the keys that answer it."""
    action, job = str(ask.asked["action"]), state.job
    if len(job) > _NAME:  # so that a small screen has the question, and what answers it
        job = f"{job[: _NAME - 1]}…"
    if action != "scale":
        return f"{action.capitalize()} {job}?"
    status = state.snapshot["status"] if state.snapshot else {}
    what = "nodes" if status.get("command") == "launch" else "workers"
    if ask.number is not None:
        return f"How many {what} for {job} ({state.wanted} now)? {ask.number}"
    return f"Scale {job} from {state.wanted} to {ask.asked['num_workers']} {what}?"
