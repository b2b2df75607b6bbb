"""`edl train --export OUT`: what was trained, exported by whoever followed the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..common.errors import EdlError, UsageError
from ..common.locations import absolute
from ..common.settings import JobSettings
from .export import form_options, write
from .output import Function

_ENDED = (0, 3)  # exit codes of a job that has trained; 3: some data was quarantined


def after_options(command: Function) -> Function:
    """Add --export and --export_to."""
    for option in (
        form_options("--export_to"),
        click.option(
            "--export",
            "export_out",
            metavar="OUT",
            help="In the end, export the model into a new folder or URL, as `edl export`.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class After:
    """An export that is to follow a job."""

    out: str
    forms: tuple[str, ...]

    def check(self, settings: JobSettings) -> None:
        """Raise UsageError, before anything runs, where nothing could be exported in the end."""
        from ..serve.export import Wish, check_wish

        if settings.runtime == "kubernetes":
            raise self._instead("runs here, and the job in a cluster")
        if not settings.keep_last:
            raise UsageError("--export is of the last checkpoint: leave out --no_keep_last.")
        check_wish(Wish(self.forms), self.out)

    def follow(self, code: int, job: Path) -> int:
        """Export a job that has ended with this exit code; return the code.

        Raises UsageError where that fails.
        """
        if code not in _ENDED:
            return code
        from ..serve.export import Wish

        try:
            write(str(job), self.out, Wish(self.forms))
        except EdlError as error:
            raise UsageError(
                f"{job.name} is done, but not exported: {error} (what it has trained is in its "
                f"checkpoint: edl export {job.name} OUT)"
            ) from error
        return code

    def _instead(self, why: str) -> UsageError:
        return UsageError(f"--export {why}: leave it out, and run `edl export JOB OUT` in the end.")


def after(given: dict[str, Any], unfollowed: str) -> After | None:
    """Take the export out of the flags; None: there is none. Raises UsageError.

    `unfollowed`: the flag by which nobody waits for the end of the job, if there is one.
    """
    out, forms = given.pop("export_out"), given.pop("forms")
    if out is None:
        if forms:
            raise UsageError("--export_to is of an export: add --export OUT, or leave it out.")
        return None
    made = After(absolute(out), tuple(dict.fromkeys(forms)) or ("torch",))
    if unfollowed:
        raise made._instead(f"is done by who waits for the job, and --{unfollowed} does not")
    return made
