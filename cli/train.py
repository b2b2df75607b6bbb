"""Commands that run a job: `edl train`, `evaluate`, `predict` and `submit`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common import launched, paths
from ..common.errors import UsageError
from ..common.settings import JobSettings
from .begin import (
    begin_here,
    begin_options,
    check_begin,
    settled,
    values_given,
    wishes_given,
)
from .dashboard import beside, check_beside, dashboard_option
from .export_after import After, after, after_options
from .options import (
    NAMES,
    JobCommand,
    as_yaml,
    flags_given,
    given_values,
    job_options,
    script_options,
)
from .paths import LocalPath

if TYPE_CHECKING:
    from ..jobs.local import LocalJob
    from ..jobs.queue import Wishes
    from ..serve.make import Given

EPILOG = """Flags may be written with dashes or underscores.

\b
Exit codes:
  0    done
  1    the job failed; the error says why
  2    wrong usage: a flag, a contradiction, a definition; nothing was started
  3    finished, but data was quarantined (more records than --skip_records)
  130  stopped (the first Ctrl-C stops gracefully, the second kills)"""


def _job_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of whatever runs a job."""
    for option in (
        job_options,
        click.option(
            "--as",
            "kind",
            type=click.Choice(["auto", "job", "edljob"]),
            default="auto",
            help="What a cluster is given; auto: an EdlJob where their controller runs, "
            "else a Job.",
        ),
        click.option(
            "--yaml",
            "as_objects",
            is_flag=False,
            flag_value="-",
            metavar="[FILE]",
            help="Print what a cluster would be given, or write it; create nothing.",
        ),
        click.option(
            "--queue",
            is_flag=True,
            help="Leave the start, and the number of workers, to `edl schedule serve`.",
        ),
        click.option(
            "--priority", type=int, metavar="N", help="In the queue: a higher one comes first."
        ),
        click.option("--deadline", metavar="TIME", help="In the queue: when it should have ended."),
        click.option("--user", metavar="NAME", help="In the queue: whose quota it counts for."),
        click.option(
            "--max_ps", type=click.IntRange(1), help="In the queue: the most servers it may get."
        ),
        click.option("--dry_run", is_flag=True, help="Print the resolved job; start nothing."),
        click.option("--config", metavar="FILE", type=LocalPath(), help="Settings out of YAML."),
    ):
        command = option(command)
    return command


def _job_command(name: str, help: str) -> click.Command:
    """Make `edl <name>`, which resolves the settings and runs a job."""

    def command(detach: bool, **given: Any) -> int:
        return _run_job(name, detach, given)

    command = _job_flags(command)
    if name == "train":
        command = begin_options(after_options(dashboard_option(command)))
    detached = click.option("--detach", "-d", is_flag=True, help="Start the job and return.")
    made = click.command(name, cls=JobCommand, help=help, epilog=EPILOG, context_settings=NAMES)
    return made(detached(command))


def _run_job(command: str, detach: bool, given: dict[str, Any], submits: bool = False) -> int:
    """Run a job, or whatever else is to be done with it; return the exit code.

    `given`: the values of `_job_flags`, and of --export. `submits`: it is one of a cluster.
    """
    then = None
    if "export_out" in given:
        then = after(given, "detach" if detach else "queue" if given["queue"] else "")
    shown = check_beside(given, detach)
    wishes, init = wishes_given(given), values_given(given)
    dry_run, as_objects, kind = (given.pop(name) for name in ("dry_run", "as_objects", "kind"))
    values, origins = given_values(given.pop("config"), given)
    for one, two in (("dry_run", as_objects), ("detach", as_objects), ("detach", dry_run)):
        if two and {"dry_run": dry_run, "detach": detach and not submits}[one]:
            other = "yaml" if two is as_objects else "dry_run"
            raise UsageError(f"--{one} starts nothing with --{other}: leave out one of them.")
    if submits or as_objects:
        where = values.setdefault("runtime", "kubernetes")
        if str(where).lower() != "kubernetes":
            raise UsageError(f"--runtime {where} is not of a cluster: leave it out here.")
    settings, before = settled(command, values, origins)
    stands = before is not None
    if init is not None:
        check_begin(settings, stands, wishes is not None)
    resolved = dataclasses.asdict(settings)
    if dry_run:
        said = {key: origins.get(key, "flag") for key in values}
        click.echo(as_yaml(command, resolved, said))
        return 0
    if then is not None:
        then.check(settings)
    if settings.runtime != "kubernetes" and kind != "auto":
        raise UsageError("--as is of jobs in a cluster: add --runtime kubernetes, or leave it out.")
    if settings.runtime == "kubernetes" and shown:
        raise UsageError("--dashboard: the job is in a cluster: `edl dashboard -n NAMESPACE`.")
    if settings.runtime == "kubernetes":
        return _in_cluster(settings, resolved, detach, as_objects, kind, wishes)
    if wishes is not None:
        return _queue(settings, stands, wishes)
    return _run_here(settings, resolved, detach, before, init, then, shown)


def _run_here(
    settings: JobSettings,
    resolved: dict[str, Any],
    detach: bool,
    before: LocalJob | None,
    init: Given | None,
    then: After | None,
    shown: bool,
) -> int:
    """Start a job on this machine, or go on with the one that stands; return the exit code.

    `shown`: by a dashboard, meanwhile.
    """
    from ..jobs.follow import follow
    from ..jobs.local_source import LocalSource, wait_until_serving
    from .screen import open_screen

    job, child = begin_here(settings, before, init)
    if detach:
        wait_until_serving(job, child)
        click.echo(f"{job.name} runs: `edl status {job.where}`, `edl logs -f {job.where}`")
        return 0
    with beside(job.name, shown):
        code = follow(LocalSource(job, child), open_screen(settings.log_format, resolved))
    return code if then is None else then.follow(code, job.folder)


def _queue(settings: JobSettings, stands: bool, wishes: Wishes) -> int:
    if stands:
        raise UsageError("--queue is of a new job, not of a job that stands: leave it out.")
    from ..jobs import queue

    job = queue.put(settings, int(time.time()), wishes)
    click.echo(f"{job.name} is queued: `edl schedule serve` begins it, `edl status {job.where}`")
    return 0


def _in_cluster(
    settings: JobSettings,
    resolved: dict[str, Any],
    detach: bool,
    as_objects: str | None,
    kind: str,
    wishes: Wishes | None,
) -> int:
    from ..jobs.follow import follow
    from ..k8s.outside import submit
    from ..k8s.outside.follow import ClusterSource
    from ..k8s.outside.job import connected
    from .screen import open_screen

    if as_objects:
        paths.check_file("" if as_objects == "-" else as_objects, "--yaml")
        plain = "edljob" if wishes is not None else "job"
        text = submit.as_yaml(settings, plain if kind == "auto" else kind, wishes)
        if as_objects == "-":
            click.echo(text, nl=False)
        else:
            Path(as_objects).write_text(text, encoding="utf-8")
        return 0
    with connected(settings.namespace) as api:
        job = submit.submit(api, settings, kind, wishes)
        if detach:
            done = "submitted" if wishes is None else "queued"
            click.echo(f"{job.name} is {done}: `edl status {job.where}`, `edl logs -f {job.where}`")
            return 0
        return follow(ClusterSource(job), open_screen(settings.log_format, resolved))


train = _job_command(
    "train", "Train a model with servers and elastic workers, and watch it to its end."
)
evaluate = _job_command("evaluate", "Evaluate a checkpoint on --validation_data.")
predict = _job_command(
    "predict", "Predict --prediction_data with a checkpoint; results go to --output."
)


def _script_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a script's job has besides."""
    for option in (
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]..."),
        click.argument("script", required=False, default=""),
        script_options,
    ):
        command = option(command)
    return command


@click.command("submit", cls=JobCommand, epilog=EPILOG, context_settings=NAMES)
@_script_flags
@click.option("--follow", "-f", is_flag=True, help="Watch it to its end, as `edl train` does.")
@click.option(
    "--command",
    type=click.Choice(["train", "evaluate", "predict"]),
    default="train",
    help="What the job does.",
)
@_job_flags
def submit(
    command: str, follow: bool, script: str, arguments: tuple[str, ...], **given: Any
) -> int:
    """Give a job to a Kubernetes cluster and return: `edl train --runtime kubernetes --detach`.

    With a SCRIPT it is run as by `edl launch`, each node a pod: see docs/launch.md. It is a path in
    the pods; what it gets may stand after `--`.
    """
    if script:
        if "command" in flags_given():
            raise UsageError(f"--command {command} runs no script: leave out one of them.")
        command, given = launched.COMMAND, {**given, "script": script, "arguments": arguments}
    elif own := flags_given() & {knob.name for knob in launched.own_knobs()}:
        raise UsageError(f"--{min(own)} is of a script: name it (`edl submit SCRIPT`).")
    return _run_job(command, not follow, given, submits=True)
