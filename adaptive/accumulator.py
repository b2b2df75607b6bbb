"""Sums over all replicas, exact across restarts: losses, right answers, confusion matrices.

    stats = Accumulator()
    for batch in loader:
        stats["right"] += right                     # here, on this replica
    with stats.synchronized():                      # one collective: all replicas see the totals
        print(stats["right"] / stats["count"])

What is added is in the checkpoint with the position of the loop that it was added in. So add within
loops over data loaders: the rest of an epoch's body runs again after a restart. The totals that a
`synchronized` block outside of such loops saw are kept until the epoch is finished, and given again
when it runs again; what was added again before it is then forgotten, for these totals have it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Self

import numpy as np
from torch import Tensor

from . import checkpoint, values
from .collective import control
from .epoch import epochs
from .loop import current_dataloader

Amount = Any  # a number, an array or a tensor


@dataclass(frozen=True)
class _Sum:
    """A value `stats[key]` before it is synchronized: it can be added to, and no more."""

    of: Accumulator
    key: Any
    amount: Amount = 0

    def __add__(self, amount: object) -> _Sum:
        return replace(self, amount=self.amount + _amount(amount))

    __radd__ = __add__

    def __sub__(self, amount: object) -> _Sum:
        return replace(self, amount=self.amount - _amount(amount))


class Accumulator(MutableMapping[Any, Any]):
    """A dict of sums, of numbers, NumPy arrays or tensors.

    Keys are numbers, texts, None, or tuples of them.

    Outside of `synchronized` it looks empty; `+=`, `-=`, `update` and `subtract` add to it and to
    its values. Within, it is a dict of the totals over all replicas, and changing it changes the
    totals: do so alike on all. Raises RuntimeError where it is made within a loop over a data
    loader.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if current_dataloader() is not None:
            raise RuntimeError("an Accumulator is made before the loop over a data loader")
        self._state = _Sums(epochs().name_of("accumulator"))
        epochs().forget_after(self._state)
        self._view: dict[Any, Any] | None = None  # within `synchronized`
        self._blocks: tuple[int | None, int] = (None, 0)  # `synchronized` of an epoch, so far
        if not self._state.restored:
            self.update(*args, **kwargs)

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Make the accumulator, within this block, a dict of the totals over all replicas."""
        if self._view is not None:
            yield self
            return
        self._view = self._totals()
        try:
            yield self
        finally:
            self._view = None

    def _totals(self) -> dict[Any, Any]:
        state, epoch = self._state, epochs().current
        if current_dataloader() is not None:  # in a loop, whose passes do not run again
            state.sync()
            return state.totals
        if self._blocks[0] != epoch:
            self._blocks = (epoch, 0)
        if state.epoch != epoch:
            state.epoch, state.seen = epoch, []
        number = self._blocks[1]
        self._blocks = (epoch, number + 1)
        if number < len(state.seen):  # the block runs again: what it changes has been changed
            state.added = {}
            return copy.deepcopy(state.seen[number])
        state.sync()
        state.seen.append(copy.deepcopy(state.totals))
        return state.totals

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a mapping, or pairs."""
        for key, amount in dict(*args, **kwargs).items():
            self._add(key, _amount(amount))

    def subtract(self, *args: Any, **kwargs: Any) -> None:
        """Take away a mapping, or pairs."""
        for key, amount in dict(*args, **kwargs).items():
            self._add(key, -_amount(amount))

    def _add(self, key: object, amount: Amount) -> None:
        if self._view is None:
            self._state.add(key, amount)
        else:
            self._view[key] = self._view.get(key, 0) + amount

    def __iadd__(self, other: object) -> Self:
        self.update(other)
        return self

    def __isub__(self, other: object) -> Self:
        self.subtract(other)
        return self

    def __getitem__(self, key: object) -> Any:
        return _Sum(self, key) if self._view is None else self._view[key]

    def __setitem__(self, key: object, value: object) -> None:
        if self._view is not None:
            values.encode((key, value))  # or the next checkpoint could not
            self._view[key] = value
        elif not isinstance(value, _Sum):
            raise TypeError("outside of synchronized() an Accumulator can only be added to, by +=")
        elif value.of is not self or value.key != key:
            raise ValueError(
                f"what was added to {value.key!r} cannot be given to {key!r}: outside of "
                "synchronized() a value of an Accumulator can only be added to"
            )
        else:
            self._state.add(key, value.amount)

    def __delitem__(self, key: object) -> None:
        del self._writable()[key]

    def clear(self) -> None:
        """Forget the totals, within `synchronized`."""
        self._writable().clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._view or {})

    def __len__(self) -> int:
        return len(self._view or {})

    def __contains__(self, key: object) -> bool:
        return key in (self._view or {})

    def __repr__(self) -> str:
        return f"Accumulator({self._view if self._view is not None else '...'})"

    def _writable(self) -> dict[Any, Any]:
        if self._view is None:
            raise TypeError("only within synchronized() can values of an Accumulator be removed")
        return self._view


class _Sums(checkpoint.State):
    """Totals that all replicas know, what this one has added since, and what blocks have seen."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.totals: dict[Any, Any] = {}
        self.added: dict[Any, Amount] = {}
        self.epoch: int | None = None
        self.seen: list[dict[Any, Any]] = []  # in that epoch
        self.restored = checkpoint.load_state(self)

    def add(self, key: object, amount: Amount) -> None:
        if not isinstance(key, str):
            values.encode(key)
        self.added[key] = self.added.get(key, 0) + amount

    def sync(self) -> None:
        for added in control().gather(self.added):
            for key, amount in added.items():
                self.totals[key] = self.totals.get(key, 0) + amount
        self.added = {}

    def save(self, fileobj: BinaryIO) -> None:
        fileobj.write(values.encode((self.totals, self.epoch, self.seen)))

    def load(self, fileobj: BinaryIO) -> None:
        self.totals, self.epoch, self.seen = values.decode(fileobj.read())
        self.added = {}  # before the replicas met: these totals have it


def _amount(value: object) -> Amount:
    """Return a value in the form in which an Accumulator can add it.

    That is a Python number of one, of a numpy scalar, or of what has one element, an array, or a
    tensor on the CPU. Raises TypeError for anything else.
    """
    if isinstance(value, Tensor) and value.numel() != 1:
        return value.detach().cpu()
    if isinstance(value, np.ndarray) and value.size != 1 and value.dtype.kind in "biufc":
        return value
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, int | float):
        raise TypeError(f"an Accumulator adds numbers, arrays and tensors, not {value!r}")
    return plain
