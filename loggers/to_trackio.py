"""trackio as a logger: a run of its local store, or of the Space or server that it is told.

It writes from a thread of its own, so that what it was given is kept only by the next time. The
local store can say what it has of each series; a Space or a server cannot.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .core import EVENTS, Known, Told
from .logger import Run, State

_PROJECT = "edl"
_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class Trackio:
    """A run of trackio, in the project of TRACKIO_PROJECT or `edl`."""

    def __init__(self) -> None:
        self._run: Any = None
        self._told: dict[str, int] = {}
        self._project = self._name = ""

    def open(self, run: Run, _state: State) -> Known | None:
        import trackio

        self._project, self._name = os.environ.get("TRACKIO_PROJECT") or _PROJECT, run.id
        known = self._known()
        self._run = trackio.init(
            self._project,
            name=run.id,
            config={**run.params, **run.tags},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return known

    def write(self, told: Sequence[Told]) -> bool:
        for one in told:
            self._told |= dict.fromkeys(one.series, one.step)
            self._run.log({EVENTS: one.text} if one.text else dict(one.values), step=one.step)
        return False

    def state(self) -> State:
        return {}

    def finish(self, _outcome: str) -> None:
        self._run.finish()
        known = self._known()  # what it could not keep it has only warned of
        if known is not None and any(known.get(k, -1) < step for k, step in self._told.items()):
            raise OSError("trackio has not kept all that it was told: logs/loggers.log may say why")

    def _known(self) -> Known | None:
        """Return the last step of each series; None where the store is elsewhere."""
        if any(os.environ.get(name) for name in _REMOTE):
            return None
        from trackio.sqlite_storage import SQLiteStorage

        last: dict[str, int] = {}
        for row in SQLiteStorage.get_logs(self._project, self._name):
            for name in row.keys() - {"step", "timestamp"}:
                last[name] = max(last.get(name, -1), int(row["step"]))
        return last
