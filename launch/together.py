"""The ranks of a round, as far as they talk to each other of anything but gradients."""

from __future__ import annotations

from torch import distributed

from ..adaptive import collective
from ..common.errors import UsageError
from . import world

_ranks: tuple[object, collective.Control] | None = None  # of this default process group


def ranks() -> collective.Control:
    """Return the ranks of this round, over a gloo group of their own. All of them call it.

    Raises UsageError where there are several that do not know each other.
    """
    global _ranks
    check_known()
    if not _is_initialized():
        return collective.Control()
    world_group = distributed.group.WORLD
    if _ranks is None or _ranks[0] is not world_group:
        _ranks = world_group, collective.of_all()
    return _ranks[1]


def check_known() -> None:
    """Raise UsageError where there are several ranks that do not know each other."""
    if world.world_size() > 1 and not _is_initialized():
        raise UsageError(
            f"this is rank {world.rank()} of {world.world_size()}, and they do not know each "
            "other: call torch.distributed.init_process_group() first. accelerate's Accelerator() "
            'does so, on CPUs with cpu=True, and Lightning\'s Fabric with strategy="ddp".'
        )


def _is_initialized() -> bool:
    return distributed.is_available() and distributed.is_initialized()
