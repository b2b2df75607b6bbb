"""The environment of a replica: what it is told by who started it, read at each call.

The first of these that is set counts: `edl launch` (EDL_*), torchrun, the predecessor's (ADAPTDL_*,
so that a ported job runs where it ran), else one replica on one machine.
"""

from __future__ import annotations

import os
import tempfile

from ..common.errors import UsageError
from ..common.locations import is_local


def num_replicas() -> int:
    """Return how many processes train together."""
    return _number("EDL_NUM_REPLICAS", "WORLD_SIZE", "ADAPTDL_NUM_REPLICAS", default=1, least=1)


def replica_rank() -> int:
    """Return this process's number among them."""
    return _number("EDL_REPLICA_RANK", "RANK", "ADAPTDL_REPLICA_RANK", default=0)


def num_nodes() -> int:
    """Return on how many machines they run. Unknown counts as one."""
    return _number("EDL_NUM_NODES", "GROUP_WORLD_SIZE", "ADAPTDL_NUM_NODES", default=1, least=1)


def num_restarts() -> int:
    """Return how often the job was started before."""
    return _number(
        "EDL_NUM_RESTARTS", "TORCHELASTIC_RESTART_COUNT", "ADAPTDL_NUM_RESTARTS", default=0
    )


def job_id() -> str:
    """Return the job's name; "standalone" where nobody gave it one.

    It is never None, so that paths can be made of it.
    """
    names = "EDL_JOB_ID", "EDL_JOB_NAME", "TORCHELASTIC_RUN_ID", "ADAPTDL_JOB_ID"
    found = [value for name in names if (value := os.environ.get(name)) and value != "none"]
    return found[0] if found else "standalone"  # torchrun's own default is the text none


def checkpoint_path() -> str | None:
    """Return the folder of the checkpoints; None where nothing is to be kept.

    Raises UsageError where it is a URL.
    """
    path = _folder("EDL_CHECKPOINT_PATH", "ADAPTDL_CHECKPOINT_PATH")
    if path and not is_local(path):
        raise UsageError(
            f"edl.adaptive keeps its checkpoints in a folder, not at a URL ({path}): name a folder "
            "that all machines share, or save by edl.launch.save."
        )
    return path


def share_path() -> str:
    """Return a folder for what all replicas need, data sets for example.

    It is the current one if none was named.
    """
    return _folder("EDL_SHARE_PATH", "ADAPTDL_SHARE_PATH") or os.getcwd()


def get_tensorboard_dir() -> str:
    """Return where this replica writes events.

    Rank 0 does so below EDL_TENSORBOARD_LOGDIR, others where nobody looks.
    """
    folder = _folder("EDL_TENSORBOARD_LOGDIR", "ADAPTDL_TENSORBOARD_LOGDIR")
    if folder is None or replica_rank():
        folder = tempfile.gettempdir()
    return os.path.join(folder, job_id())


def checkpoint_interval_s() -> float | None:
    """Return how often a checkpoint is taken without being asked for; None: only at preemption."""
    value = _first("EDL_CHECKPOINT_INTERVAL_S")
    if value is None:
        return None
    try:
        interval_s = float(value[1])
    except ValueError as error:
        raise UsageError(f"{value[0]} is {value[1]!r}: give seconds.") from error
    return interval_s if interval_s > 0 else None


def tell(rank: int, replicas: int) -> None:
    """Write rank and number of replicas into this process's environment, which children inherit."""
    os.environ.update(EDL_REPLICA_RANK=str(rank), EDL_NUM_REPLICAS=str(replicas))


def master_addr() -> str:
    """Return where rank 0 is reached; 0.0.0.0, which is this machine, where nobody said."""
    found = _first("MASTER_ADDR", "ADAPTDL_MASTER_ADDR")
    return found[1] if found else "0.0.0.0"


def master_port() -> int:
    """Return at which port rank 0 is reached; 0 where nobody said."""
    return _number("MASTER_PORT", "ADAPTDL_MASTER_PORT", default=0)


def init_method() -> str | None:
    """Return where the replicas meet, in torch.distributed's words; None where nobody said."""
    if _first("MASTER_ADDR") and _first("MASTER_PORT"):
        return "env://"  # which knows that torchrun's own process listens there already
    host, port = _first("ADAPTDL_MASTER_ADDR"), _first("ADAPTDL_MASTER_PORT")
    return f"tcp://{host[1]}:{port[1]}" if host and port else None


def adaptdl_sched_version() -> str | None:
    """Return the version of AdaptDL's scheduler, which a job of this package does not have."""
    return os.environ.get("ADAPTDL_SCHED_VERSION")


def supervisor_url() -> str | None:
    """Return the address of AdaptDL's supervisor.

    Nothing here asks it; replicas are told where they meet.
    """
    return os.environ.get("ADAPTDL_SUPERVISOR_URL")


def from_ray() -> bool:
    """Tell whether Ray started this process.

    It does not: there is no way to run under it yet.
    """
    return False


def _folder(*names: str) -> str | None:
    path = _first(*names)
    return os.path.expanduser(path[1]) if path else None


def _first(*names: str) -> tuple[str, str] | None:
    """Return the first variable that is set and not empty, and its value."""
    return next(((name, value) for name in names if (value := os.environ.get(name))), None)


def _number(*names: str, default: int, least: int = 0) -> int:
    found = _first(*names)
    if found is None:
        return default
    name, value = found
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise UsageError(f"{name} is {value!r}: give a whole number of at least {least}.")
    return int(value)
