"""`edl top`: jobs in a terminal, as the dashboard shows them, and the pods of a cluster's job."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common import finite
from .dashboard import check_from, from_option, jobs_at, prices_option
from .options import NAMES
from .output import is_drawn, outputs, print_data, print_report
from .place import cluster_job, complete_jobs, where

if TYPE_CHECKING:
    from ..dashboard.asides import Asides
    from ..jobs.job import Jobs

_WIDE = 160  # columns in a pipe, where nothing is cut for a screen


@click.command(context_settings=NAMES)
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--once", is_flag=True, help="Print what there is now, as in a pipe, and end.")
@click.option("--pods", is_flag=True, help="What the pods of a job ask for, use and do, once.")
@from_option
@prices_option
@outputs()
@where
def top(
    job: str | None,
    once: bool,
    pods: bool,
    folder: Path | None,
    prices: str | None,
    output: str,
    runtime: str,
    namespace: str,
) -> None:
    """Show all jobs, or one, in a terminal and follow them; keys sort, show logs, scale, stop.

    In a pipe, with --once or with -o it prints what there is now.
    """
    check_from(folder, runtime, namespace)
    if pods:
        _pods(job, output, runtime, namespace)
        return
    from ..dashboard.asides import Asides

    with jobs_at(folder, runtime, namespace) as jobs:
        name = jobs.find(job).name if job or folder is not None else ""
        asides = Asides(jobs, prices or "")
        if once or output != "table" or not _is_terminal():
            _print(jobs, name, asides, output)
            return
        from rich.console import Console

        from ..dashboard.terminal.top import run

        run(jobs, name, asides, sys.stdin.fileno(), Console())


def _is_terminal() -> bool:
    """Tell whether there is a keyboard, and a screen that can be drawn on."""
    drawable = os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    return drawable and sys.stdin.isatty() and sys.stdout.isatty()


def _pods(job: str | None, output: str, runtime: str, namespace: str) -> None:
    with cluster_job(job, runtime, namespace, "leave out --pods for a local one") as found:
        report, measured = found.usage()
    print_report(report, output)
    if not measured and is_drawn(output):
        click.echo("What they use is not known: this cluster has no metrics API (metrics-server).")


def _print(jobs: Jobs, name: str, asides: Asides, output: str) -> None:
    """Print what there is now: as data what the dashboard's interface answers, else as lines."""
    from ..dashboard.actions import Actions
    from ..dashboard.model import SCHEMA
    from ..dashboard.sources import model_of

    now = time.time()
    found: dict[str, Any] = {"schema": SCHEMA}
    if name:
        job = jobs.find(name)
        found = model_of(job, asides).snapshot(now, Actions(True).on(job))
    else:
        found["jobs"] = jobs.statuses()
    if not is_drawn(output):
        print_data(finite.loads(finite.dumps(found)), output)  # of plain lists, none of them shared
        return
    from rich.console import Console

    from ..dashboard.terminal import events, machine
    from ..dashboard.terminal.draw import snapshot_lines

    state = machine.State(job=name, alone=bool(name))
    news = events.Seen(name, found) if name else events.Listed(found["jobs"])
    console = Console(width=None if sys.stdout.isatty() and output == "table" else _WIDE)
    state, _ = machine.step(state, news)
    for line in snapshot_lines(state, console.width, now, console.options.ascii_only):
        line.rstrip()
        console.print(line, no_wrap=True, crop=False, overflow="ignore")
