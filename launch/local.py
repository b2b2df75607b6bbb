"""`edl launch` on this machine: its coordinator, which starts the node agents, and the view of it.

All are processes of their own sessions: Ctrl-C reaches this one only, which asks the coordinator to
end the job in order; killed, it takes nothing with it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Self

from ..common import paths
from ..common.errors import UsageError
from ..common.identity import Identity, given_identity
from ..common.listen import is_loopback, own_host
from ..common.plain import inert_lines
from ..jobs import figures, local, view
from ..jobs.follow import follow
from ..jobs.job import INTERRUPTED, Status
from ..jobs.local import LocalJob
from ..jobs.local_source import LocalSource, wait_until_serving
from ..jobs.start import start
from .settings import LaunchSettings

_COMMAND = (sys.executable, "-m", "edl.launch")
_END_S = 10.0  # a node of a job that is over has nothing to do but to go


def launch(settings: LaunchSettings, say: Callable[[str], None]) -> int:
    """Run the job, show it to its end, and return the exit code."""
    job, child = start(settings, _COMMAND, _identity())
    try:
        wait_until_serving(job, child, say)
    except KeyboardInterrupt:
        local.kill(job, child)
        job.give_up(INTERRUPTED, "interrupted")
        raise
    if settings.max_nodes > settings.local_nodes:
        say(_how_to_join(job, settings))
    told = f"the scripts get SIGTERM, and SIGKILL after {settings.stop_timeout_s} s"
    return follow(LocalSource(job, child, told), Screen(job, say))


def join(
    address: str, identity: Identity, script: Sequence[str], *, nproc: int, name: str
) -> NoReturn:
    """Become a node agent of a coordinator elsewhere, or of another `edl launch` here."""
    told = ["--node", address, "--nproc", str(nproc), "--tee"]
    told += ["--logs", str(paths.home() / "nodes" / f"{name}-{os.getpid()}")]
    os.execve(
        sys.executable,
        [*_COMMAND, *told, "--", *script],
        {**os.environ, **identity.variables()},
    )


def coordinator_of(where: str, token_file: str) -> tuple[str, Identity, str]:
    """Return address, identity and a name for HOST:PORT, or for a job of this machine by its name.

    Raises UsageError where either is missing.
    """
    if ":" in where:
        if not token_file:
            raise UsageError(
                f"--join {where} needs --token_file: copy the file that `edl launch` names there."
            )
        return where, _read_identity(Path(token_file)), where.replace(":", "-").strip("[]")
    job = local.find(where)
    found = job.address()
    if found is None or job.is_over():
        raise UsageError(f"The job {where!r} does not run: start it with `edl launch`.")
    return found[0], Identity.of_folder(job.folder), job.name


def _read_identity(path: Path) -> Identity:
    """Read a file `identity` or `token` of a job's folder."""
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise UsageError(f"--token_file {path}: {error.strerror}.") from error
    if not text:
        raise UsageError(f"--token_file {path} is empty.")
    try:
        return Identity.from_variable(text)
    except ValueError:
        return Identity(text)


def _identity() -> Identity | None:
    """Make an identity with a certificate where other machines can call and none was given."""
    if given_identity() is not None or is_loopback(own_host()):
        return None
    return Identity.create(secrets.token_hex(16))


def _how_to_join(job: LocalJob, settings: LaunchSettings) -> str:
    found = job.address()
    assert found is not None
    kept = job.folder / ("identity" if (job.folder / "identity").exists() else "token")
    nproc = settings.nproc_per_node
    more = f" --nproc_per_node {nproc}" if nproc > 1 else ""
    return (
        f"{job.name} serves at {found[0]}; one more node: edl launch --join {found[0]} "
        f"--token_file {kept}{more} {shlex.join(settings.python)}"
    )


class Screen:
    """Events of the job and what its script prints, line by line (the others: cli/screen.py)."""

    def __init__(self, job: LocalJob, say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._told: set[tuple[float, str]] = set()
        self._reader = threading.Thread(target=self._print, name="logs", daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is nothing to put back."""

    def _print(self) -> None:
        is_terminal = sys.stdout.isatty()  # which no character of a script is to control
        for line in self._job.lines(role="rank", follow=True):
            self._say(inert_lines(line) if is_terminal else line)

    def show(self, status: Status) -> None:
        for event in status.get("events") or ():
            if (event["t"], event["text"]) not in self._told:
                self._told.add((event["t"], event["text"]))
                told = inert_lines(event["text"])
                self._say(f"[{figures.duration(event['t'])}] {told}")

    def note(self, text: str) -> None:
        self._say(inert_lines(text))

    def end(self, status: Status, exit_code: int) -> None:
        self._reader.join(_END_S)  # the job is over: it reads to the end
        self.show(status)
        self._say("")
        more = "" if exit_code in (0, INTERRUPTED) else f"edl logs {self._job.name}"
        for line in view.summary(status, more):
            self._say(line)
