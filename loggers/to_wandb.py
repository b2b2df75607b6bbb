"""Weights & Biases as a logger: a run of this id, resumed where it is there.

Its own step must rise with each row, so that it is a little above the version where several rows
are of one; the curves are drawn over `version`. What it has cannot be asked (offline there is
nobody to ask), so that nothing is told again that may be there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .core import EVENTS, Told
from .logger import DONE, Run, State

_PROJECT = "edl"
_FLUSH = "x_transaction_log_flush_interval"  # 15 s else, which a kill of this process would cost


class Wandb:
    """A run of wandb, in the project of WANDB_PROJECT or `edl`."""

    def __init__(self) -> None:
        self._run: Any = None
        self._state: State = {}

    def open(self, run: Run, state: State) -> None:
        import wandb

        # Where the run began, so that one folder has all its offline parts.
        self._state = {"dir": os.environ.get("WANDB_DIR") or state.get("dir") or os.getcwd()}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            id=run.id,
            name=run.id,
            resume="allow",
            dir=self._state["dir"],
            reinit="create_new",
            settings=_settings(wandb.Settings),
        )
        self._run.config.update({**run.params, **run.tags}, allow_val_change=True)
        self._run.define_metric("version", hidden=True)
        self._run.define_metric("*", step_metric="version")

    def write(self, told: Sequence[Told]) -> bool:
        for one in told:
            row = {EVENTS: one.text} if one.text else dict(one.values)
            self._run.log({**row, "version": one.step}, step=one.row, commit=True)
        return True

    def state(self) -> State:
        return self._state

    def finish(self, outcome: str) -> None:
        self._run.finish(exit_code=0 if outcome == DONE else 1)


def _settings(make: Any) -> Any:
    """Return its settings: no console, no figures of this machine, and written out each second."""
    wanted = {"console": "off", "silent": True, "x_disable_stats": True, _FLUSH: 1.0}
    return make(**{name: value for name, value in wanted.items() if name in make.model_fields})
