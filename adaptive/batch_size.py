"""The size of an optimizer step's batch: the first one, and the one of the best goodput. Pure."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..goodput.model import MIN_GAIN, GoodputFunction

if TYPE_CHECKING:
    from .profile import Bounds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """The size of a batch: on so many replicas at most `atomic` records a pass, `total` in all."""

    replicas: int
    atomic: int
    accumulation: int
    total: int


def checked_bounds(batch_size: int, max_batch_size: int, local_bsz_bounds: Bounds | None) -> Bounds:
    """Return the bounds of a micro-batch as whole numbers; see `autoscale_batch_size`.

    Raises ValueError where they, or `max_batch_size`, exclude `batch_size`.
    """
    if not isinstance(max_batch_size, int) or max_batch_size < batch_size:
        raise ValueError(
            f"max_batch_size is {max_batch_size!r}: give a whole number of at least the batch "
            f"size, {batch_size}"
        )
    low, high = local_bsz_bounds or (None, None)  # a fraction of a batch is a float
    low, high = low and math.ceil(low), high and math.floor(high)
    if (low is not None and not 1 <= low <= batch_size) or (high is not None and high < batch_size):
        raise ValueError(
            f"local_bsz_bounds are {local_bsz_bounds!r}: they must include the batch size, "
            f"{batch_size}; either may be None"
        )
    return low, high


def first_batch(
    batch_size: int, replicas: int, max_batch_size: int | None, bounds: Bounds | None
) -> Batch:
    """Return the batch on so many replicas before any goodput is known."""
    low = (bounds or (None, None))[0] or 1
    total = max(batch_size, replicas * low)
    if max_batch_size is not None:
        total = min(total, max_batch_size)
    total = max(total, replicas)  # none has nothing to compute
    return Batch(replicas, math.ceil(total / replicas), 0, total)


def best_batch(
    goodput: GoodputFunction | None,
    used: Batch | None,
    place: tuple[int, int],
    max_batch_size: int,
    bounds: Bounds | None,
    accumulation: bool,
) -> Batch | None:
    """Return the batch of the best goodput, the one in use unless that is much better.

    `place`: the number of nodes and of replicas. None while no goodput is known.
    """
    if goodput is None:
        return None
    nodes, replicas = place
    _, atomic, steps = goodput.optimize(
        nodes,
        replicas,
        max_batch_size=max_batch_size,
        atomic_bsz_range=bounds,
        accumulation=accumulation,
    )
    passes = replicas * (steps + 1)
    total = max(passes, min(passes * atomic, max_batch_size))
    best = Batch(replicas, atomic, steps, total)
    if used is None or used.replicas != replicas:
        return best
    now = goodput.evaluate(nodes, replicas, used.atomic, used.accumulation)
    then = goodput.evaluate(nodes, replicas, atomic, steps)
    if then <= MIN_GAIN * now:
        return used
    log.info("batch=%d -> %d gain=%.2f", used.total, best.total, then / now)
    return best
