"""The states of the random number generators of all ranks, for a script's state."""

from __future__ import annotations

from typing import Any

import torch

from ..adaptive import rng
from . import world
from .together import ranks


def random_states() -> list[dict[str, Any]]:
    """Return the states of the random number generators of all ranks, by rank, to be saved.

    They are Python's, NumPy's and torch's. All ranks call it together. Raises UsageError where they
    do not know each other.
    """
    return ranks().gather(rng.state())


def go_on_randomly(saved: list[dict[str, Any]], step: int = 0) -> None:
    """Go on from what `random_states` gave.

    With another number of ranks all begin anew, with what depends on the seed that torch was given,
    on `step`, and on the rank; so it is to be another number at each such change.
    """
    given = torch.initial_seed() & 0xFFFFFFFF
    rng.take_over(saved, world.rank(), world.world_size(), given, step)
