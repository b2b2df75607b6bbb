"""`edl launch`: the flags of a script's job, and of a node that joins one."""

from __future__ import annotations

from typing import Any

import click

from ..common.errors import UsageError
from .options import NAMES, flags_given
from .place import complete_jobs

# Of a node that joins, of all flags of `edl launch`.
_OF_A_NODE = {"join", "token_file", "nproc_per_node", "module", "script", "arguments"}


_TIME: dict[str, Any] = {"metavar": "TIME", "show_default": True}


@click.command(
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
    world of what is there. The script loads its state and goes on: edl.launch.load() and save(),
    see docs/launch.md.
    """
    from ..launch import command

    flags = command.Flags(script, arguments, **given)
    said = flags_given()
    if not join and "token_file" in said:
        raise UsageError(
            "--token_file is what --join is let in by: give that too, or leave it out."
        )
    if join and (others := said - _OF_A_NODE):
        raise UsageError(
            f"--{min(others)} is of the job, which runs already: leave it out with --join."
        )
    if join:
        command.join(flags, join, token_file)  # becomes the agent
    return command.launch(flags, click.echo)
