"""The lines of one job: how it is, its gauges, its processes, its servers, what happened. Pure.

There is what fits: the processes have the most lines, then the events, then the servers; on a
screen that is wide enough the latter two stand at the right.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...common.plain import inert
from ...jobs import figures
from ...jobs.view import STYLES
from ..model import Snapshot
from . import texts
from .grid import fitted, table
from .tables import short

if TYPE_CHECKING:
    from .machine import State

_WIDE, _RIGHT = 120, 54  # columns from which two stand side by side, and of the right one
_LABEL = 10
_ROOMY = 30  # lines from which all curves that fit are drawn
_MOST_CURVES = 3
_MOST_EVENTS = 20
_LEAST_ROWS, _LEAST_EVENTS, _LEAST_SERVERS = 4, 3, 3  # lines, with their heads
_BAR, _USES_BAR = 30, 16
_LEVELS = {
    "good": ("●", "green"),
    "warn": ("!", "yellow"),
    "bad": ("X", "bold red"),
    "ended": ("●", "cyan"),
}


def job_lines(
    state: State, width: int, room: int, now: float, on_screen: bool = True
) -> list[Text]:
    """Return at most `room` lines of the job that is open. Off the screen there is no cursor."""
    snapshot = state.snapshot
    if snapshot is None:
        return [Text.assemble((f" {inert(state.job)}", "bold")), Text(), Text("  Asking …", "dim")]
    gauges = [_title(snapshot, width, now), *_health(snapshot, width)]
    gauges += _gauges(state, snapshot, width, room)
    rest = max(0, room - len(gauges))
    if on_screen and width >= _WIDE:
        return [*gauges, *_beside(state, snapshot, width, rest)]
    rows, events, servers = _shares(
        rest, len(state.rows) + 1, _MOST_EVENTS, len(snapshot["shards"])
    )
    return [
        *gauges,
        *table(state, width, rows, on_screen),
        *_servers(snapshot, servers),
        *_events(snapshot, width, events),
    ]


def _beside(state: State, snapshot: Snapshot, width: int, room: int) -> list[Text]:
    """Return the processes, and beside them the servers and what happened."""
    right = max(_RIGHT, width * 2 // 5)
    left = width - right - 2
    servers = _servers(snapshot, min(len(snapshot["shards"]) + 1, max(2, room // 2)))
    more = servers + ([Text()] if servers else [])
    more += _events(snapshot, right, min(_MOST_EVENTS, room - len(more)))
    made = []
    for one, two in zip_longest(table(state, left, room), more[:room], fillvalue=Text()):
        made.append(fitted(one, left) + Text("  ") + fitted(two, right))
    return made


def _shares(room: int, rows: int, events: int, shards: int) -> tuple[int, int, int]:
    """Return the lines of the processes, of the events and of the servers."""
    servers = shards + 1 if shards else 0
    wants = [rows, events, servers]
    got = [
        min(a, b) for a, b in zip(wants, (_LEAST_ROWS, _LEAST_EVENTS, _LEAST_SERVERS), strict=True)
    ]
    for at in (2, 1):  # on a small screen the servers are left out first
        if sum(got) > room:
            got[at] = 0
    got[0] = min(got[0], room)
    for at in (0, 1, 2):
        got[at] += min(max(0, room - sum(got)), wants[at] - got[at]) if got[at] else 0
    return got[0], got[1], got[2]


# -- gauges


def _title(snapshot: Snapshot, width: int, now: float) -> Text:
    status = snapshot["status"]
    state = str(status.get("state") or "?")
    made = Text.assemble(
        (f" {inert(status.get('job_name', '?'))}", "bold"),
        " · ",
        (inert(state), STYLES.get(state, "cyan")),
    )
    for part in (
        str(status.get("command") or ""),
        f"epoch {told}" if (told := figures.epoch(status)) else "",
        figures.duration(status.get("started_s_ago")),
        f"version {status['version']:,}" if status.get("version") else "",
    ):
        if part:
            made.append(f" · {inert(part)}")
    age = _age(snapshot, now)
    made.truncate(max(0, width - len(age) - 2), overflow="ellipsis", pad=True)
    made.append(f" {age}", "dim")
    return made


def _age(snapshot: Snapshot, now: float) -> str:
    if not snapshot["live"]:
        return "over" if snapshot["health"]["level"] == "ended" else "not heard"
    if snapshot["heard_s"] is None:
        return "not heard yet"
    return f"heard {max(0.0, snapshot['heard_s'] + now - snapshot['at']):.1f} s ago"


def _health(snapshot: Snapshot, width: int) -> list[Text]:
    """Return the sentence in at most three lines."""
    level, text = snapshot["health"]["level"], inert(snapshot["health"]["text"])
    sign, style = _LEVELS.get(level, _LEVELS["warn"])
    lines = textwrap.wrap(text, max(10, width - 4))[:3]
    heads = [f" {sign} ", *["   "] * len(lines)]
    return [Text(f"{head}{line}", style) for head, line in zip(heads, lines, strict=False)]


def _gauges(state: State, snapshot: Snapshot, width: int, room: int) -> list[Text]:
    """Return the lines of figures, of those that the job has."""
    status = snapshot["status"]
    made: list[Text] = []
    if status.get("command") == "launch":
        for name, value in figures.launched(status):
            made += _flow(name, [inert(value)] if value else [], width)
    else:
        made += _progress(status, width)
    made += _flow("meter", _meter(snapshot["meter"]), width)
    made += _curves(state, snapshot, width, room)
    made += _time(snapshot["goodput"], width)
    made += _flow("teachers", _teaching(snapshot["teaching"]), width)
    made += _flow("plan", _aside(snapshot["schedule"]), width)
    made += _flow("cost", _aside(snapshot["cost"]), width)
    lost = figures.quarantined(status.get("quarantined") or ())
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        made.append(_labelled("skipped", Text(f"{inert(lost[0])}{more}", "red")))
    return made


def _labelled(label: str, text: Text) -> Text:
    return Text(f" {label:<{_LABEL}}", "dim") + text


def _flow(label: str, parts: Sequence[str], width: int) -> list[Text]:
    """Return parts in as few lines as they take; nothing where there are none."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and _LABEL + 2 + len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    heads = [label, *[""] * len(lines)]
    return [_labelled(head, Text(line)) for head, line in zip(heads, lines, strict=False)]


def _progress(status: dict[str, Any], width: int) -> list[Text]:
    told = figures.progress(status)
    if not told:
        return []
    if (eta := figures.eta_s(status)) is not None and eta > 0:
        told += f" · ETA {figures.duration(eta)}"
    if rate := status.get("records_per_s"):
        told += f" · {rate:,.0f}/s"
    done, total = status.get("records_done") or 0, status.get("records_total")
    if not total:
        return [_labelled("records", Text(told))]
    space = max(8, min(_BAR, width - _LABEL - len(told) - 4))
    return [_labelled("records", texts.meter(done / total, space) + f"  {told}")]


def _meter(meter: dict[str, Any] | None) -> list[str]:
    """Return where each record is: that none is lost, and none counted twice, is first."""
    if meter is None:
        return []
    names = ("lost", "twice", "applied", "leased", "todo", "recomputed", "quarantined")
    told = [name for name in names if meter.get(name) is not None]
    figured = {name: f"{meter[name]:,}" for name in told}
    return [
        f"{figured[name]} {name}" if name in ("lost", "twice") else f"{name} {figured[name]}"
        for name in told
    ]


def _curves(state: State, snapshot: Snapshot, width: int, room: int) -> list[Text]:
    """Return the curve that was chosen, and others where there is room."""
    scalars = snapshot["scalars"]
    order = sorted(scalars, key=lambda name: (name != "loss", name == "records_per_s", name))
    order = [name for name in order if scalars[name]]
    if not order:
        return []
    at = state.curve % len(order)
    shown = (order[at:] + order[:at])[: _MOST_CURVES if room >= _ROOMY else 1]
    return [_curve(name, scalars[name], width) for name in shown]


def _curve(name: str, points: Sequence[Any], width: int) -> Text:
    told = short(points[-1][2])
    if values := [value for _, _, value in points if math.isfinite(value)]:
        told += f"  least {short(min(values))}  most {short(max(values))}"
    label = inert(name.replace("records_per_s", "records/s"))
    if len(label) >= _LABEL:
        told, label = f"{told}  {label}", "curve"
    space = max(8, min(_BAR * 2, width - _LABEL - len(told) - 4))
    return _labelled(label, Text.assemble((texts.curve(points, space), "cyan"), f"  {told}"))


def _time(goodput: dict[str, float], width: int) -> list[Text]:
    """Return what the machines' time was used for: a bar, and each use with its character."""
    total = sum(goodput.values())
    if total <= 0:
        return []
    made = [texts.parts(goodput, _USES_BAR)]
    for name in [name for name in texts.USES if goodput.get(name)]:
        character, style, words = texts.USES[name]
        told = Text.assemble((f"  {character} ", style), words)
        told.append(f" {100 * goodput[name] / total:.0f} %")
        if _LABEL + 1 + made[-1].cell_len + told.cell_len > width:
            made.append(Text(" " * _USES_BAR))
        made[-1].append_text(told)
    return [_labelled("" if number else "time", line) for number, line in enumerate(made)]


def _teaching(teaching: dict[str, Any] | None) -> list[str]:
    if teaching is None:
        return []
    told = [f"{len(teaching['teachers'])} there"] if teaching.get("teachers") else []
    if (share := teaching.get("wait_share")) is not None:
        told.append(f"workers wait {100 * share:.0f} %")
    names = ("records", "cached", "untaught")
    return told + [f"{name} {teaching[name]:,}" for name in names if teaching.get(name)]


def _aside(told: dict[str, Any] | None) -> list[str]:
    """Return what others say of the job: why it waits first."""
    if told is None:
        return []
    why = [str(told["why"])] if told.get("why") else []
    rest = [f"{name} {_value(value)}" for name, value in told.items() if name != "why"]
    return [inert(part) for part in why + rest]


def _value(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


# -- tables that have no cursor


def _servers(snapshot: Snapshot, room: int) -> list[Text]:
    """Return the servers, with the last line for those that it has no room for."""
    shards = snapshot["shards"]
    if room < 2 or not shards:
        return []
    shown = shards if len(shards) < room else shards[: room - 2]
    made = [
        Text(f"  {'server':<10}{'rows':>12}{'size':>10}{'pulls/s':>10}{'pushes/s':>10}", "bold")
    ]
    for shard in shown:
        calls = (_calls(shard.get(name)) for name in ("pulls_per_s", "pushes_per_s"))
        pulls, pushes = calls
        size = "-" if shard.get("nbytes") is None else _size(shard["nbytes"])
        rows = "-" if shard.get("rows") is None else f"{shard['rows']:,}"
        name = inert(shard["name"])
        made.append(Text(f"  {name:<10}{rows:>12}{size:>10}{pulls:>10}{pushes:>10}"))
    if len(shown) < len(shards):
        made.append(Text(f"  … {len(shards) - len(shown)} more", "dim"))
    return made


def _calls(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def _events(snapshot: Snapshot, width: int, room: int) -> list[Text]:
    """Return what happened last, the newest at the end, as far as there is room."""
    if room < 2 or not snapshot["events"]:
        return []
    made: list[Text] = []
    for event in reversed(snapshot["events"]):
        lines = list(_event(event, width))
        if len(made) + len(lines) > room - 1:
            break
        made = lines + made
    return [Text("  events", "bold"), *made] if made else []


def _event(event: dict[str, Any], width: int) -> Iterator[Text]:
    head = f"  {figures.duration(event['t']):>7}  "
    style = {"death": "red", "scale": "yellow"}.get(event["kind"], "")
    for line in textwrap.wrap(inert(event["text"]), max(10, width - len(head))):
        yield Text.assemble((head, "dim"), (line, style))
        head = " " * len(head)
