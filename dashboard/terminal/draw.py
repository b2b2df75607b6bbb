"""The screen of `edl top` as lines of text, of a state. Pure.

Every line is as wide as the screen, and there are as many as the screen has. All that a job, a name
or a log says goes through `inert` and is never markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ...common.plain import inert
from .grid import fitted, table
from .job import job_lines
from .machine import LINES, State, question
from .texts import plain_ascii

HELP = (
    ("up down, j k", "move; Page Up and Down, Home and End, g G too"),
    ("Enter", "open the job, or the log of the process"),
    ("Esc, q", "back; at the end: quit"),
    ("s, S", "sort by the next column, or by the one before"),
    ("r", "sort the other way round"),
    ("l", "the log of the process under the cursor; f or End follows it"),
    ("m", "the next curve"),
    ("+ -", "one worker more or fewer; asks"),
    ("c", "so many workers; asks"),
    ("x", "stop the job in order, with a checkpoint; asks"),
    ("z", "suspend or resume a job of a cluster; asks"),
    ("Ctrl-L", "draw anew"),
)


def frame(state: State, width: int, now: float, ascii_only: bool = False) -> list[Text]:
    """Return the lines of the screen. `now`: the wall clock, by which ages are told."""
    room = max(0, state.height - 1)
    if state.help:
        body = _help()
    elif state.log is not None:
        body = _log(state, room)
    elif state.job:
        body = job_lines(state, width, room, now)
    else:
        body = _jobs(state, width, room)
    body = [*body[:room], *[Text()] * (room - len(body))]
    return _whole([*body, _bottom(state)], width, ascii_only)


def _whole(lines: Sequence[Text], width: int, ascii_only: bool) -> list[Text]:
    made = [fitted(line, width) for line in lines]
    return [fitted(plain_ascii(line), width) for line in made] if ascii_only else made


def snapshot_lines(state: State, width: int, now: float, ascii_only: bool = False) -> list[Text]:
    """Return what is known once, however many lines that takes."""
    if state.job:
        body = job_lines(state, width, LINES, now, on_screen=False)
    else:
        body = _jobs(state, width, LINES, on_screen=False)
    return _whole(body, width, ascii_only)


def _jobs(state: State, width: int, room: int, on_screen: bool = True) -> list[Text]:
    title = Text.assemble((" edl top ", "bold"), " jobs")
    if state.jobs is None:
        return [title, Text(), Text("  Asking …", "dim")]
    title.append(f" · {len(state.jobs)}")
    if not state.jobs:
        return [title, Text(), Text("  There are no jobs here: `edl train` starts one.", "dim")]
    return [title, Text(), *table(state, width, room - 2, on_screen)]


def _log(state: State, room: int) -> list[Text]:
    log = state.log
    assert log is not None
    title = Text.assemble((f" {inert(log.of)} ", "bold"), f" log · {inert(state.job)} · ")
    if log.below:
        title.append(f"{log.below:,} lines below", "yellow")
    else:
        title.append("at its end" if log.over else "follows", "green")
    title.append(f" · {len(log.lines):,} lines", "dim")
    space = max(0, room - 2)
    end = len(log.lines) - log.below
    lines = [Text(inert(line)[log.aside :]) for line in log.lines[max(0, end - space) : end]]
    return [title, Text(), *(lines or [Text("  Nothing so far.", "dim")])]


def _help() -> list[Text]:
    lines = [Text(" keys", "bold"), Text()]
    return lines + [Text.assemble((f"  {key:<14}", "bold"), text) for key, text in HELP]


def _bottom(state: State) -> Text:
    if state.ask is not None:
        keys = "digits, Enter, Esc" if state.ask.number is not None else _answers(state)
        return Text.assemble((f" {inert(question(state, state.ask))}  ", "bold yellow"), keys)
    if state.note:
        return Text(f" {inert(state.note)}", "yellow")
    if state.help:
        return Text(" any key: back", "dim")
    if state.log is not None:
        return _hints(
            ("up down", "scroll"), ("left right", "aside"), ("f", "follow"), ("q", "back")
        )
    sort = ("s", f"sort: {state.columns[state.cursor.column % len(state.columns)].name}")
    if not state.job:
        return _hints(sort, ("Enter", "open"), ("q", "quit"), ("?", "help"), ("r", "reverse"))
    hints = [sort, ("l", "log")]
    if "scale" in state.actions:
        hints.append(("+-c", "scale"))
    if "stop" in state.actions:
        hints.append(("x", "stop"))
    if "suspend" in state.actions:
        hints.append(("z", "suspend"))
    hints += [("q", "quit" if state.alone else "back"), ("?", "help")]
    return _hints(*hints, ("r", "reverse"), ("m", "curve"))


def _answers(state: State) -> str:
    scales = state.ask is not None and state.ask.asked["action"] == "scale"
    return f"y: yes  n: no{'  + -: another number' if scales else ''}"


def _hints(*hints: tuple[str, str]) -> Text:
    made = Text()
    for key, text in hints:
        made.append(f" {key}", "bold cyan")
        made.append(f" {text} ", "dim")
    return made
