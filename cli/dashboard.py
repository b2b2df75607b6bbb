"""`edl dashboard`: jobs as a page, by a process of its own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from ..common import paths
from ..common.errors import EdlError, UsageError
from ..common.extras import install
from .options import NAMES, token_of
from .paths import LocalPath
from .place import complete_jobs, place, where

if TYPE_CHECKING:
    from ..jobs.job import Jobs

_TOKEN_VARIABLE = "EDL_DASHBOARD_TOKEN"
_END_S = 10.0  # for a dashboard that is told to end
_ALONE = {"queue": "queue", "dry_run": "dry_run", "as_objects": "yaml"}
_EXTRA = f"edl dashboard needs starlette and uvicorn: {install('dashboard')}"

# Of all commands that show jobs.
from_option = click.option(
    "--from",
    "folder",
    type=LocalPath(path_type=Path),
    metavar="DIR",
    help="Show the job in this folder, whose processes may all be gone.",
)
prices_option = click.option(
    "--prices",
    type=LocalPath(exists=True, dir_okay=False),
    help="Tell what a job costs by this file, as `edl cost`.",
)


@click.command(context_settings=NAMES)
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@from_option
@click.option(
    "--export", metavar="FILE.html", help="Write a job's page as one file, and serve nothing."
)
@click.option("--allow_actions", is_flag=True, help="Let the page scale, stop, suspend jobs.")
@click.option("--demo", is_flag=True, help="With --allow_actions: let it kill processes, too.")
@prices_option
@click.option(
    "--allow_host", multiple=True, metavar="NAME", help="A name by which a proxy asks for it."
)
@click.option(
    "--token_file", default="", metavar="FILE", help=f"Token, or {_TOKEN_VARIABLE}; else a new one."
)
@click.option("--tls_cert", default="", metavar="FILE", help="Certificate (PEM).")
@click.option("--tls_key", default="", metavar="FILE", help="Its key (PEM).")
@click.option("--plain", is_flag=True, help="Off loopback without TLS all the same.")
@where
def dashboard(
    job: str | None,
    folder: Path | None,
    export: str | None,
    runtime: str,
    namespace: str,
    **given: Any,
) -> None:
    """Show jobs as a page, which follows them: of this machine, of a namespace, or of a folder.

    It prints an address with a token, which a browser opens once. It listens on loopback only.
    """
    if given["demo"] and not given["allow_actions"]:
        raise UsageError("--demo lets the page kill processes: add --allow_actions.")
    check_from(folder, runtime, namespace)
    check_installed()
    from ..dashboard import server

    with jobs_at(folder, runtime, namespace) as jobs, _until_refused(jobs):
        if export is not None:
            paths.check_file(export, "--export")
            name = server.export(jobs, job, Path(export), given["prices"] or "")
            click.echo(f"{name} -> {export}")
            return
        chosen = jobs.find(job).name if job or folder is not None else ""
        shown, prices = quote(chosen, safe=""), given["prices"] or ""
        server.serve(jobs, shown, _place(given), _actions(given), click.echo, prices)


@contextmanager
def _until_refused(jobs: Jobs) -> Iterator[None]:
    """End a page whose cluster does not take our credentials any more; raises Refused then."""
    from ..k8s.outside.job import ClusterJobs

    found: list[EdlError] = []

    def end(error: EdlError) -> None:
        found.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    if isinstance(jobs, ClusterJobs):
        jobs.api.connection.on_end = end
    yield
    if found:
        raise found[0]


def check_from(folder: Path | None, runtime: str, namespace: str) -> None:
    """Check that --from is given for this machine only. Raises UsageError."""
    if folder is not None and (namespace or runtime != "local"):
        raise UsageError("--from is of a folder of this machine: leave out --runtime, --namespace.")


def check_installed() -> None:
    """Check that what serves the page is there. Raises UsageError."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(_EXTRA) from error


def dashboard_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option by which a job that is watched in a terminal is shown as a page, too."""
    help = "Show the job as a page meanwhile, and print its address (`edl dashboard`)."
    return click.option("--dashboard", is_flag=True, help=help)(command)


def check_beside(flags: dict[str, Any], detach: bool) -> bool:
    """Take --dashboard out of the flags, and return whether it was given. Raises UsageError."""
    if not flags.pop("dashboard", False):
        return False
    others = {"detach": detach} | {name: flags.get(name) for name in _ALONE}
    if said := [name for name, value in others.items() if value]:
        other = _ALONE.get(said[0], said[0])
        raise UsageError(
            f"--dashboard shows a job while it is watched here: leave out --{other}, or start "
            "`edl dashboard` by itself."
        )
    check_installed()
    return True


@contextmanager
def beside(job: str, wanted: bool) -> Iterator[None]:
    """Run `edl dashboard` for a job meanwhile, where that is wanted, and print its address."""
    if not wanted:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "edl", "dashboard", job],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the job's
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()  # nothing where it could not begin: it said why
        if address:
            click.echo(f"dashboard: {address}")
        yield
    finally:
        process.terminate()
        process.stdout.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)


@contextmanager
def jobs_at(folder: Path | None, runtime: str, namespace: str) -> Iterator[Jobs]:
    """Open the jobs of a place, or the one in a folder."""
    if folder is None:
        with place(runtime, namespace) as jobs:
            yield jobs
        return
    from ..dashboard.sources import FolderJobs

    yield FolderJobs(folder)


def _place(given: dict[str, Any]) -> Any:
    from ..common.web import Tls
    from ..dashboard.server import Place

    known = token_of(given["token_file"], _TOKEN_VARIABLE)
    return Place(
        host=given["host"],
        port=given["port"],
        tls=Tls(given["tls_cert"], given["tls_key"]),
        plain=given["plain"],
        hosts=tuple(given["allow_host"]),
        token=known or secrets.token_urlsafe(24),
        token_known=bool(known),
    )


def _actions(given: dict[str, Any]) -> Any:
    from ..dashboard.actions import Actions

    return Actions(given["allow_actions"], given["demo"])
