"""A job's status as text: the live panel, a plain line, the summary at the end, the table of jobs.

All are pure functions of the status that the master answers (docs/cli.md lists its fields). What
others say in it is inert (common/plain.py), and never markup.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..common.plain import inert_texts
from . import figures
from .job import Status

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

STYLES = {
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "dead": "red",
    "silent": "red",
    "lost": "red",
    "stopping": "yellow",
    "draining": "yellow",
    "starting": "yellow",
    "queued": "yellow",
    "waiting": "yellow",
}
_MOST_REPLICAS = 12  # rows of a panel that still fits a screen with the rest
_MOST_EVENTS = 6


def panel(status: Status) -> RenderableType:
    """Draw the live view."""
    status = inert_texts(status)
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    top = Table.grid(padding=(0, 1), expand=True)
    top.add_column(no_wrap=True, style="dim")
    top.add_column(ratio=1)
    if status.get("command") == "launch":
        for name, value in figures.launched(status):
            top.add_row(name, value)
    else:
        top.add_row("records", _bar(status))
        top.add_row("now", " · ".join(figures.now(status)) or "-")
        top.add_row("tasks", figures.tasks(status))
        if status.get("best"):
            top.add_row("best", figures.best(status["best"]))
        top.add_row("restarts", figures.restarts(status))
    parts: list[RenderableType] = [top]
    if message := status.get("message"):
        parts.append(Text(str(message), style="yellow"))
    replicas = (*(status.get("workers") or ()), *(status.get("servers") or ()))
    if any(map(figures.is_there, replicas)):
        parts += [Text(""), _replicas(status)]
    if status.get("nodes"):
        parts += [Text(""), _nodes(status)]
    if quarantined := status.get("quarantined"):
        told = (f"! {found}" for found in figures.quarantined(quarantined))
        parts += [Text(""), *(Text(text, style="red") for text in told)]
    if events := status.get("events"):
        parts.append(Text(""))
        for event in events[-_MOST_EVENTS:]:
            time = f"{figures.duration(event['t']):>6}  "
            parts.append(Text.assemble((time, "dim"), event["text"]))
    state = str(status.get("state", "?"))
    title = Text.assemble(
        f" edl {status.get('command') or 'job'} · {status.get('job_name', '?')} · ",
        (state, STYLES.get(state, "cyan")),
        f" · {figures.duration(status.get('started_s_ago'))} ",
    )
    return Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED, padding=(0, 1))


def line(status: Status) -> str:
    """Return where the job stands, in one line."""
    status = inert_texts(status)
    if status.get("command") == "launch":
        return f"{status.get('state', '?')} · {dict(figures.launched(status))['now']}".rstrip(" ·")
    parts = [str(status.get("state", "?")), figures.progress(status)]
    parts += figures.now(status)
    tasks = status.get("tasks") or {}
    parts.append(f"tasks {tasks.get('done', 0)}/{tasks.get('total') or '?'}")
    parts.append(f"workers {figures.counted(status.get('workers'))}")
    parts.append(f"servers {figures.counted(status.get('servers'))}")
    if (eta := figures.eta_s(status)) is not None and eta > 0:
        parts.append(f"ETA {figures.duration(eta)}")
    return " · ".join(part for part in parts if part)


def summary(status: Status, next_command: str = "") -> list[str]:
    """Return what a job that ended has to tell."""
    status = inert_texts(status)
    time = figures.duration(status.get("started_s_ago"))
    if status.get("command") == "launch":
        rows = [("state", figures.end(status)), ("time", time)]
        rows += [*figures.launched(status), ("next", next_command)]
        return [f"{name:<12} {value}" for name, value in rows if value]
    rows = [("state", figures.end(status)), ("records", figures.progress(status))]
    rows.append(("time", f"{time}{figures.mean_rate(status)}"))
    if metrics := status.get("metrics"):
        rows.append(("metrics", " · ".join(f"{k} {figures.number(v)}" for k, v in metrics.items())))
    if status.get("loss") is not None:
        rows.append(("loss", figures.number(status["loss"])))
    if best := status.get("best"):
        rows.append(("best", f"{figures.best(best)} · {best['checkpoint']}"))
    rows.append(("restarts", figures.restarts(status)))
    for found in figures.quarantined(status.get("quarantined") or ()):
        rows.append(("quarantined", found))
    if status.get("checkpoint"):
        rows.append(("checkpoint", str(status["checkpoint"])))
    if status.get("predictions"):
        rows.append(("predictions", str(status["predictions"])))
    if next_command:
        rows.append(("next", next_command))
    lines = [f"{name:<12} {value}" for name, value in rows if value]
    if resume := _resume_command(status):
        lines.append(resume)  # alone, to be copied
    return lines


def _resume_command(status: Status) -> str:
    """Return what goes on with a training job that ended too early."""
    resume = status.get("resume")
    return f"edl train --resume {shlex.quote(resume)}" if resume else ""


def jobs_table(statuses: Sequence[Status], wide: bool = False) -> Table:
    """Make a table of one row per job; 80 columns are enough, unless it is wide."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    made.add_column("job", no_wrap=True)
    made.add_column("state", no_wrap=True)
    for name in ("done", "epoch", "records/s", "loss", "workers", "time"):
        made.add_column(name, justify="right", no_wrap=True)
    if wide:
        for name in ("servers", "version", "restarts"):
            made.add_column(name, justify="right", no_wrap=True)
        made.add_column("message", overflow="fold")
    for status in inert_texts(statuses):
        state = str(status.get("state", "?"))
        rate, launched = status.get("records_per_s"), status.get("command") == "launch"
        made.add_row(
            str(status.get("job_name", "?")),
            Text(state, style=STYLES.get(state, "cyan")),
            figures.percent(status),
            figures.epoch(status) or "-",
            f"{rate:,.0f}" if rate else "-",
            figures.number(status["loss"]) if status.get("loss") is not None else "-",
            figures.counted(status.get("nodes" if launched else "workers")),
            figures.duration(status.get("started_s_ago")),
            *(_more(status) if wide else ()),
        )
    return made


def _more(status: Status) -> list[str]:
    restarts = status.get("restarts") or {}
    return [
        figures.counted(status.get("servers")),
        figures.or_dash(status.get("version")),
        str(sum(restarts.get(name) or 0 for name in ("worker", "server", "master"))),
        str(status.get("message") or ""),
    ]


def events(told: Sequence[Status]) -> Table:
    """Make a table of what happened in a job, with the time since it began."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(justify="right", no_wrap=True, style="dim")
    made.add_column()
    for event in inert_texts(told):
        made.add_row(figures.duration(event["t"]), event["text"])
    return made


def _bar(status: Status) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done, total = status.get("records_done") or 0, status.get("records_total")
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    eta = figures.eta_s(status)
    told = figures.progress(status) + (f" · ETA {figures.duration(eta)}" if eta else "")
    grid.add_row(ProgressBar(total=total or None, completed=done, pulse=not total), told)
    return grid


def _replicas(status: Status) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("replica", "state"):
        made.add_column(name, no_wrap=True)
    for name in ("task", "records/s", "version", "pid", "heard of"):
        made.add_column(name, justify="right", no_wrap=True)
    rows = [("worker", r) for r in status.get("workers") or ()]
    rows += [("server", r) for r in status.get("servers") or ()]
    rows += [("teacher", r) for r in status.get("teachers") or ()]
    rows = [(role, replica) for role, replica in rows if figures.is_there(replica)]
    for role, replica in rows[:_MOST_REPLICAS]:
        state = str(replica.get("state") or "?")
        rate = replica.get("records_per_s") or replica.get("rows_per_s")
        age = replica.get("heartbeat_age_s")
        made.add_row(
            f"{role}-{replica.get('index', '?')}",
            Text(state, style=STYLES.get(state, "green")),
            figures.or_dash(replica.get("task")),
            f"{rate:,.0f}" if rate else "-",
            figures.or_dash(replica.get("version")),
            figures.or_dash(replica.get("pid")),
            "-" if age is None else f"{age:.1f} s ago",
        )
    if len(rows) > _MOST_REPLICAS:
        made.add_row(f"… {len(rows) - _MOST_REPLICAS} more")
    return made


def _nodes(status: Status) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("node", "state"):
        made.add_column(name, no_wrap=True)
    for name in ("rank", "workers", "pid", "heard of"):
        made.add_column(name, justify="right", no_wrap=True)
    for name in ("host", "why it waits"):
        made.add_column(name)
    for node in status["nodes"][:_MOST_REPLICAS]:
        state = str(node["state"])
        made.add_row(
            f"node-{node['index']}",
            Text(state, style=STYLES.get(state, "green")),
            figures.or_dash(node["rank"]),
            figures.or_dash(node["nproc"]),
            figures.or_dash(node["pid"]),
            f"{node['heartbeat_age_s']:.1f} s ago",
            node["host"],
            node["held_back"],
        )
    if len(status["nodes"]) > _MOST_REPLICAS:
        made.add_row(f"… {len(status['nodes']) - _MOST_REPLICAS} more")
    return made
