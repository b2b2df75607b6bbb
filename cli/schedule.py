"""`edl schedule`: share out workers among many jobs, and tell why."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common.errors import UsageError
from .options import NAMES
from .output import is_drawn, outputs, print_report
from .place import complete_jobs

if TYPE_CHECKING:
    from rich.table import Table

    from ..scheduler.service import Service

_COLUMNS = {"JOB": "name", "HAS": "held", "GETS": "workers", "MIN": "minimum", "MAX": "maximum"}


@click.group(context_settings=NAMES)
def schedule() -> None:
    """Share out workers among the jobs of this machine that were queued (`edl train --queue`)."""


def _policy(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that a plan depends on."""
    for option in (
        click.option(
            "--workers", type=click.IntRange(1), help="Of all jobs at once. [default: cores]"
        ),
        click.option(
            "--objective", default="finish", show_default=True, help="What plans are to reach."
        ),
        click.option(
            "--patience",
            default=3600.0,
            show_default=True,
            metavar="SECONDS",
            help="Whoever waits longer is served first.",
        ),
    ):
        command = option(command)
    return command


@schedule.command()
@_policy
@click.option("--every", default=5.0, show_default=True, metavar="SECONDS", help="A round.")
def serve(every: float, **policy: Any) -> None:
    """Begin queued jobs, and change their workers, until Ctrl-C; jobs go on without it."""
    from ..scheduler import service

    if not every > 0:
        raise UsageError(f"--every {every}: give a time above 0 s.")
    made = _service(**policy)
    stop = threading.Event()
    lock = service.claim()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        made.serve(every, stop)
    finally:
        os.close(lock)


@schedule.command()
@_policy
@outputs()
def plan(output: str, **policy: Any) -> None:
    """Show what would be planned now; change nothing."""
    _show(_service(**policy).plan(), output)


@schedule.command()
@outputs()
def status(output: str) -> None:
    """Show the last plan: who has how many workers, who gets how many, and why."""
    from ..scheduler import service

    last = service.last_plan()
    _show(last, output)
    if is_drawn(output):
        runs = "runs" if service.serves() else "does not run: `edl schedule serve`"
        click.echo(f"Planned {max(0, int(time.time()) - last['at'])} s ago; the scheduler {runs}.")


@schedule.command()
@click.argument("job", shell_complete=complete_jobs)
def why(job: str) -> None:
    """Tell why a job has what it has."""
    from ..scheduler import service

    rows = {row["name"]: row for row in service.last_plan()["jobs"]}
    if job not in rows:
        known = ", ".join(rows) or "none at all"
        raise UsageError(f"The last plan has no job {job!r}; it has {known}.")
    click.echo(f"{job}: {rows[job]['why']}")


@schedule.command()
@click.argument("workload", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False),
    required=True,
    help="A folder for each application: how fast it is, and how it learns.",
)
@click.option("--nodes", default=16, show_default=True, type=click.IntRange(1), help="Of a kind.")
@click.option("--gpus", default=4, show_default=True, type=click.IntRange(1), help="Of a node.")
@click.option("--objective", default=("finish",), multiple=True, help="May be given repeatedly.")
@click.option(
    "--known",
    type=click.Choice(["none", "stated", "exact"]),
    default="stated",
    show_default=True,
    help="Of what is left; stated: with an error of 30 %.",
)
@click.option("--restart", default=30.0, show_default=True, metavar="SECONDS", help="Of a change.")
@click.option("--seed", default=0, show_default=True, help="Of the errors.")
@click.option("--plots", type=click.Path(file_okay=False), help="A folder for pictures, as SVG.")
def simulate(
    workload: str,
    traces: str,
    nodes: int,
    gpus: int,
    objective: tuple[str, ...],
    plots: str | None,
    **rules: Any,
) -> None:
    """Play a workload of many jobs (name, time, application) with the same policies."""
    from ..scheduler.policy import make_policy
    from ..scheduler.simulator import play, plot
    from ..scheduler.simulator.application import read_applications
    from ..scheduler.simulator.workload import read_workload

    policies = {name: make_policy(name) for name in objective}
    applications = read_applications(Path(traces))
    arrivals = read_workload(Path(workload), applications)
    how = play.Rules(restart_s=rules["restart"], known=rules["known"], seed=rules["seed"])
    machines, results = play.cluster(nodes, gpus), {}
    click.echo("objective   mean JCT      p50      p99  makespan  restarts  GPU h  policy CPU")
    for name, policy in policies.items():
        found = results[name] = play.play(
            arrivals, applications, machines, policy.plan, how, time.process_time
        )
        click.echo(
            f"{name:<12}{found.mean:7,.0f} s{found.percentile(50):7,.0f} s"
            f"{found.percentile(99):7,.0f} s{found.makespan:8,.0f} s{found.restarts:10.1f}"
            f"{found.gpu_s / 3600:7,.0f}{found.policy_cpu_s:10.1f} s"
        )
    if plots:
        Path(plots).mkdir(parents=True, exist_ok=True)
        for what, drawn in (("jct", plot.jct_by_job), ("gpus", plot.gpus_over_time)):
            (Path(plots) / f"{what}.svg").write_text(drawn(results))
        click.echo(f"{plots}/jct.svg and gpus.svg are written")


def _service(workers: int | None, objective: str, patience: float) -> Service:
    from ..scheduler.local import LocalPlace
    from ..scheduler.policy import Limits, make_policy
    from ..scheduler.service import Service

    policy = make_policy(objective, Limits(patience_s=patience))
    return Service(LocalPlace(workers or os.cpu_count() or 1), policy, time.time, click.echo)


def _show(plan: dict[str, Any], output: str) -> None:
    from ..jobs.job import Report

    if is_drawn(output) and not plan["jobs"]:
        click.echo("No job of this machine is queued: `edl train --queue` puts one there.")
        return
    print_report(Report(plan, lambda _wide: _table(plan["jobs"])), output)


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in (*_COLUMNS, "LEFT", "WHY"):
        table.add_column(column, justify="left" if column in ("JOB", "WHY") else "right")
    for row in rows:
        left = "" if row["records_left"] is None else f"{row['records_left']:,.0f}"
        table.add_row(*(str(row[name]) for name in _COLUMNS.values()), left, row["why"])
    return table
