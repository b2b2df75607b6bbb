"""A latecomer keeps what the steps come to, and applies them once the state is here."""

from __future__ import annotations

import logging
from collections import deque
from typing import Generic

from ..trainer import GroupTrainer, StepT
from .round import Broken, Round
from .state_keeper import StateKeeper

log = logging.getLogger(__name__)

_KEPT_STEPS = 64  # at most; then the group waits for this member
_LOOK_S = 0.1  # who waits for the state looks so often whether the round is over


class CatchUp(Generic[StepT]):
    """The steps of a round for a member that may lack its state: applied at once, or else later."""

    def __init__(self, round_: Round, trainer: GroupTrainer[StepT], keeper: StateKeeper) -> None:
        self._round, self._trainer, self._keeper = round_, trainer, keeper
        self._fetch = keeper.fetch(round_)
        self._kept: deque[StepT] = deque()

    def apply(self, step: StepT) -> None:
        """Apply the step, or keep it until the state is here."""
        if self._fetch is None:
            self._trainer.commit(step)
            return
        self._kept.append(self._trainer.keep(step))
        self._look(wait=len(self._kept) >= _KEPT_STEPS)

    def wait(self) -> None:
        """Wait until the state of now is here.

        Raises Broken where it cannot be had.
        """
        self._look(wait=True)

    def close(self) -> None:
        """Give up waiting for the state."""
        if self._fetch is not None:
            self._fetch.give_up()

    def _look(self, wait: bool) -> None:
        fetch = self._fetch
        if fetch is None:
            return
        while wait and not self._round.is_broken and not fetch.is_over(_LOOK_S):
            pass
        if not fetch.is_over(0.0):
            return
        if fetch.error is not None:
            raise Broken from fetch.error
        fetch.unpack()
        self._fetch = None
        self._round.is_to_change = True
        kept = len(self._kept)
        while self._kept:
            self._trainer.commit(self._kept.popleft())
        step = self._keeper.version
        log.info("round=%d -> healed step=%d kept=%d", self._round.number, step, kept)
