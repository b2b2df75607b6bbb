"""Replicas find each other: torch.distributed for gradients, a gloo group beside it for the rest.

Who started the process tells it in the environment where rank 0 listens (env.py). A process that
was told nothing is a world of one and needs no port.
"""

from __future__ import annotations

import datetime
import functools

import torch
from torch import distributed

from . import collective, env, epoch, profile


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    world_size: int | None = None,
    rank: int | None = None,
    timeout_s: float = collective.TIMEOUT_S,
) -> None:
    """Initialise torch.distributed, and what the replicas say to each other beside it.

    `backend` is nccl where there is CUDA and gloo elsewhere. `init_method` "tcp://host:port" goes
    before the environment. An initialised torch.distributed is used as it is.

    Raises UsageError where there are several replicas and nobody said where they meet.
    """
    if not distributed.is_initialized():
        _initialise(
            backend or ("nccl" if torch.cuda.is_available() else "gloo"),
            init_method,
            env.num_replicas() if world_size is None else world_size,
            env.replica_rank() if rank is None else rank,
            datetime.timedelta(seconds=timeout_s),
        )
    rank, replicas = distributed.get_rank(), distributed.get_world_size()
    timeout = datetime.timedelta(seconds=timeout_s)
    another = functools.partial(distributed.new_group, backend="gloo", timeout=timeout)
    collective.connect(another() if replicas > 1 else None, rank, replicas, another)
    collective.preemption().install()
    # Their loading is a collective: here, and not at a first use that might be rank 0's alone.
    epoch.epochs()
    profile.current()


def _initialise(
    backend: str,
    init_method: str | None,
    world_size: int,
    rank: int,
    timeout: datetime.timedelta,
) -> None:
    collective.check_rank(rank, world_size)
    store = None
    init_method = init_method or env.init_method()
    if init_method is None:
        if world_size > 1:
            collective.nowhere(rank, world_size)
        store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group(
        backend,
        init_method=init_method,
        store=store,
        world_size=world_size,
        rank=rank,
        timeout=timeout,
    )
