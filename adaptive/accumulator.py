"""Sums over all replicas, exact across restarts: losses, counts of right answers.

    stats = Accumulator()
    for batch in loader:
        stats["right"] += right                     # here, on this replica
    with stats.synchronized():                      # one collective: all replicas see the totals
        print(stats["right"] / stats["count"])

What is added is in the checkpoint with the position of the loop that it was added in. So add within
loops over data loaders: the rest of an epoch's body runs again after a restart, and would add
again. The totals that a `synchronized` block saw are kept until the epoch is finished, and given
again when it runs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

from . import checkpoint
from .collective import control
from .epoch import epochs
from .loop import current_dataloader

Number = int | float
Pairs = list[list[Any]]  # [key, number]: keys of JSON objects would all become texts


@dataclass
class _Sum:
    """What `stats[key]` is before it is synchronized: it can be added to, and no more."""

    key: Any
    amount: Number = 0

    def __iadd__(self, amount: Any) -> Self:
        self.amount += _number(amount)
        return self

    def __isub__(self, amount: Any) -> Self:
        self.amount -= _number(amount)
        return self


class Accumulator(MutableMapping[Any, Any]):
    """A dict of sums. Keys are numbers, texts or None; values numbers, or tensors of one.

    Outside of `synchronized` it looks empty; `+=`, `-=`, `update` and `subtract` add to it. Within,
    it is a dict of the totals over all replicas, and changing it changes the totals: do so alike on
    all. Raises RuntimeError where it is made within a loop over a data loader.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if current_dataloader() is not None:
            raise RuntimeError("an Accumulator is made before the loop over a data loader")
        self._state = _Sums(epochs().name_of("accumulator"))
        epochs().forget_after(self._state)
        self._view: dict[Any, Number] | None = None  # within `synchronized`
        self._blocks: tuple[int | None, int] = (None, 0)  # `synchronized` of an epoch, so far
        if not self._state.restored:
            self.update(*args, **kwargs)

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Within this block the accumulator is a dict of the totals over all replicas."""
        if self._view is not None:
            yield self
            return
        self._view = self._totals()
        try:
            yield self
        finally:
            self._view = None

    def _totals(self) -> dict[Any, Number]:
        state, epoch = self._state, epochs().current
        if self._blocks[0] != epoch:
            self._blocks = (epoch, 0)
        if state.epoch != epoch:
            state.epoch, state.seen = epoch, []
        number = self._blocks[1]
        self._blocks = (epoch, number + 1)
        if number < len(state.seen):  # the block runs again: what it changes has been changed
            return dict(state.seen[number])
        state.sync()
        state.seen.append(dict(state.totals))
        return state.totals

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a mapping, or pairs. Within `synchronized`: as a dict's."""
        for key, amount in dict(*args, **kwargs).items():
            if self._view is None:
                self._state.add(key, _number(amount))
            else:
                self._view[key] = _number(amount)

    def subtract(self, *args: Any, **kwargs: Any) -> None:
        """Take away a mapping, or pairs."""
        for key, amount in dict(*args, **kwargs).items():
            self[key] -= amount

    def __getitem__(self, key: Any) -> Any:
        return _Sum(key) if self._view is None else self._view[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._view is not None:
            self._view[key] = _number(value)
        elif isinstance(value, _Sum) and value.key == key:
            self._state.add(key, value.amount)
        else:
            raise TypeError("outside of synchronized() an Accumulator can only be added to, by +=")

    def __delitem__(self, key: Any) -> None:
        del self._writable()[key]

    def clear(self) -> None:
        """Within `synchronized`: forget the totals."""
        self._writable().clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._view or {})

    def __len__(self) -> int:
        return len(self._view or {})

    def __contains__(self, key: object) -> bool:
        return key in (self._view or {})

    def __repr__(self) -> str:
        return f"Accumulator({self._view if self._view is not None else '...'})"

    def _writable(self) -> dict[Any, Number]:
        if self._view is None:
            raise TypeError("only within synchronized() can values of an Accumulator be removed")
        return self._view


class _Sums(checkpoint.State):
    """Totals that all replicas know, what this one has added since, and what blocks have seen."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.totals: dict[Any, Number] = {}
        self.added: dict[Any, Number] = {}
        self.epoch: int | None = None
        self.seen: list[dict[Any, Number]] = []  # in that epoch
        self.restored = checkpoint.load_state(self)

    def add(self, key: Any, amount: Number) -> None:
        if key is not None and not isinstance(key, str | int | float):
            raise TypeError(f"a key of an Accumulator is a number, a text or None, not {key!r}")
        self.added[key] = self.added.get(key, 0) + amount

    def sync(self) -> None:
        for added in control().gather(_pairs(self.added)):
            for key, amount in added:
                self.totals[key] = self.totals.get(key, 0) + amount
        self.added = {}

    def save(self, fileobj: BinaryIO) -> None:
        values = {
            "totals": _pairs(self.totals),
            "epoch": self.epoch,
            "seen": [_pairs(seen) for seen in self.seen],
        }
        fileobj.write(json.dumps(values).encode())

    def load(self, fileobj: BinaryIO) -> None:
        values = json.loads(fileobj.read())
        self.totals = dict(values["totals"])
        self.epoch = values["epoch"]
        self.seen = [dict(seen) for seen in values["seen"]]


def _pairs(sums: Mapping[Any, Number]) -> Pairs:
    return [[key, amount] for key, amount in sums.items()]


def _number(value: Any) -> Number:
    """A Python number of one, of a numpy scalar, or of a tensor with one element."""
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, int | float):
        raise TypeError(f"an Accumulator adds numbers, not {value!r}")
    return plain
