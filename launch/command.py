"""Check what `edl launch` was told, before anything starts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..common import paths
from ..common.claims import check_alone
from ..common.errors import UsageError
from ..common.launched import parse_nodes, time_of
from ..common.locations import absolute, is_local
from ..common.places import Place
from . import local
from .settings import LaunchSettings

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT_MOST = (1 << 16) - 1


@dataclass(frozen=True)
class Flags:
    """The flags as they were given; times are text such as 10m."""

    script: str
    arguments: Sequence[str]
    nodes: str | None
    nproc_per_node: int
    local_nodes: int | None
    module: bool
    job_name: str
    checkpoint_dir: str
    keep_checkpoint_max: int
    max_restarts: int
    last_call: str
    freeze: str
    nearly_done: str
    wait_for_nodes: str
    lease: str
    stop_timeout: str
    port: int


def launch(flags: Flags, say: Callable[[str], None]) -> int:
    """Run a job here; return the exit code.

    Raises UsageError for what is impossible.
    """
    least, most = parse_nodes(flags.nodes or "1")
    here = most if flags.local_nodes is None else flags.local_nodes
    if not 0 <= here <= most:
        raise UsageError(
            f"--local_nodes {here}: between 0 and MAX of --nodes, {most}, can start here."
        )
    if not 0 <= flags.port <= _PORT_MOST:
        raise UsageError(
            f"--port {flags.port} is no port: give a number up to {_PORT_MOST}, 0 for any."
        )
    python = _python(flags)
    name = flags.job_name or f"launch-{time.strftime('%m%d-%H%M%S')}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--job_name {name!r}: small letters, digits and '-', 63 at most.")
    folder = absolute(flags.checkpoint_dir or str(paths.job_folder(name) / "checkpoints"))
    if not is_local(folder):
        Place(folder)  # of a kind that can be opened here
    elif flags.checkpoint_dir and (why := paths.why_unwritable(folder)):
        raise UsageError(f"--checkpoint_dir: {why}: choose another folder.")
    if flags.checkpoint_dir:
        check_alone({"checkpoint_dir": folder}, paths.job_folder(name), "--{}".format)
    settings = LaunchSettings(
        job_name=name,
        min_nodes=least,
        max_nodes=most,
        checkpoint_dir=folder,
        script=" ".join([flags.script, *flags.arguments]),
        keep_checkpoint_max=flags.keep_checkpoint_max,
        max_restarts=flags.max_restarts,
        last_call_s=time_of("--last_call", flags.last_call),
        freeze_s=time_of("--freeze", flags.freeze),
        nearly_done_s=time_of("--nearly_done", flags.nearly_done),
        wait_for_nodes_s=time_of("--wait_for_nodes", flags.wait_for_nodes),
        # Longer than a held call and its repeat.
        silent_s=time_of("--lease", flags.lease, least_s=4.0),
        stop_timeout_s=round(time_of("--stop_timeout", flags.stop_timeout)),
        port=flags.port,
        python=python,
        nproc_per_node=flags.nproc_per_node,
        local_nodes=here,
    )
    return local.launch(settings, say)


def join(flags: Flags, where: str, token_file: str) -> NoReturn:
    """Become a node agent.

    Raises UsageError for what is impossible.
    """
    if flags.nodes is not None:
        raise UsageError("--nodes is of the job, which runs already: leave it out with --join.")
    python = _python(flags)
    address, identity, name = local.coordinator_of(where, token_file)
    local.join(address, identity, python, nproc=flags.nproc_per_node, name=name)


def _python(flags: Flags) -> list[str]:
    """Return the arguments of each worker's Python."""
    if flags.nproc_per_node < 1:
        raise UsageError(f"--nproc_per_node {flags.nproc_per_node}: a node runs at least 1 worker.")
    script = flags.script
    if flags.module:
        return ["-m", script, *flags.arguments]
    if not Path(script).is_file():
        what = "is a folder" if Path(script).is_dir() else "is not there"
        raise UsageError(
            f"The script {script} {what}: give the path of a Python file, or -m MODULE."
        )
    return [str(Path(script).absolute()), *flags.arguments]
