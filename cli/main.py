"""`edl`: the command line. It parses, starts the master by name and shows what the master says.

Nothing heavy is imported before a command needs it: `edl --help` must be quick. Every EdlError ends
as one line `edl: error: …` and the exit code of its class; what is unexpected keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from .. import __version__
from ..common.errors import EdlError, UsageError
from ..common.plain import print_all
from ..common.process import is_starved, starved
from . import jobs, train
from .chaos import chaos
from .checkpoint import checkpoint
from .cost import cost
from .dashboard import dashboard
from .data import data
from .delta import delta
from .doctor import doctor
from .export import export
from .kernels import kernels
from .launch import launch
from .options import NAMES
from .output import say
from .replay import replay
from .schedule import schedule
from .serve import serve
from .teach import registry, teach
from .top import top
from .zoo import zoo

_OF_STDOUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


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
    """Open the standard streams that were closed, and let each print every character.

    Whoever closed one (`>&-`) wants nothing of it; a file that is opened must not take its place.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the least number that is free: this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        print_all(stream)


def _print_nowhere() -> None:
    """Drop what is left in the buffer, which would be a traceback at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run `edl` and return its exit code."""
    return report(lambda: cli.main(arguments, prog_name="edl", standalone_mode=False))


def report(command: Callable[[], Any]) -> int:
    """Run a command; return its exit code, or the one of its error, which is told in a line."""
    try:
        code = command()
    except EdlError as error:
        say(f"edl: error: {error}", err=True)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())  # it is the help
        return 0
    except click.ClickException as error:
        say(f"edl: error: {error.format_message()}{_hint(error)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("edl: interrupted", err=True)
        return 130
    except (MemoryError, RuntimeError, OSError) as error:
        if is_starved(error):
            say(f"edl: error: {starved(error)}", err=True)
            return 1
        if not isinstance(error, OSError):
            raise
        if error.filename is None and error.errno not in _OF_STDOUT:  # else of a path, or the disk
            raise
        what = error.filename or "what is printed cannot be written"
        say(f"edl: error: {what}: {error.strerror}.", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _hint(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return f" Try `{ctx.command_path} --help`." if ctx is not None else ""


class _InOrder(click.Group):
    """A group whose commands stand in the order in which they are written, not of the alphabet."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={**NAMES, "help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edl", message="%(prog)s %(version)s")
def cli() -> None:
    """Elastic, fault-tolerant training for PyTorch: every record is applied exactly once."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: `eval "$(edl completion bash)"`."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is None:
        raise UsageError(f"There is no completion for {shell}.")
    click.echo(made(cli, {}, "edl", "_EDL_COMPLETE").source())


@click.command()
def version() -> None:
    """Show the versions of edl and of what it stands on."""
    import platform
    from importlib import metadata

    click.echo(f"edl {__version__}")
    click.echo(f"python {platform.python_version()}")
    for package in ("torch", "numpy", "numba", "grpcio", "protobuf"):
        click.echo(f"{package} {metadata.version(package)}")


for _command in (
    *(train.train, train.evaluate, train.predict, train.submit),
    launch,
    *jobs.COMMANDS,
    top,
    dashboard,
    schedule,
    cost,
    doctor,
    *(checkpoint, export, delta, serve, teach, registry, chaos, replay, zoo, data, kernels),
    *(completion, version),
):
    cli.add_command(_command)
