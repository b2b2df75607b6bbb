"""The place of jobs that a command is about: this machine, or a namespace of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..common.errors import EdlError, UsageError

if TYPE_CHECKING:
    from ..jobs.job import Jobs
    from ..k8s.outside.job import ClusterJob

Function = Callable[..., Any]


def where(command: Function) -> Function:
    """Add the options that name a place."""
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
def place(runtime: str, namespace: str) -> Iterator[Jobs]:
    """Open the jobs of the place that `runtime` and `namespace` name."""
    if runtime == "local" and not namespace:
        from ..jobs.local import LocalJobs

        yield LocalJobs()
        return
    from ..k8s.outside.job import ClusterJobs, connected

    with connected(namespace) as api:
        yield ClusterJobs(api)


@contextlib.contextmanager
def cluster_job(
    job: str | None, runtime: str, namespace: str, instead: str
) -> Iterator[ClusterJob]:
    """Open a job of a cluster.

    `instead`: how a job of this machine is treated. Raises UsageError where one is meant.
    """
    if runtime == "local" and not namespace:
        command = click.get_current_context().info_name
        raise UsageError(
            f"`edl {command}` is of jobs in a cluster (add -n NAMESPACE or --runtime kubernetes); "
            f"{instead}."
        )
    from ..k8s.outside.job import ClusterJobs, connected

    with connected(namespace) as api:
        yield ClusterJobs(api).find(job)


def complete_jobs(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the names of the jobs of this machine, or of the cluster that was named before."""
    names: list[str] = []
    try:
        runtime = ctx.params.get("runtime") or "local"
        with place(str(runtime), ctx.params.get("namespace") or "") as jobs:
            names = jobs.names()
    except (EdlError, OSError):
        pass  # a shell that completes is no place for an error
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
