"""The replicas of a launched job, as somebody else's trainer meets them.

It saves and loads through edl.launch (versioned, atomic, checksummed; the same version on every
rank), together with the random states of all ranks. A SIGTERM to any replica is known to all of
them between the same two optimizer steps, where they save and end with DRAINED. Rank 0 tells the
speed and what is left.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from torch import distributed

from .. import launch
from ..adaptive import collective, rng, speed
from ..common.clock import MonotonicClock
from ..common.errors import CheckpointError, EdlError, UsageError
from ..nn import tables


class Replicas:
    """This process among the replicas of its round. Made when torch.distributed is initialised."""

    def __init__(self) -> None:
        together = distributed.is_available() and distributed.is_initialized()
        self.replicas = distributed.get_world_size() if together else 1
        self.rank = distributed.get_rank() if together else 0
        self._control = collective.of_all() if together else collective.Control()
        self._seed = torch.initial_seed() & 0xFFFFFFFF
        self._preemption = collective.preemption()
        self._speed = speed.Speed(MonotonicClock())

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as the word to make room."""
        self._preemption.install()

    def stepped(self, records: int, left: int) -> bool:
        """Note an optimizer step of so many records; `left` are still to come, of all epochs.

        Tells whether to make room now. All replicas call it after each step.
        """
        self._speed.step(records, left)
        flags, _ = self._control.exchange((self._preemption.requested,))
        return flags[0]

    def save(
        self, state: dict[str, Any], random: dict[str, Any] | None = None, **told: Any
    ) -> None:
        """Save a state, and the random states of all ranks, after the same step on all of them.

        `random`: that of this rank, if not the present one. Raises CheckpointError on every replica
        where rank 0 could not write.
        """
        random_states = self._control.gather(random or rng.state())
        problem = None
        try:
            launch.save({**state, "random": random_states}, **told)
        except (EdlError, OSError) as error:
            problem = f"cannot save: {error}"
        if problem := self._control.broadcast(problem):
            raise CheckpointError(problem)

    def go_on_randomly(self, saved: list[dict[str, Any]], step: int) -> None:
        """Take over this rank's random states.

        Those of another number of replicas say nothing of this one: then all begin anew, with what
        depends on the step and the rank.
        """
        rng.take_over(saved, self.rank, self.replicas, self._seed, step)

    def leave(self) -> NoReturn:
        """End this process for the next round, when all replicas have come so far."""
        self._control.gather(None)
        launch.leave()


def check(who: str, model: torch.nn.Module | None = None) -> None:
    """Check that this process was launched, and that the model is one for replicas.

    Raises UsageError where it is not.
    """
    if not os.environ.get("EDL_CHECKPOINT_PATH"):
        raise UsageError(
            f"{who} works in a script that `edl launch` has started, or where EDL_CHECKPOINT_PATH "
            "names a folder. Parameter servers (`edl train`) make no sense for it: every replica "
            "has the whole model."
        )
    if model is not None and tables(model):
        raise UsageError(
            f"{who} trains a model that each replica has as a whole, and the tables of "
            "edl.nn.Embedding live on parameter servers, which `edl launch` does not have: use "
            "torch.nn.Embedding, or train by `edl train`."
        )
