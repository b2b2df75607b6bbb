"""The model that was made last in this process: its progress is the job's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .session import only


class Trained(Protocol):
    """A model that counts its progress (parallel.py)."""

    progress: float


class Newest:
    """A reference to the model, which does not keep it alive."""

    model: Callable[[], Trained | None] = staticmethod(lambda: None)


def current_model() -> Trained | None:
    """Return the model that was made last, if it lives."""
    return only(Newest).model()
