"""Cuts of a shard: freezes, pins, moments, and reading what is pinned.

`freeze` holds back pushes that would be applied; answers that apply nothing are still given. `pin`
lets through exactly the pushes that end at or before their task's target; when the ledger covers
all targets the state is pinned (copy on write) and pushes go on at once. A freeze ends by itself at
its deadline, and a pin that has not reached its targets by its own pins nothing: a master that dies
never stops training. A master of a higher epoch ends what an older one has begun (masters.py).

A moment, for a recovery snapshot (snapshots/recorder.py), needs no freeze: `pin_moment` lets the
steps under way end, pins, and lets pushes go on at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...common.errors import EdlError, NotPinned
from ...nn.model_spec import ModelSpec
from ..rows.optimizers import Ints
from ..rows.table import RowBlock
from .dense import Chunk, ChunkKey
from .ledger import Entry, Span
from .parameters import Parameters
from .state import ShardBooks, ShardState


@dataclass(frozen=True)
class Moment:
    """The state of a shard when it was pinned under `name`, beside no other shard."""

    name: str
    parameters: Parameters
    books: ShardBooks
    life: int  # of the parameters: a snapshot that builds on another needs the same


@dataclass
class Freeze:
    """A cut that holds back pushes until its deadline, but for those that end at its targets."""

    cut: str
    deadline: float
    targets: Mapping[int, int] | None = None  # None: nothing passes

    def lets_through(self, span: Span) -> bool:
        return self.targets is not None and span.end <= self.targets.get(span.task, 0)


class Pins:
    """The cuts and moments of one shard.

    Any thread may call what takes the lock by itself.
    """

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.frozen: Freeze | None = None
        self.pinned: dict[str, ShardBooks] = {}  # by cut

    def lets_through(self, span: Span) -> bool:
        """Tell whether pushes are held back, but this one is not: a pin waits for it."""
        return self.frozen is not None and self.frozen.lets_through(span)

    def freeze(self, cut: str, timeout_s: float) -> tuple[tuple[Entry, ...], int]:
        """Hold back pushes for at most `timeout_s`, and return the ledger and the version."""
        deadline = time.monotonic() + timeout_s
        with self._state.lock:
            while self.frozen is not None and self.frozen.cut != cut:
                self.wait_or_thaw(self.frozen, self._state.changed)
            freeze = Freeze(cut, deadline)
            if cut not in self.pinned:
                self.frozen = freeze
            # The ledger must not rise any more.
            while self.frozen is freeze and self._state.applying:
                self.wait_or_thaw(freeze, self._state.changed)
            return self._state.ledger.entries(), self._state.version

    def pin(self, cut: str, targets: Mapping[int, int], timeout_s: float) -> tuple[bool, int]:
        """Pin the state at which the ledger is at `targets`.

        Returns whether it was reached, and the version.

        A shard without a model, or one that this cut does not freeze (any more), pins nothing.
        """
        with self._state.lock:
            self._state.check_whole()
            freeze = self.frozen
            if freeze is not None and freeze.cut == cut:
                freeze.targets = targets
                freeze.deadline = time.monotonic() + timeout_s
                self._state.wake_all()
                while self.frozen is freeze and (self._state.applying or not self._covers(targets)):
                    self.wait_or_thaw(freeze, self._state.changed)
                if self.frozen is freeze:
                    self._state.check_whole()
                    if self._state.parameters is not None and self._state.parameters.complete:
                        self._keep(cut, self._state.parameters)
                    self._thaw()
            if cut in self.pinned:  # also: a repeated call
                return True, self.pinned[cut].version
            return False, self._state.version

    def unpin(self, cut: str) -> None:
        """Forget the cut; let go of its freeze."""
        with self._state.lock:
            self._drop(cut)
            if self.is_frozen_by(cut):
                self._thaw()

    def let_go(self) -> None:
        """End all freezes and pins, under the lock, for nobody else will."""
        for cut in list(self.pinned):
            self._drop(cut)
        if self.frozen is not None:
            self._thaw()

    def _drop(self, cut: str) -> None:
        self.pinned.pop(cut, None)
        if self._state.parameters is not None:
            self._state.parameters.unpin(cut)

    def _covers(self, targets: Mapping[int, int]) -> bool:
        return all(
            task < self._state.ledger.low_water or self._state.ledger.applied(task) >= position
            for task, position in targets.items()
        )

    def _keep(self, cut: str, parameters: Parameters) -> None:
        self.pinned[cut] = self._state.books()
        parameters.pin(cut)

    def is_frozen_by(self, cut: str) -> bool:
        """Tell whether pushes are held back for this cut."""
        return self.frozen is not None and self.frozen.cut == cut

    def wait_or_thaw(self, freeze: Freeze, changed: threading.Condition) -> None:
        """Wait, under the lock, for any change; let go of the freeze if its time is over."""
        left_s = freeze.deadline - time.monotonic()
        if left_s > 0:
            changed.wait(left_s)
        elif self.frozen is freeze:
            self._thaw()

    def _thaw(self) -> None:
        self.frozen = None
        self._state.wake_all()

    def pinned_as(self, cut: str) -> ShardBooks:
        """Return, under the lock, the books of a cut.

        Raises NotPinned.
        """
        if cut not in self.pinned:
            raise self.not_pinned(cut)
        return self.pinned[cut]

    def not_pinned(self, cut: str) -> NotPinned:
        """Return the error that says so."""
        return NotPinned(f"cut {cut!r} is not pinned on server {self._state.index}")

    def pin_moment(self, name: str, unless: ShardBooks | None = None) -> Moment | None:
        """Pin the state as it is.

        None: there is nothing yet, or the books are as in `unless`.
        """
        with self._state.lock:
            self._state.check_whole()
            self._state.pinning = True
            try:
                self._state.await_steps(lambda: not self._state.applying)
                self._state.check_whole()
                if self._state.parameters is None or not self._state.parameters.complete:
                    return None
                if unless is not None and self._is_at(unless):
                    return None
                moment = Moment(name, self._state.parameters, self._state.books(), self._state.life)
                self._state.parameters.pin(name, mark=True)
                return moment
            finally:
                self._state.pinning = False
                self._state.changed.notify_all()

    def _is_at(self, books: ShardBooks) -> bool:
        mine = self._state.version, self._state.ledger.low_water, self._state.aggregation.pushes
        return mine == (books.version, books.low_water, books.pushes) and (
            self._state.ledger.entries() == books.ledger
        )

    def unpin_moment(self, moment: Moment) -> None:
        """Let go of what was kept of a moment."""
        with self._state.lock:
            moment.parameters.unpin(moment.name)

    def is_of_this_life(self, moment: Moment) -> bool:
        """Tell whether the parameters are still those that were pinned: the pin has kept them."""
        return self._state.life == moment.life

    def books(self, cut: str) -> tuple[ModelSpec, ShardBooks]:
        """Return the model and the books of a pinned cut."""
        with self._state.lock:
            books = self.pinned_as(cut)
            return self._state.held().spec, books

    def chunks(self, cut: str, version: int | None = None) -> list[tuple[ChunkKey, Chunk]]:
        """Return the chunks of a pinned cut ("": now) that changed after `version` (None: all).

        Nobody writes to the arrays of a cut. Raises NotPinned.
        """
        with self._state.lock:
            if cut:
                self.pinned_as(cut)
            return list(self._state.held().dense.changed_since(version, cut))

    def pinned_rows(self, cut: str, table: str) -> int:
        """Return how many rows a table had. Raises NotPinned."""
        with self._state.lock:
            self.pinned_as(cut)
            return self._state.held().tables[table].pinned_rows(cut)

    def rows_of(self, cut: str, table: str, numbers: Ints) -> RowBlock:
        """Return the rows of these numbers as a pinned cut has them. Raises NotPinned."""
        held = self._state.held()
        try:
            return held.tables[table].rows(cut, numbers)
        except KeyError as error:
            raise self.not_pinned(cut) from error

    def rows(self, cut: str, table: str, block_rows: int) -> Iterator[RowBlock]:
        """Yield the rows of a pinned cut, in blocks."""
        start = 0
        while True:
            try:
                block = self._state.held().block(table, cut, start, start + block_rows)
            except KeyError as error:
                raise EdlError(f"cut {cut!r} was let go while it was read") from error
            if block is None:
                return
            yield block
            start += block_rows
