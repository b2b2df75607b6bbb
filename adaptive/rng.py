"""The states of the random number generators of this process: Python's, NumPy's and torch's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def state() -> dict[str, Any]:
    """Return the states, of plain values, arrays and tensors."""
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    found = {
        "python": [version, np.array(words, dtype=np.int64), gauss],
        "numpy": [kind, np.array(keys, dtype=np.int64), *map(_plain, rest)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore(saved: dict[str, Any]) -> None:
    """Go on from these states."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(map(int, words)), gauss))
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, np.asarray(keys).astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def seed(*words: int) -> None:
    """Begin anew, as a function of these whole numbers of at least 0."""
    made = np.random.SeedSequence(words).generate_state(3)
    random.seed(int(made[0]))
    np.random.seed(int(made[1]))
    torch.manual_seed(int(made[2]))


def take_over(saved: list[dict[str, Any]], rank: int, replicas: int, seed_: int, step: int) -> None:
    """Go on from this rank's of the states that all ranks had.

    Those of another number of ranks say nothing of this one: then all begin anew, with what depends
    on the seed, the step and the rank.
    """
    if len(saved) == replicas:
        restore(saved[rank])
    else:
        seed(seed_, step, rank)


def _plain(value: Any) -> int | float:
    return value.item() if isinstance(value, np.generic) else value  # type: ignore[no-any-return]
