"""The GPUs of a node that is not the only one on its machine.

A script takes the GPU of its LOCAL_RANK, which begins at 0 on each node. So nodes of one machine
count their workers in the round's store, each after those that came before it, and the workers of
one that has others before it see the GPUs that these leave. The first one sees all, and takes the
first ones of them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

log = logging.getLogger("edl.launch")

VISIBLE = "CUDA_VISIBLE_DEVICES"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def place(store: Store, nproc: int) -> int:
    """Return how many workers of this round other nodes of this machine have that came before."""
    machine = f"{socket.gethostname()}/{_BOOT.read_text().strip()}"
    return store.add(f"edl/workers/{machine}", nproc) - nproc


def seen(visible: Sequence[str], before: int, nproc: int) -> list[str]:
    """Return the GPUs that `nproc` workers see where `before` others of the machine have theirs.

    Where there are too few, some have several workers.
    """
    if before == 0 or not visible:
        return list(visible)
    if before + nproc > len(visible):
        log.warning(
            "%d workers are on this machine, which has %d GPUs: some share one, which NCCL "
            "refuses. Allow fewer nodes (--nodes, --local_nodes) or workers (--nproc_per_node)",
            before + nproc,
            len(visible),
        )
    return [visible[(before + number) % len(visible)] for number in range(nproc)]


def visible() -> list[str]:
    """Return the GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        return [] if "-1" in names else names
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def are_there() -> bool:
    """Tell whether torch finds any accelerator here, of whatever kind."""
    import torch

    return torch.accelerator.is_available()
