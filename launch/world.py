"""Who this process is among the workers of its round: what torchrun, too, puts into the environment."""

from __future__ import annotations

import os


def rank() -> int:
    return int(os.environ.get("RANK") or 0)


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)
