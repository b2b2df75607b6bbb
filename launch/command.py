"""What `edl launch` was told, checked before anything starts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from ..common import paths
from ..common.errors import UsageError
from ..common.values import seconds
from . import local
from .settings import LaunchSettings, parse_nodes

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT_MOST = (1 << 16) - 1


def launch(
    script: str,
    arguments: Sequence[str],
    say: Callable[[str], None],
    *,
    nodes: str | None,
    nproc_per_node: int,
    local_nodes: int | None,
    module: bool,
    job_name: str,
    checkpoint_dir: str,
    keep_checkpoint_max: int,
    max_restarts: int,
    last_call: str,
    freeze: str,
    nearly_done: str,
    wait_for_nodes: str,
    lease: str,
    stop_timeout: str,
    port: int,
) -> int:
    """Run it here; the exit code. Raises UsageError for what is impossible."""
    least, most = parse_nodes(nodes or "1")
    here = most if local_nodes is None else local_nodes
    if not 0 <= here <= most:
        raise UsageError(
            f"--local_nodes {here}: between 0 and MAX of --nodes, {most}, can start here."
        )
    if not 0 <= port <= _PORT_MOST:
        raise UsageError(f"--port {port} is no port: give a number up to {_PORT_MOST}, 0 for any.")
    python = _python(script, arguments, module, nproc_per_node)
    name = job_name or f"launch-{time.strftime('%m%d-%H%M%S')}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"--job_name {name!r}: small letters, digits and '-', 63 at most.")
    folder = Path(checkpoint_dir or paths.job_folder(name) / "checkpoints").absolute()
    if checkpoint_dir and (why := paths.why_unwritable(folder)):
        raise UsageError(f"--checkpoint_dir: {why}: choose another folder.")
    settings = LaunchSettings(
        job_name=name,
        min_nodes=least,
        max_nodes=most,
        checkpoint_dir=str(folder),
        script=" ".join([script, *arguments]),
        keep_checkpoint_max=keep_checkpoint_max,
        max_restarts=max_restarts,
        last_call_s=_seconds("last_call", last_call),
        freeze_s=_seconds("freeze", freeze),
        nearly_done_s=_seconds("nearly_done", nearly_done),
        wait_for_nodes_s=_seconds("wait_for_nodes", wait_for_nodes),
        lease_s=_seconds("lease", lease, least_s=4.0),  # longer than a held call and its repeat
        stop_timeout_s=round(_seconds("stop_timeout", stop_timeout)),
        port=port,
    )
    return local.launch(settings, python, nproc=nproc_per_node, local_nodes=here, say=say)


def join(
    script: str,
    arguments: Sequence[str],
    where: str,
    token_file: str,
    *,
    nodes: str | None,
    nproc_per_node: int,
    module: bool,
    **_: object,
) -> NoReturn:
    """Become a node agent. Raises UsageError for what is impossible."""
    if nodes is not None:
        raise UsageError("--nodes is of the job, which runs already: leave it out with --join.")
    python = _python(script, arguments, module, nproc_per_node)
    address, identity, name = local.coordinator_of(where, token_file)
    local.join(address, identity, python, nproc=nproc_per_node, name=name)


def _python(script: str, arguments: Sequence[str], module: bool, nproc: int) -> list[str]:
    """What each worker's Python gets."""
    if nproc < 1:
        raise UsageError(f"--nproc_per_node {nproc}: a node runs at least 1 worker.")
    if module:
        return ["-m", script, *arguments]
    if not Path(script).is_file():
        what = "is a folder" if Path(script).is_dir() else "is not there"
        raise UsageError(
            f"The script {script} {what}: give the path of a Python file, or -m MODULE."
        )
    return [str(Path(script).absolute()), *arguments]


def _seconds(flag: str, text: str, least_s: float = 0.0) -> float:
    try:
        found = seconds(text)
    except ValueError as error:
        raise UsageError(f"--{flag}: {error}.") from error
    if found < least_s:
        raise UsageError(f"--{flag} {text}: at least {least_s:g}s.")
    return found
