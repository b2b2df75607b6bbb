"""Commands that run a job: `edl train`, `evaluate`, `predict` and `submit`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..common import paths
from ..common.errors import UsageError
from ..common.resolve import resolve
from ..common.settings import JobSettings
from .options import NAMES, JobCommand, as_yaml, given_values, job_options

EPILOG = """Flags may be written with dashes or underscores.

\b
Exit codes:
  0    done
  1    the job failed; the error says why
  2    wrong usage: a flag, a contradiction, a definition; nothing was started
  3    finished, but data was quarantined (more records than --skip_records)
  130  interrupted (the first Ctrl-C stops gracefully, the second kills)"""


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
        click.option("--dry_run", is_flag=True, help="Print the resolved job; start nothing."),
        click.option("--config", metavar="FILE", type=click.Path(), help="Settings out of YAML."),
    ):
        command = option(command)
    return command


def _job_command(name: str, help: str) -> click.Command:
    """Make `edl <name>`, which resolves the settings and runs a job."""

    @click.command(name, cls=JobCommand, help=help, epilog=EPILOG, context_settings=NAMES)
    @click.option("--detach", "-d", is_flag=True, help="Start the job and return.")
    @click.option(
        "--queue", is_flag=True, help="Leave the start, and the workers, to `edl schedule serve`."
    )
    @click.option(
        "--max_ps",
        type=click.IntRange(1),
        help="With --queue: the most servers that `edl schedule serve` may give the job.",
    )
    @_job_flags
    def command(detach: bool, queue: bool, max_ps: int | None, **given: Any) -> int:
        if max_ps is not None and not queue:
            raise UsageError("--max_ps is for the scheduler: give --queue too, or leave it out.")
        return _run_job(name, detach, queue=(max_ps or 0) if queue else None, **given)

    return command


def _run_job(
    command: str,
    detach: bool,
    *,
    config: str | None,
    dry_run: bool,
    as_objects: str | None,
    kind: str,
    submits: bool = False,
    queue: int | None = None,
    **flags: Any,
) -> int:
    """Run a job, or `queue` it: then the number is the most servers that it may be given, or 0."""
    values, origins = given_values(config, flags)
    for one, two in (("dry_run", as_objects), ("detach", as_objects), ("detach", dry_run)):
        if two and {"dry_run": dry_run, "detach": detach and not submits}[one]:
            other = "yaml" if two is as_objects else "dry_run"
            raise UsageError(f"--{one} starts nothing with --{other}: leave out one of them.")
    if submits or as_objects:
        where = values.setdefault("runtime", "kubernetes")
        if str(where).lower() != "kubernetes":
            raise UsageError(f"--runtime {where} is not of a cluster: leave it out here.")
    from ..jobs.local import LocalJob

    resumed = values.get("resume") or ""
    before = LocalJob((paths.named_job(str(resumed)) or Path(resumed)).absolute())
    stands = command == "train" and [*values] == ["resume"] and paths.stands(before.folder)
    settings = JobSettings.of_job(before.folder) if stands else resolve(command, values, origins)
    resolved = dataclasses.asdict(settings)
    if dry_run:
        said = {key: origins.get(key, "flag") for key in values}
        click.echo(as_yaml(command, resolved, said))
        return 0
    if settings.runtime != "kubernetes" and kind != "auto":
        raise UsageError("--as is of jobs in a cluster: add --runtime kubernetes, or leave it out.")
    if queue is not None:
        return _queue(settings, stands, queue)
    if settings.runtime == "kubernetes":
        return _in_cluster(settings, resolved, detach, as_objects, kind)
    from ..jobs.follow import follow
    from ..jobs.local_source import LocalSource, wait_until_serving
    from ..jobs.start import go_on, start
    from .screen import open_screen

    job, child = go_on(before) if stands else start(settings)
    if detach:
        wait_until_serving(job, child)
        click.echo(f"{job.name} runs: `edl status {job.where}`, `edl logs -f {job.where}`")
        return 0
    return follow(LocalSource(job, child), open_screen(settings.log_format, resolved))


def _queue(settings: JobSettings, stands: bool, max_ps: int) -> int:
    if stands or settings.runtime == "kubernetes":
        what = "a job that stands" if stands else "a job in a cluster"
        raise UsageError(f"--queue is of a new job of this machine, not of {what}: leave it out.")
    from ..jobs import queue

    job = queue.put(settings, int(time.time()), max_ps)
    click.echo(f"{job.name} is queued: `edl schedule serve` begins it, `edl status {job.where}`")
    return 0


def _in_cluster(
    settings: JobSettings,
    resolved: dict[str, Any],
    detach: bool,
    as_objects: str | None,
    kind: str,
) -> int:
    from ..jobs.follow import follow
    from ..k8s.outside import submit
    from ..k8s.outside.follow import ClusterSource
    from ..k8s.outside.job import connected
    from .screen import open_screen

    if as_objects:
        paths.check_file("" if as_objects == "-" else as_objects, "--yaml")
        text = submit.as_yaml(settings, "job" if kind == "auto" else kind)
        if as_objects == "-":
            click.echo(text, nl=False)
        else:
            Path(as_objects).write_text(text)
        return 0
    with connected(settings.namespace) as api:
        job = submit.submit(api, settings, kind)
        if detach:
            click.echo(
                f"{job.name} is submitted: `edl status {job.where}`, `edl logs -f {job.where}`"
            )
            return 0
        return follow(ClusterSource(job), open_screen(settings.log_format, resolved))


train = _job_command(
    "train", "Train a model with servers and elastic workers, and watch it to its end."
)
evaluate = _job_command("evaluate", "Evaluate a checkpoint on --validation_data.")
predict = _job_command(
    "predict", "Predict --prediction_data with a checkpoint; results go to --output."
)


@click.command("submit", cls=JobCommand, epilog=EPILOG, context_settings=NAMES)
@click.option("--follow", "-f", is_flag=True, help="Watch it to its end, as `edl train` does.")
@click.option(
    "--command",
    type=click.Choice(["train", "evaluate", "predict"]),
    default="train",
    help="What the job does.",
)
@_job_flags
def submit(command: str, follow: bool, **given: Any) -> int:
    """Give a job to a Kubernetes cluster and return: `edl train --runtime kubernetes --detach`."""
    return _run_job(command, not follow, submits=True, **given)
