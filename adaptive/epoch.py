"""Epochs, across restarts: one that was finished is never begun again.

    for epoch in remaining_epochs_until(30):    # the first that is not finished, and on
        for batch in loader: ...                # where the loader's own position goes on

An epoch is finished when the body of the loop is left, also by `break` or an exception. It is a
pass over the data, unless the loader scales the batch: then it is the progress of one
(data.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import BinaryIO

from . import checkpoint
from .collective import control
from .session import only


class Epochs(checkpoint.State):
    """The epochs: how many are finished, and which one runs."""

    def __init__(self) -> None:
        super().__init__("edl-epoch")
        self.finished = 0
        self.current: int | None = None
        self._constructed: dict[str, int] = {}  # how many states, by kind and epoch
        self._forget: list[Callable[[], None]] = []
        checkpoint.load_state(self)

    def until(self, end: int) -> Iterator[int]:
        control()  # what is finished is known when the replicas have met
        if self.current is not None:
            raise RuntimeError(
                f"epoch {self.current} is running: loops over epochs do not nest or overlap"
            )
        while self.finished < end:
            self.current = self.finished
            try:
                yield self.current
            finally:
                self.finished += 1
                self.current = None
                while self._forget:
                    self._forget.pop()()

    def name_of(self, kind: str) -> str:
        """Return the name of the state of a loader or an accumulator: the same after a restart.

        It counts the objects of that kind in the epoch, so all replicas must construct the same
        ones in the same order. One made within an epoch is forgotten with it.
        """
        group = f"edl-{kind}-epoch{'' if self.current is None else self.current}"
        number = self._constructed.get(group, 0)
        self._constructed[group] = number + 1
        return f"{group}-{number}"

    def forget_after(self, state: checkpoint.State) -> None:
        """Forget a state that was made within an epoch, when that has ended."""
        if self.current is not None:
            self._forget.append(lambda: checkpoint.states().forget(state))

    def save(self, fileobj: BinaryIO) -> None:
        fileobj.write(json.dumps({"finished": self.finished}).encode())

    def load(self, fileobj: BinaryIO) -> None:
        self.finished = json.loads(fileobj.read())["finished"]


def epochs() -> Epochs:
    """Return the epochs of this process."""
    return only(Epochs)


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """Yield the epochs that are not finished yet, below `epoch`, one at a time.

    Raises RuntimeError where another such loop is running.
    """
    return epochs().until(epoch)


def current_epoch() -> int | None:
    """Return the epoch that runs; None outside of a loop over `remaining_epochs_until`."""
    return epochs().current


def finished_epochs() -> int:
    """Return how many epochs were finished, before all restarts too.

    The running one does not count.
    """
    return epochs().finished
