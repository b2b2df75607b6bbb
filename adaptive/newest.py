"""The models of this process in the order in which they were made: of several the newest counts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Protocol

from .session import only


class Trained(Protocol):
    """A model that counts its progress (parallel.py)."""

    progress: float


class Models:
    """References to models by the names of their states, which do not keep them alive."""

    def __init__(self) -> None:
        self._made: list[tuple[str, Callable[[], Trained | None]]] = []

    def add(self, name: str, model: Trained) -> None:
        self._made = [(known, one) for known, one in self._made if one() is not None]
        self._made.append((name, weakref.ref(model)))

    def named(self, name: str) -> Trained | None:
        """Return the model of this name, if it lives."""
        found = (one() for known, one in reversed(self._made) if known == name)
        return next((model for model in found if model is not None), None)

    def newest(self, names: Collection[str]) -> str:
        """Return the name of the model that was made last of these."""
        return next(name for name, _ in reversed(self._made) if name in names)


def models() -> Models:
    """Return the models of this process."""
    return only(Models)


class LoopModels:
    """The names of the models that a loader's loops train, by the number of the loop in its epoch.

    Of several it is the one that was made last.
    """

    def __init__(self) -> None:
        self.by_loop: dict[int, str] = {}
        self._loop = 0
        self._stepped: set[str] = set()  # in this loop, since it was entered

    def enter(self, loop: int) -> None:
        self._loop = loop
        self._stepped.clear()

    def stepped(self, name: str) -> None:
        """Note that a model made an optimizer step in this loop."""
        if name not in self._stepped:
            self._stepped.add(name)
            self.by_loop[self._loop] = models().newest(self._stepped)

    def trained(self) -> Trained | None:
        """Return the model that this loop trains, before its first step that of the epoch before.

        None where none is known.
        """
        name = self.by_loop.get(self._loop)
        return None if name is None else models().named(name)
