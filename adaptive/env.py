"""What a replica is told by who started it, read from the environment at each call.

The first of these that is set counts: `edl launch` (EDL_*), torchrun, the predecessor's (ADAPTDL_*,
so that a ported job runs where it ran), else one replica on one machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..common.errors import UsageError


def num_replicas() -> int:
    """How many processes train together."""
    return _number("EDL_NUM_REPLICAS", "WORLD_SIZE", "ADAPTDL_NUM_REPLICAS", default=1, least=1)


def replica_rank() -> int:
    """This process's number among them."""
    return _number("EDL_REPLICA_RANK", "RANK", "ADAPTDL_REPLICA_RANK", default=0)


def num_nodes() -> int:
    """On how many machines they run. Unknown counts as one."""
    return _number("EDL_NUM_NODES", "GROUP_WORLD_SIZE", "ADAPTDL_NUM_NODES", default=1, least=1)


def num_restarts() -> int:
    """How often the job was started before."""
    return _number(
        "EDL_NUM_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "ADAPTDL_NUM_RESTARTS", default=0
    )


def checkpoint_path() -> Path | None:
    """The folder of the checkpoints; None where nothing is to be kept."""
    path = _first("EDL_CHECKPOINT_PATH", "ADAPTDL_CHECKPOINT_PATH")
    return Path(path[1]).expanduser() if path else None


def checkpoint_interval_s() -> float | None:
    """How often a checkpoint is taken without being asked for; None: only at preemption."""
    value = _first("EDL_CHECKPOINT_INTERVAL_S")
    if value is None:
        return None
    try:
        interval_s = float(value[1])
    except ValueError as error:
        raise UsageError(f"{value[0]} is {value[1]!r}: give seconds.") from error
    return interval_s if interval_s > 0 else None


def tell(rank: int, replicas: int) -> None:
    """Write down what arguments said, for this process and its children."""
    os.environ.update(EDL_REPLICA_RANK=str(rank), EDL_NUM_REPLICAS=str(replicas))


def init_method() -> str | None:
    """Where the replicas meet, in torch.distributed's words; None where nobody said."""
    if _first("MASTER_ADDR") and _first("MASTER_PORT"):
        return "env://"  # which knows that torchrun's own process listens there already
    host, port = _first("ADAPTDL_MASTER_ADDR"), _first("ADAPTDL_MASTER_PORT")
    return f"tcp://{host[1]}:{port[1]}" if host and port else None


def _first(*names: str) -> tuple[str, str] | None:
    """The first variable that is set and not empty, and its value."""
    return next(((name, value) for name in names if (value := os.environ.get(name))), None)


def _number(*names: str, default: int, least: int = 0) -> int:
    found = _first(*names)
    if found is None:
        return default
    name, value = found
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise UsageError(f"{name} is {value!r}: give a whole number of at least {least}.")
    return int(value)
