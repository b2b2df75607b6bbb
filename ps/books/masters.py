"""The orders of a job's masters to one shard: fences, and tasks that may be forgotten.

A master of a higher epoch has taken over: it ends what an older one has begun here, and the older
one is refused from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...common.errors import Fenced
from .pins import Pins
from .state import ShardState


class Masters:
    """The masters of a shard's job, of which the one with the highest epoch is obeyed.

    Every method may be called from any thread.
    """

    def __init__(self, state: ShardState, pins: Pins) -> None:
        self._state = state
        self._pins = pins
        self._epoch = 0

    def meet(self, epoch: int) -> None:
        """Note that a master of this epoch calls.

        Raises Fenced where a later one has called.
        """
        with self._state.lock:
            self._meet(epoch)

    def _meet(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise Fenced(
                f"a master of epoch {self._epoch} has taken over: "
                f"this one, of epoch {epoch}, must end"
            )
        if 0 < self._epoch < epoch:  # nobody will let go of these
            self._pins.let_go()
        self._epoch = epoch

    def fence(self, attempts: Mapping[int, int], master_epoch: int) -> dict[int, int]:
        """Raise attempts; return the positions applied, without those of retired tasks."""
        state = self._state
        with state.lock:
            self._meet(master_epoch)
            for task, attempt in attempts.items():
                state.ledger.fence(task, attempt)  # at once: what is under way is the last
            state.wake_all()
            state.await_steps(lambda: state.applying.keys().isdisjoint(attempts))
            applied = {task: state.ledger.fence(task, a) for task, a in attempts.items()}
            return {task: position for task, position in applied.items() if position is not None}

    def retire(self, low_water: int) -> None:
        """Forget tasks below the mark."""
        with self._state.lock:
            self._state.ledger.retire(low_water)
