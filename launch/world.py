"""This process's place among the workers of its round, as torchrun puts it into the environment."""

from __future__ import annotations

import os


def rank() -> int:
    return int(os.environ.get("RANK") or 0)


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)
