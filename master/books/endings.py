"""A test of whether the endings of workers are a span's doing or chance. Pure.

A process that is killed from outside looks the same whether a scheduler wanted its machine or the
kernel its memory. What tells them apart is where it happens: preemption strikes anywhere, a span
that ends whoever computes it is always the same one. So endings are counted by the span that the
worker had begun with and nothing else (failures.py, "careful"), and taken as the span's own doing
once a storm that strikes there as often as elsewhere would practically never have done that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# How often a storm may blame a span that is innocent: once in so many spans that it strikes.
_CHANCE = 1e-9
# What no storm is taken to be milder than: at least 19 endings are needed, however calm it is.
_MILDEST = 1 / 3


@dataclass(frozen=True)
class Ending:
    """The way in which a worker's process ended, in words, which held a lease.

    `certain`: its own doing (an exit code, a crash, a hang), and nobody's from outside. [start,
    end): the span that it had begun with, -1 where nobody knows. `before`: the task that it had to
    do before this one, of those that it held.
    """

    how: str
    certain: bool
    start: int = -1
    end: int = -1
    before: int = 0


def beyond_chance(endings: int, others: int, survived: int) -> bool:
    """Tell whether so many endings at one place, in a row, are no chance.

    `others`: endings elsewhere that nothing explains; `survived`: leases, or starts, that went
    well. Their share is how likely a try ends by chance (Laplace's rule, so that it is one half
    where nothing is known: 30 endings).
    """
    storm = max(_MILDEST, (others + 1) / (others + survived + 2))
    return endings * math.log(storm) <= math.log(_CHANCE)
