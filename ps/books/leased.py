"""The master's word of its tasks, which it is asked for where a push names one not heard of."""

from __future__ import annotations

import time
from collections.abc import Callable

from .answers import NotYet
from .ledger import Span
from .parameters import Invalid
from .state import ShardState

_WORD_S = 10.0  # for the master's word, which a heartbeat brings at once


class LeasedTasks:
    """The master's word of one shard's tasks."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._ask: Callable[[], None] | None = None  # the master, which tasks there are
        self.asks = self._told = 0  # how often; up to which of these it has answered

    def expect(self, ask: Callable[[], None]) -> None:
        """Apply, from now on, only spans of tasks that the master has made.

        `ask` is called, under the lock, when it must be heard of a task: `tell` then follows.
        """
        with self._state.lock:
            self._ask, self._state.ledger.tasks_below = ask, 0

    def tell(self, below: int | None, asks: int) -> None:
        """Take note that the master has made the tasks below this number.

        `asks`: what that was when it was asked.
        """
        with self._state.lock:
            self._state.ledger.tasks_below, self._told = below, max(self._told, asks)
            self._state.changed.notify_all()

    def must_be_leased(self, span: Span) -> None:
        """Wait, under the lock, for the master's word that a span's task is leased.

        Raises Invalid where it has not leased this, NotYet where it says nothing.
        """
        if span.attempt == 1 or not self._told:
            self._hear_of(span.task)
        below = self._state.ledger.tasks_below
        if below is None:
            return
        if span.attempt > 1:
            raise Invalid(
                f"task {span.task} was never leased under attempt {span.attempt}: server "
                f"{self._state.index} has been told of no such attempt. Push under the lease's"
            )
        if span.task >= below:
            raise Invalid(f"there is no task {span.task}: the master has made those below {below}")

    def _hear_of(self, task: int) -> None:
        """Return once the master has answered a question of now. Raises NotYet."""
        self.asks += 1
        mine, until = self.asks, time.monotonic() + _WORD_S
        if self._ask is not None:
            self._ask()
        while self._told < mine:
            if not self._state.changed.wait(max(0.0, until - time.monotonic())):
                raise NotYet(
                    f"server {self._state.index} has not heard from the master yet "
                    f"whether there is a task {task}: push again"
                )
