"""The commands on jobs, wherever they are: `edl list`, `status`, `logs`, `stop`, ...

--runtime or --namespace says where a job is. A command that only jobs of a cluster have says so in
one line. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import click

from ..common import launched
from ..common.errors import JobError, UsageError
from ..common.values import bounds, seconds
from .output import log_line, outputs, print_report, say
from .place import cluster_job, complete_jobs, place, where

_job = click.argument("job", required=False, shell_complete=complete_jobs)
_named_job = click.argument("job", shell_complete=complete_jobs)

# -- what there is


@click.command()
@_job
@outputs()
@where
def status(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """Show the state of a job, or of all jobs."""
    from ..jobs import view
    from ..jobs.job import Report, whole

    if job is None:
        _list(output, runtime, namespace)
        return
    with place(runtime, namespace) as jobs:
        found = whole(jobs.find(job).status())
    print_report(Report(found, lambda _wide: view.panel(found)), output)


@click.command("list")
@outputs("name")
@where
def list_jobs(output: str, runtime: str, namespace: str) -> None:
    """Show all jobs, of this machine or of a namespace."""
    _list(output, runtime, namespace)


def _list(output: str, runtime: str, namespace: str) -> None:
    from ..jobs import view
    from ..jobs.job import Report

    with place(runtime, namespace) as jobs:
        listed = jobs.statuses()
    if output == "name":
        for each in listed:
            click.echo(each["job_name"])
        return
    empty = f"No jobs in {jobs.place}: `edl {jobs.starting}` starts one."
    print_report(Report(listed, lambda wide: view.jobs_table(listed, wide), empty), output)


@click.command()
@_job
@outputs()
@where
def describe(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """Show a job of a cluster: its state, its pods and what they wait for, its events."""
    with cluster_job(job, runtime, namespace, "`edl status` shows a local one") as found:
        report = found.describe()
    print_report(report, output)


@click.command()
@_job
@outputs()
@where
def events(job: str | None, output: str, runtime: str, namespace: str) -> None:
    """Show what happened: in a cluster to its objects, on this machine to its processes."""
    with place(runtime, namespace) as jobs:
        report = jobs.find(job).events()
    print_report(report, output)


@click.command()
@_job
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option(
    "--role",
    type=click.Choice(["master", "worker", "server", "teacher", "ps"]),
    help="Only this role; ps is server.",
)
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
    """Show the logs of a job's processes."""
    with place(runtime, namespace) as jobs:
        found = jobs.find(job)
        role = "server" if role == "ps" else role  # which pods, flags and EdlJobs call it
        for text in found.lines(role=role, index=index, tail=tail, follow=follow):
            log_line(text)


@click.command()
@_job
@click.option(
    "--for",
    "goal",
    type=click.Choice(["done", "running", "suspended", "failed", "stopped", "ended", "deleted"]),
    default="done",
    show_default=True,
    help="What is waited for; ended: done, failed or stopped.",
)
@click.option("--timeout", default="", metavar="TIME", help="At most so long: 90s, 10m, 2h.")
@where
def wait(job: str | None, goal: str, timeout: str, runtime: str, namespace: str) -> None:
    """Wait until a job is in some state; exit code 1 where that cannot come, or not in time."""
    from ..jobs.wait import wait as wait_

    try:
        timeout_s = seconds(timeout) if timeout else float("inf")
    except ValueError as error:
        raise UsageError(f"--timeout: {error}.") from error
    with place(runtime, namespace) as jobs:
        if goal not in jobs.goals:
            raise UsageError(f"--for {goal} is of jobs in a cluster.")
        found = jobs.find(job)
        try:
            status = wait_(found.look, goal, timeout_s, jobs.look_every_s)
        except JobError as error:
            raise JobError(f"Job {found.name!r}: {error}") from error
    say(f"{found.name} is {status.get('state') or goal}")


@click.command("cp")
@click.argument("source", metavar="JOB:PATH")
@click.argument("dest")
@click.option("--force", is_flag=True, help="Replace what stands at DEST.")
@where
def copy(source: str, dest: str, force: bool, runtime: str, namespace: str) -> None:
    """Copy a file or a folder of a job, as JOB:checkpoints, to DEST on this machine.

    PATH is relative to the job's folder; in a cluster also an absolute one of the pods' volumes.
    The job may run, be suspended or be over.
    """
    from ..jobs import transfer

    job, path = transfer.split(source)
    with place(runtime, namespace) as jobs:
        stands, nbytes = jobs.find(job).fetch(
            path, dest, force, lambda text: click.echo(text, err=True)
        )
    click.echo(f"{source} -> {stands} ({nbytes:,} bytes)")


# -- what is done to them


@click.command()
@_job
@where
def stop(job: str | None, runtime: str, namespace: str) -> None:
    """End a job: its workers hand back, a checkpoint is written, `edl train --resume` goes on."""
    with place(runtime, namespace) as jobs:
        found = jobs.find(job)
        told = found.stop("edl stop")
    say(f"{found.name} {told}")


@click.command()
@_job
@click.argument("number", required=False, type=click.IntRange(1), metavar="[N]")
@click.option(
    *("--num_workers", "--nodes", "option"),
    type=click.IntRange(1),
    metavar="N",
    help="Workers wanted, or nodes of a script's job; or say it as the last word.",
)
@click.option("--num_ps", type=click.IntRange(1), help="Servers wanted; a pause of some seconds.")
@click.option("--num_teachers", metavar="N|MIN:MAX", help="Teachers wanted; MIN:MAX: by need.")
@where
def scale(
    job: str | None,
    number: int | None,
    option: int | None,
    num_ps: int | None,
    num_teachers: str | None,
    runtime: str,
    namespace: str,
) -> None:
    """Change the number of workers (or servers) of a running job, or of nodes of a script's.

    In short: `edl scale JOB N`.
    """
    said = number or option or num_ps or num_teachers is not None
    if number is not None and option is not None or not said:
        raise UsageError(
            "How many? Say it once: `edl scale JOB N`, --num_workers N, --num_ps N or "
            "--num_teachers N."
        )
    wanted = number or option or 0
    least, most = bounds(num_teachers, "--num_teachers") if num_teachers else (None, 0)
    if least is not None and least < 0:
        raise UsageError(f"--num_teachers {num_teachers}: give 0 or more.")
    with place(runtime, namespace) as jobs:
        found = jobs.find(job)
        previous = found.scale(wanted, num_ps or 0, least, 0 if most == least else most)
        what = "nodes" if found.status().get("command") == launched.COMMAND else "workers"
    told = [f"{previous} -> {wanted} {what} wanted"] if wanted else []
    told += [f"{num_ps} servers wanted"] if num_ps else []
    told += [f"{num_teachers} teachers wanted"] if num_teachers is not None else []
    click.echo(f"{found.name}: {', '.join(told)}")


@click.command()
@_named_job
@click.option(
    "--force", is_flag=True, help="Also where it would begin anew: without a --job_volume."
)
@where
def suspend(job: str, force: bool, runtime: str, namespace: str) -> None:
    """End the pods of a job, keep where it is; `edl resume` goes on there."""
    instead = "a local one is stopped (`edl stop`) and gone on with (`edl train --resume`)"
    with cluster_job(job, runtime, namespace, instead) as found:
        found.suspend(force)
    click.echo(f"{job} is suspended: `edl resume {found.where}` goes on")


@click.command()
@_named_job
@where
def resume(job: str, runtime: str, namespace: str) -> None:
    """Go on with a job that was suspended."""
    instead = "a local one is gone on with by `edl train --resume`"
    with cluster_job(job, runtime, namespace, instead) as found:
        found.resume()
    click.echo(f"{job} goes on: `edl status {found.where}`")


@click.command()
@_named_job
@where
def cancel(job: str, runtime: str, namespace: str) -> None:
    """End a job at once, without a checkpoint; what is known of it stays."""
    with place(runtime, namespace) as jobs:
        jobs.find(job).cancel("edl cancel")
    click.echo(f"{job} is cancelled")


@click.command()
@_named_job
@where
def delete(job: str, runtime: str, namespace: str) -> None:
    """Delete a job of a cluster and all that is of it, at once."""
    instead = "a local one is a folder, in $EDL_HOME/jobs"
    with cluster_job(job, runtime, namespace, instead) as found:
        told = found.delete()
    say(f"{job} {told}")


COMMANDS = (
    list_jobs,
    status,
    describe,
    logs,
    events,
    wait,
    copy,
    scale,
    suspend,
    resume,
    stop,
    cancel,
    delete,
)
