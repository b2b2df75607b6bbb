"""`edl replay`: repeat a deterministic job in this process."""

from __future__ import annotations

import click

from .paths import LocalPath
from .place import complete_jobs


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("--until", default="", metavar="TASK:POSITION", help="Show the state there, and end.")
@click.option("--output", type=LocalPath(), default="", help="Write that state, as .safetensors.")
@click.option("--losses", type=LocalPath(), default="", help="Write all losses, as .csv.")
def replay(job: str, until: str, output: str, losses: str) -> int:
    """Repeat a --deterministic job (its folder, or name) bit for bit, in this process.

    Exit code 1 where the result is not the job's last checkpoint.
    """
    from ..replay.command import replay as run_replay

    return run_replay(job, until, output, losses, click.echo)
