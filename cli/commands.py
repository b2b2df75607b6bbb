"""The commands on jobs, of this machine and of a cluster: `edl list`, `status`, `logs`, `stop`, ...

Where a job is, --runtime or --namespace says. What is common to both asks a job the same questions; a
command that only one of the two has says so in one line. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..common import paths
from ..common.errors import JobError, UsageError
from ..common.values import seconds
from .options import NAMES, JobCommand, complete_jobs, given_values, job_options

if TYPE_CHECKING:
    from ..k8s.api import Api
    from .cluster import ClusterJob
    from .jobs import Job, Status

_POLL_S = {True: 1.0, False: 0.25}  # in a cluster; on this machine
_ROW, _PANEL, _WIDE = 1000, 120, 160  # columns: of a table and of a panel in a pipe; -o wide
_MARKS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}

Function = Callable[..., Any]


def where(command: Function) -> Function:
    """Options of commands on jobs: of this machine, or of a cluster."""
    for option in (
        click.option(
            "-n", "--namespace", default="", metavar="NAME", help="The job is in this namespace."
        ),
        click.option(
            "--runtime",
            type=click.Choice(["local", "kubernetes"]),
            default="local",
            envvar="EDL_RUNTIME",
            show_envvar=True,
            help="Where the job is.",
        ),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def _cluster(runtime: str, namespace: str) -> Iterator[Api | None]:
    """The API of the cluster that is meant; None: this machine."""
    if runtime == "local" and not namespace:
        yield None
        return
    from .cluster import connected

    with connected(namespace) as api:
        yield api


@contextlib.contextmanager
def _cluster_only(runtime: str, namespace: str, command: str, instead: str) -> Iterator[Api]:
    with _cluster(runtime, namespace) as api:
        if api is None:
            raise UsageError(
                f"`edl {command}` is of jobs in a cluster (add -n NAMESPACE or --runtime "
                f"kubernetes); {instead}."
            )
        yield api


def _in(api: Api, name: str | None) -> ClusterJob:
    """The job of that name, or the only one, or the only one that runs. Raises UsageError."""
    from .cluster import ClusterJob, all_jobs
    from .jobs import ENDED

    if name is None:
        found = all_jobs(api)
        running = [each for each in found if each["state"] not in ENDED]
        chosen = next((those for those in (running, found) if len(those) == 1), None)
        if chosen is None:
            known = ", ".join(each["job_name"] for each in running or found)
            raise UsageError(
                f"Which job? There are: {known}."
                if known
                else f"There are no jobs in the namespace {api.namespace}: `edl submit` makes one."
            )
        name = chosen[0]["job_name"]
    job = ClusterJob(api, name)
    job.top()
    return job


def _outputs(*more: str) -> Callable[[Function], Function]:
    choices = ["table", "wide", "json", "yaml", *more]
    return click.option(
        "-o", "--output", type=click.Choice(choices), default="table", help="How it is printed."
    )


def _print(found: Any, output: str, drawn: Callable[[], Any]) -> None:
    """`drawn`: what is shown for people, a thing of rich or a list of them."""
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(found, sort_keys=False), nl=False)
    else:
        from rich.console import Console
        from rich.table import Table

        terminal = Console().width if sys.stdout.isatty() else None
        shown = drawn()
        for each in shown if isinstance(shown, list) else [shown]:
            # Piped, a row is as long as it is: nothing is cut for a terminal that is not there.
            width = terminal or (_ROW if isinstance(each, Table) else _PANEL)
            if output == "wide" and isinstance(each, Table):
                width = max(width, _WIDE)
            Console(width=width).print(each)


# -- what there is


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@_outputs()
@where
def status(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """The state of a job, or of all jobs."""
    from . import jobs, view

    if job is None:
        _list(output, runtime, namespace)
        return
    with _cluster(runtime, namespace) as api:
        found = jobs.find(job).status() if api is None else _in(api, job).status()
    _print(found, output, lambda: view.panel(found))


@click.command("list")
@_outputs("name")
@where
def list_jobs(output: str, runtime: str, namespace: str) -> None:
    """All jobs, of this machine or of a namespace."""
    _list(output, runtime, namespace)


def _list(output: str, runtime: str, namespace: str) -> None:
    from . import jobs, view

    with _cluster(runtime, namespace) as api:
        if api is None:
            listed, place = [each.status() for each in jobs.all_jobs()], str(paths.jobs_folder())
        else:
            from .cluster import all_jobs

            listed, place = all_jobs(api), f"the namespace {api.namespace}"
    if output == "name":
        for each in listed:
            click.echo(each["job_name"])
        return
    if not listed and output in ("table", "wide"):
        verb = "train" if api is None else "submit"
        click.echo(f"No jobs in {place}: `edl {verb}` starts one.")
        return
    _print(listed, output, lambda: view.jobs_table(listed, wide=output == "wide"))


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@_outputs()
@where
def describe(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """A job of a cluster: its state, its pods and what they wait for, its events."""
    import datetime

    with _cluster_only(runtime, namespace, "describe", "`edl status` shows a local one") as api:
        found = _in(api, job)
        state, pods, events = found.status(), found.pods(), found.events()
    from . import cluster_view, view

    now = datetime.datetime.now(datetime.UTC)
    rows = [cluster_view.pod_row(pod, now) for pod in pods]
    told = [cluster_view.event_row(event, now) for event in events]

    def drawn() -> list[Any]:
        wide = output == "wide"
        parts: list[Any] = [view.panel(state), "", cluster_view.pods_table(rows, wide)]
        if told:
            parts += ["", cluster_view.events_table(told, wide)]
        return parts

    _print({"status": state, "pods": rows, "events": told}, output, drawn)


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@_outputs()
@where
def events(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """What happened: in a cluster to its objects, on this machine to its processes."""
    import datetime

    from . import cluster_view, jobs, view

    with _cluster(runtime, namespace) as api:
        if api is None:
            told = jobs.find(job).status().get("events") or []
        else:
            found = _in(api, job).events()
    if api is None:
        _print(told, output, lambda: view.events(told))
        return
    now = datetime.datetime.now(datetime.UTC)
    rows = [cluster_view.event_row(event, now) for event in found]
    if not rows and output in ("table", "wide"):
        click.echo("No events: a cluster keeps them for an hour or so.")
        return
    _print(rows, output, lambda: cluster_view.events_table(rows, output == "wide"))


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@_outputs()
@where
def top(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """What the pods of a job ask for, use and do."""
    from . import cluster_view

    with _cluster_only(runtime, namespace, "top", "`edl status` shows a local one") as api:
        found = _in(api, job)
        metrics = found.metrics()
        rows = cluster_view.usage_rows(found.pods(), metrics, found.status())
    _print(rows, output, lambda: cluster_view.usage_table(rows, metrics is not None))
    if metrics is None and output in ("table", "wide"):
        click.echo("What they use is not known: this cluster has no metrics API (metrics-server).")


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--role", type=click.Choice(["master", "worker", "server"]), help="Only this role.")
@click.option("--index", type=int, metavar="N", help="Only this replica of the role.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each.")
@where
def logs(
    job: str | None,
    follow: bool,
    role: str | None,
    index: int | None,
    tail: int | None,
    runtime: str,
    namespace: str,
) -> None:
    """The logs of a job's processes."""
    from . import cluster_logs, jobs
    from .logs import lines

    with _cluster(runtime, namespace) as api:
        if api is None:
            texts = lines(jobs.find(job), role=role, index=index, tail=tail, follow=follow)
        else:
            texts = cluster_logs.lines(
                _in(api, job), role=role, index=index, tail=tail, follow=follow
            )
        for text in texts:
            click.echo(text)


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option(
    "--for",
    "goal",
    type=click.Choice(["done", "running", "suspended", "failed", "ended", "deleted"]),
    default="done",
    show_default=True,
    help="What is waited for; ended: done or failed.",
)
@click.option("--timeout", default="", metavar="TIME", help="At most so long: 90s, 10m, 2h.")
@where
def wait(job: str | None, goal: str, timeout: str, runtime: str, namespace: str) -> None:
    """Wait until a job is in some state; exit code 1 where that cannot come, or not in time."""
    from . import jobs
    from .wait import wait as wait_

    try:
        timeout_s = seconds(timeout) if timeout else float("inf")
    except ValueError as error:
        raise UsageError(f"--timeout: {error}.") from error
    with _cluster(runtime, namespace) as api:
        if api is None:
            if goal in ("suspended", "deleted"):
                raise UsageError(f"--for {goal} is of jobs in a cluster.")
            local = jobs.find(job)
            name: str = local.name
            look: Callable[[], Status | None] = local.status
        else:
            found = _in(api, job)
            name, look = found.name, found.status_if_there
        try:
            status = wait_(look, goal, timeout_s, _POLL_S[api is not None])
        except JobError as error:
            raise JobError(f"Job {name!r}: {error}") from error
    click.echo(f"{name} is {status.get('state') or goal}")


# -- what is done to them


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@where
def stop(job: str | None, runtime: str, namespace: str) -> None:
    """End a job: its workers hand back, a checkpoint is written, `edl train --resume` goes on."""
    with _cluster(runtime, namespace) as api:
        if api is not None:
            found = _in(api, job)
            found.stop("edl stop")
            click.echo(f"{found.name} is stopping: `edl status {_at(found)}` shows when it has.")
            return
    from . import jobs

    local = running(job)
    if local.address() is None and jobs.end_start(local):
        click.echo(f"{local.name} is stopped: it had not begun yet.")
        return
    client = local.client()
    try:
        client.stop("edl stop")
        events = client.status()[1].get("events")
    finally:
        client.close()
    last = f" ({events[-1]['text']})" if events else ""
    click.echo(
        f"{local.name} is stopping{last}: `edl status {local.name}` shows when it has, and what it "
        "waits for."
    )


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--num_workers", type=click.IntRange(1), required=True, help="Workers wanted.")
@where
def scale(job: str | None, num_workers: int, runtime: str, namespace: str) -> None:
    """Change the number of workers of a running job."""
    with _cluster(runtime, namespace) as api:
        if api is not None:
            found = _in(api, job)
            previous = found.scale(num_workers)
            click.echo(f"{found.name}: {previous} -> {num_workers} workers wanted")
            return
    local = running(job)
    client = local.client()
    try:
        previous = client.scale(num_workers)
    finally:
        client.close()
    click.echo(f"{local.name}: {previous} -> {num_workers} workers wanted")


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--force", is_flag=True, help="Also where it would begin anew: without a --job_volume."
)
@where
def suspend(job: str, force: bool, runtime: str, namespace: str) -> None:
    """End the pods of a job, keep where it is; `edl resume` goes on there."""
    instead = "a local one is stopped (`edl stop`) and gone on with (`edl train --resume`)"
    with _cluster_only(runtime, namespace, "suspend", instead) as api:
        found = _in(api, job)
        found.suspend(force)
    click.echo(f"{job} is suspended: `edl resume {_at(found)}` goes on")


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@where
def resume(job: str, runtime: str, namespace: str) -> None:
    """Go on with a job that was suspended."""
    instead = "a local one is gone on with by `edl train --resume`"
    with _cluster_only(runtime, namespace, "resume", instead) as api:
        found = _in(api, job)
        found.resume()
    click.echo(f"{job} goes on: `edl status {_at(found)}`")


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@where
def cancel(job: str, runtime: str, namespace: str) -> None:
    """End a job at once, without a checkpoint; what is known of it stays."""
    with _cluster(runtime, namespace) as api:
        if api is not None:
            _in(api, job).cancel("edl cancel")
        else:
            from . import jobs

            local = running(job)
            last = local.status()
            jobs.kill(local)
            if local.result() is None:
                local.give_up(jobs.INTERRUPTED, "edl cancel", last)
    click.echo(f"{job} is cancelled")


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@where
def delete(job: str, runtime: str, namespace: str) -> None:
    """Delete a job of a cluster and all that is of it, at once."""
    instead = "a local one is a folder, in $EDL_HOME/jobs"
    with _cluster_only(runtime, namespace, "delete", instead) as api:
        _in(api, job).delete()
    click.echo(f"{job} is deleted")


def running(name: str | None) -> Job:
    """The job of this machine, which must not be over."""
    from . import jobs

    job = jobs.find(name)
    if job.is_over():
        raise JobError(f"Job {job.name!r} is over: {job.status().get('state')}.")
    return job


def _at(job: ClusterJob) -> str:
    return f"{job.name} -n {job.api.namespace}"


# -- the cluster itself


@click.command(cls=JobCommand, context_settings=NAMES)
@click.option("--config", metavar="FILE", type=click.Path(), help="Settings from a YAML file.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["auto", "job", "edljob"]),
    default="auto",
    help="What `edl submit` would make.",
)
@click.option("-o", "as_", type=click.Choice(["table", "json", "yaml"]), default="table")
@job_options
def doctor(config: str | None, kind: str, as_: str, **flags: Any) -> int:
    """Whether a cluster has what a job needs, and what mends it; exit code 1 on an error.

    Takes the flags of `edl submit`: the more are given, the more is looked at.
    """
    from ..common.resolve import typed
    from . import doctor as doctor_

    values, origins = given_values(config, flags)
    settings = typed("train", {**values, "runtime": "kubernetes"}, origins)
    found = []
    for finding in doctor_.examine(settings.namespace, settings, kind):
        found.append(finding)
        if as_ == "table":
            click.echo(f"{_MARKS[finding.level]} {finding.what}: {finding.detail}")
    if as_ != "table":
        _print(doctor_.as_rows(found), as_, lambda: "")
    return int(any(finding.level == doctor_.ERROR for finding in found))


COMMANDS = (
    list_jobs,
    status,
    describe,
    logs,
    events,
    wait,
    scale,
    suspend,
    resume,
    stop,
    cancel,
    delete,
    top,
    doctor,
)
