"""`edl schedule`: share out workers among many jobs, and tell why."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common import cores
from ..common.errors import UsageError
from . import nodes as pool
from .options import NAMES
from .output import is_drawn, outputs, print_report, say
from .paths import LocalPath
from .place import complete_jobs, where

if TYPE_CHECKING:
    from rich.table import Table

    from ..k8s.api import Api
    from ..scheduler.jobs import Quota
    from ..scheduler.policy import Policy

_COLUMNS = {"JOB": "name", "HAS": "held", "GETS": "workers", "MIN": "minimum", "MAX": "maximum"}


@click.group(context_settings=NAMES)
def schedule() -> None:
    """Share out workers among jobs that were queued: `edl train --queue`, `edl submit --queue`."""


def _policy(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that a plan depends on."""
    for option in (
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="Of all jobs of this machine at once. [default: cores]",
        ),
        click.option(
            "--quotas",
            type=LocalPath(),
            help="YAML: a list of {namespace, user, cpu, memory, gpu, priority}, the most of each.",
        ),
        click.option(
            "-A", "--all-namespaces", "everywhere", is_flag=True, help="All jobs of the cluster."
        ),
        where,
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
@pool.nodes_options
def serve(
    every: float, runtime: str, namespace: str, everywhere: bool, workers: int | None, **rules: Any
) -> None:
    """Begin queued jobs, and change their workers, until Ctrl-C; jobs go on without it."""
    from ..scheduler import local, service, serving

    if not every > 0:
        raise UsageError(f"--every {every}: give a time above 0 s.")
    asked = pool.take(rules)
    policy, quotas = _made(**rules)
    beside = pool.made(asked, policy, runtime == "kubernetes" or bool(namespace))
    with _cluster(runtime, namespace, everywhere, workers, "edl-scheduler") as api:
        if api is not None:
            serving.serve_cluster(api, everywhere, policy, every, click.echo, beside, quotas)
            return
        place = local.LocalPlace(workers or cores.usable())
        serving.serve_here(service.Service(place, policy, time.time, click.echo), every)


@schedule.command()
@_policy
@outputs()
def plan(
    output: str,
    runtime: str,
    namespace: str,
    everywhere: bool,
    workers: int | None,
    **rules: Any,
) -> None:
    """Show what would be planned now; change nothing."""
    from ..scheduler import in_cluster, local, service
    from ..scheduler.place import Place

    policy, quotas = _made(**rules)
    with _cluster(runtime, namespace, everywhere, workers) as api:
        place: Place = local.LocalPlace(workers or cores.usable())
        if api is not None:
            place = in_cluster.ClusterPlace(api, everywhere, time.time, quotas=quotas)
        _show(service.Service(place, policy, time.time, click.echo).plan(), output)


@schedule.command()
@where
@outputs()
def status(output: str, runtime: str, namespace: str) -> None:
    """Show the last plan: who has how many workers, who gets how many, and why."""
    from ..scheduler import in_cluster, local

    with _cluster(runtime, namespace) as api:
        last = local.last_plan() if api is None else in_cluster.last_plan(api)
        serves = local.serves() if api is None else in_cluster.serves(api)
    _show(last, output)
    if is_drawn(output):
        if "nodes" in last:
            click.echo(pool.told(last["nodes"]))
        runs = "runs" if serves else "does not run: `edl schedule serve`"
        click.echo(f"Planned {max(0, int(time.time()) - last['at'])} s ago; the scheduler {runs}.")


@schedule.command()
@click.argument("job", shell_complete=complete_jobs)
@where
def why(job: str, runtime: str, namespace: str) -> None:
    """Tell why a job has what it has."""
    from ..scheduler import in_cluster, local

    with _cluster(runtime, namespace) as api:
        last = local.last_plan() if api is None else in_cluster.last_plan(api)
    ignored = {name: f"{name} {said}" for name, said in last["ignored"].items()}
    reasons = {row["name"]: f"{row['name']}: {row['why']}" for row in last["jobs"]}
    if job not in {**ignored, **reasons}:
        known = ", ".join({**reasons, **ignored}) or "none at all"
        raise UsageError(f"The last plan has no job {job!r}; it has {known}.")
    for said in (reasons.get(job), ignored.get(job)):
        if said:
            say(said)


@schedule.command()
@click.argument("workload")
@click.option(
    "--traces",
    type=LocalPath(exists=True, file_okay=False),
    help="A folder for each application: how fast it is, and how it learns.",
)
@click.option("--machines", default="", metavar="KIND", help="Of Sia's traces: aws, rtx, ...")
@click.option("--jobs", type=click.IntRange(1), help="Of `philly`. [default: 160]")
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
@click.option("--plots", type=LocalPath(file_okay=False), help="A folder for pictures, as SVG.")
def simulate(
    workload: str,
    traces: str | None,
    nodes: int,
    gpus: int,
    objective: tuple[str, ...],
    plots: str | None,
    **rules: Any,
) -> None:
    """Play a workload of many jobs with the same policies.

    WORKLOAD is a CSV file of name, time in seconds and application, as those of Pollux and Sia;
    `philly`, which is drawn by the parameters of these (--seed); or a folder of jobs of this
    machine, of which each is as long and as fast as it was ($EDL_HOME/jobs; a GPU is a worker).
    """
    from ..scheduler.policy import make_policy
    from ..scheduler.simulator import play, plot
    from ..scheduler.simulator.source import read

    policies = {name: make_policy(name) for name in objective}
    source = {each: rules.pop(each) for each in ("machines", "jobs")}
    arrivals, applications = read(workload, traces, rules["seed"], **source)
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
            (Path(plots) / f"{what}.svg").write_text(drawn(results), encoding="utf-8")
        click.echo(f"{plots}/jct.svg and gpus.svg are written")


def _made(objective: str, patience: float, quotas: str | None) -> tuple[Policy, tuple[Quota, ...]]:
    from ..scheduler.policy import Limits, make_policy
    from ..scheduler.quotas import read_quotas

    found = read_quotas(quotas) if quotas else ()
    return make_policy(objective, Limits(found, patience)), found


@contextlib.contextmanager
def _cluster(
    runtime: str,
    namespace: str,
    everywhere: bool = False,
    workers: int | None = None,
    client: str = "edl",
) -> Iterator[Api | None]:
    """Open the cluster that is meant; None where this machine is."""
    if runtime == "local" and not namespace:
        if everywhere:
            raise UsageError("--all-namespaces is of a cluster: add --runtime kubernetes.")
        yield None
        return
    if workers is not None:
        raise UsageError("--workers is of this machine: in a cluster its nodes say what there is.")
    from ..k8s.outside.job import connected

    with connected(namespace, client) as api:
        yield api


def _show(plan: dict[str, Any], output: str) -> None:
    from ..jobs.job import Report

    if is_drawn(output) and not plan["jobs"] and not plan["ignored"]:
        click.echo("No job is queued: `edl train --queue` or `edl submit --queue` puts one there.")
        return
    print_report(Report(plan, lambda _wide: _table(plan["jobs"])), output)
    if is_drawn(output):
        for name, said in plan["ignored"].items():
            say(f"{name} {said}")


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in (*_COLUMNS, "LEFT", "WHY"):
        table.add_column(column, justify="left" if column in ("JOB", "WHY") else "right")
    for row in rows:
        left = "" if row["records_left"] is None else f"{row['records_left']:,.0f}"
        table.add_row(*(str(row[name]) for name in _COLUMNS.values()), left, row["why"])
    return table
