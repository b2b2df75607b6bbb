"""A job's status as text: the live panel, a plain line, the summary at the end, the table of jobs.

All are pure functions of the status that the master answers (docs/cli.md lists its fields).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .job import ENDED, Status

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STYLES = {
    "done": "green",
    "failed": "red",
    "dead": "red",
    "silent": "red",
    "lost": "red",
    "stopping": "yellow",
    "draining": "yellow",
    "starting": "yellow",
    "waiting": "yellow",
}
_ENDS: dict[int | None, str] = {3: "finished with quarantined data", 130: "interrupted"}
_MOST_REPLICAS = 12  # rows of a panel that still fits a screen with the rest
_MOST_EVENTS = 6


def panel(status: Status) -> RenderableType:
    """The live view."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    top = Table.grid(padding=(0, 1), expand=True)
    top.add_column(no_wrap=True, style="dim")
    top.add_column(ratio=1)
    if status.get("command") == "launch":
        for name, value in _launched(status):
            top.add_row(name, value)
    else:
        top.add_row("records", _bar(status))
        top.add_row("now", " · ".join(_figures(status)) or "-")
        top.add_row("tasks", _tasks(status))
        if status.get("best"):
            top.add_row("best", _best(status["best"]))
        top.add_row("restarts", _restarts(status))
    parts: list[RenderableType] = [top]
    if message := status.get("message"):
        parts.append(Text(str(message), style="yellow"))
    if any(map(_is_there, (*(status.get("workers") or ()), *(status.get("servers") or ())))):
        parts += [Text(""), _replicas(status)]
    if status.get("nodes"):
        parts += [Text(""), _nodes(status)]
    if quarantined := status.get("quarantined"):
        parts += [Text(""), *(Text(f"! {line}", style="red") for line in _quarantined(quarantined))]
    if events := status.get("events"):
        parts.append(Text(""))
        for event in events[-_MOST_EVENTS:]:
            parts.append(Text.assemble((f"{duration(event['t']):>6}  ", "dim"), event["text"]))
    state = str(status.get("state", "?"))
    title = Text.assemble(
        f" edl {status.get('command') or 'job'} · {status.get('job_name', '?')} · ",
        (state, _STYLES.get(state, "cyan")),
        f" · {duration(status.get('started_s_ago'))} ",
    )
    return Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED, padding=(0, 1))


def line(status: Status) -> str:
    """Return where the job stands, in one line."""
    parts = [str(status.get("state", "?")), _progress(status)]
    parts += _figures(status)
    tasks = status.get("tasks") or {}
    parts.append(f"tasks {tasks.get('done', 0)}/{tasks.get('total') or '?'}")
    parts.append(f"workers {_counted(status.get('workers'))}")
    parts.append(f"servers {_counted(status.get('servers'))}")
    if (eta := _eta_s(status)) is not None and eta > 0:
        parts.append(f"ETA {duration(eta)}")
    return " · ".join(part for part in parts if part)


def summary(status: Status, next_command: str = "") -> list[str]:
    """Return what a job that ended has to tell."""
    if status.get("command") == "launch":
        rows = [("state", _end(status)), ("time", duration(status.get("started_s_ago")))]
        rows += [*_launched(status), ("next", next_command)]
        return [f"{name:<12} {value}" for name, value in rows if value]
    rows = [("state", _end(status)), ("records", _progress(status))]
    rows.append(("time", f"{duration(status.get('started_s_ago'))}{_mean_rate(status)}"))
    if metrics := status.get("metrics"):
        rows.append(("metrics", " · ".join(f"{k} {_figure(v)}" for k, v in metrics.items())))
    if status.get("loss") is not None:
        rows.append(("loss", _figure(status["loss"])))
    if best := status.get("best"):
        rows.append(("best", f"{_best(best)} · {best['checkpoint']}"))
    rows.append(("restarts", _restarts(status)))
    for found in _quarantined(status.get("quarantined") or ()):
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
    for status in statuses:
        state = str(status.get("state", "?"))
        rate = status.get("records_per_s")
        made.add_row(
            str(status.get("job_name", "?")),
            Text(state, style=_STYLES.get(state, "cyan")),
            _percent(status),
            _epoch(status) or "-",
            f"{rate:,.0f}" if rate else "-",
            _figure(status["loss"]) if status.get("loss") is not None else "-",
            _counted(status.get("nodes" if status.get("command") == "launch" else "workers")),
            duration(status.get("started_s_ago")),
            *(_more(status) if wide else ()),
        )
    return made


def _more(status: Status) -> list[str]:
    restarts = status.get("restarts") or {}
    return [
        _counted(status.get("servers")),
        _or_dash(status.get("version")),
        str(sum(restarts.get(name) or 0 for name in ("worker", "server", "master"))),
        str(status.get("message") or ""),
    ]


def events(told: Sequence[Status]) -> Table:
    """Make a table of what happened in a job, with the time since it began."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(justify="right", no_wrap=True, style="dim")
    made.add_column()
    for event in told:
        made.add_row(duration(event["t"]), event["text"])
    return made


def duration(seconds: float | None) -> str:
    """0:07, 12:34, 1:02:03."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(status: Status) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done, total = status.get("records_done") or 0, status.get("records_total")
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    eta = _eta_s(status)
    told = _progress(status) + (f" · ETA {duration(eta)}" if eta else "")
    grid.add_row(ProgressBar(total=total or None, completed=done, pulse=not total), told)
    return grid


def _progress(status: Status) -> str:
    done, total = status.get("records_done"), status.get("records_total")
    if done is None:
        return ""
    if not total:
        return f"{done:,} records"
    return f"{_percent(status)} {done:,}/{total:,} records"


def _percent(status: Status) -> str:
    done, total = status.get("records_done"), status.get("records_total")
    if done is None or not total:
        return "-" if done is None else f"{done:,}"
    return f"{100 * done // total} %"  # rounded down: 100 % is said of all only


def _epoch(status: Status) -> str:
    epoch, epochs = status.get("epoch"), status.get("num_epochs")
    if epoch is None or status.get("command") not in (None, "train"):
        return ""
    return f"{min(epoch + 1, epochs)}/{epochs}" if epochs else f"{epoch + 1}"


def _figures(status: Status) -> list[str]:
    """Epoch, rate, loss, version and metrics, as far as they are known."""
    made = []
    if epoch := _epoch(status):
        made.append(f"epoch {epoch}")
    if status.get("records_per_s"):
        made.append(f"{status['records_per_s']:,.0f} records/s")
    if status.get("loss") is not None:
        made.append(f"loss {_figure(status['loss'])}")
    if status.get("version"):
        made.append(f"version {status['version']:,}")
    if status.get("minibatch"):
        made.append(f"minibatch {status['minibatch']:,.0f} (gain {status['gain']:.3g})")
    made += [f"{name} {_figure(value)}" for name, value in (status.get("metrics") or {}).items()]
    return made


def _tasks(status: Status) -> str:
    tasks = status.get("tasks") or {}
    told = " · ".join(f"{name} {tasks.get(name) or 0:,}" for name in ("todo", "leased", "fencing"))
    total = tasks.get("total")
    return f"{told} · done {tasks.get('done') or 0:,}{f' of {total:,}' if total else ''}"


def _restarts(status: Status) -> str:
    restarts = status.get("restarts") or {}

    def of(*names: tuple[str, str]) -> str:
        return ", ".join(f"{name} {restarts.get(key) or 0}" for name, key in names)

    failed = of(("workers", "worker"), ("servers", "server"))
    killed = of(("workers", "preemptions"), ("servers", "server_preemptions"), ("master", "master"))
    return f"preempted: {killed} · failed: {failed}"


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
    rows = [(role, replica) for role, replica in rows if _is_there(replica)]
    for role, replica in rows[:_MOST_REPLICAS]:
        state = str(replica.get("state") or "?")
        rate, age = replica.get("records_per_s"), replica.get("heartbeat_age_s")
        made.add_row(
            f"{role}-{replica.get('index', '?')}",
            Text(state, style=_STYLES.get(state, "green")),
            _or_dash(replica.get("task")),
            f"{rate:,.0f}" if rate else "-",
            _or_dash(replica.get("version")),
            _or_dash(replica.get("pid")),
            "-" if age is None else f"{age:.1f} s ago",
        )
    if len(rows) > _MOST_REPLICAS:
        made.add_row(f"… {len(rows) - _MOST_REPLICAS} more")
    return made


def _launched(status: Status) -> list[tuple[str, str]]:
    """Return what there is to say of a launched job, whose records are its script's own."""
    least, most = status.get("min_nodes"), status.get("max_nodes")
    running = sum(node["state"] in ("running", "finished") for node in status.get("nodes") or ())
    now = [f"round {status['round']}"] if status.get("round") else []
    if status.get("world_size"):
        now.append(f"nodes {running} · workers {status['world_size']}")
    if status.get("throughput") is not None:
        now.append(f"{status['throughput']:,.1f} /s")
    if status.get("remaining_s") is not None:
        now.append(f"{duration(status['remaining_s'])} left")
    restarts = f"{status.get('num_restarts') or 0}, failures {status.get('failures') or 0}"
    return [
        ("script", str(status.get("script") or "")),
        ("nodes", f"{least} to {most}" if least != most else str(least)),
        ("now", " · ".join(now)),
        ("restarts", restarts),
        ("state in", str(status.get("checkpoint_dir") or "")),
    ]


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
            Text(state, style=_STYLES.get(state, "green")),
            _or_dash(node["rank"]),
            _or_dash(node["nproc"]),
            _or_dash(node["pid"]),
            f"{node['heartbeat_age_s']:.1f} s ago",
            node["host"],
            node["held_back"],
        )
    if len(status["nodes"]) > _MOST_REPLICAS:
        made.add_row(f"… {len(status['nodes']) - _MOST_REPLICAS} more")
    return made


def _quarantined(found: Iterable[Status]) -> list[str]:
    """Return one line per place: file, record numbers, the error."""
    return [
        f"{entry.get('source') or '?'} {_numbers(entry.get('records') or [])}: {entry.get('error')}"
        f"{_places(entry.get('where') or [])}"
        for entry in found
    ]


def _places(where: Sequence[Status]) -> str:
    """(training, epochs 1 and 2; evaluation): a record that is broken for good is found each time."""
    told = []
    for kind in dict.fromkeys(place["kind"] for place in where):
        epochs = [str(place["epoch"] + 1) for place in where if place["kind"] == kind]
        more = "" if kind == "prediction" else f", epoch{'s' if len(epochs) > 1 else ''} "
        told.append(f"{kind}{more}{', '.join(epochs) if more else ''}")
    return f" ({'; '.join(told)})" if told else ""


def _best(best: Status) -> str:
    return f"{best['metric']} {_figure(best['value'])} · epoch {best['epoch'] + 1} · version {best['version']:,}"


def _numbers(records: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in records[:10])
    more = f" and {len(records) - 10} more" if len(records) > 10 else ""
    return f"record{'s' if len(records) != 1 else ''} {shown or '?'}{more}"


def _end(status: Status) -> str:
    state = str(status.get("state", "?"))
    if state in ENDED:
        state = _ENDS.get(status.get("exit_code"), state)
    message = str(status.get("message") or "")
    return f"{state}: {message}" if message not in ("", state) else state


def _mean_rate(status: Status) -> str:
    """Return the rate of this run: what an earlier one did, it did in its own time."""
    seconds = status.get("run_s") or status.get("started_s_ago")
    done = (status.get("records_done") or 0) - (status.get("records_before") or 0)
    return f" · {done / seconds:,.0f} records/s in the mean" if seconds and done > 0 else ""


def _eta_s(status: Status) -> float | None:
    total, rate = status.get("records_total"), status.get("records_per_s")
    if not total or not rate or status.get("state") in ENDED:
        return None
    return max(0.0, float(total - (status.get("records_done") or 0)) / float(rate))


def _counted(replicas: Sequence[Status] | None) -> str:
    return "-" if replicas is None else str(sum(map(_is_there, replicas)))


def _is_there(replica: Status) -> bool:
    """Return whether it runs, or is to: one that has left counts no more."""
    return replica.get("state") != "left"


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _or_dash(value: Any) -> str:
    return "-" if value in (None, "") else str(value)
