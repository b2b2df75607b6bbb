"""The words between a writer and a logger: what a run is, and what a logger can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .core import Known, Told

State = dict[str, Any]  # what a logger keeps with its cursor: JSON values

DONE, FAILED, STOPPED = "done", "failed", "stopped"


@dataclass(frozen=True)
class Run:
    """One run, of one job and of those that go on with it.

    `folder`: of files without another place. `began`: the job's start, in seconds since 1970.
    """

    id: str
    job: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    folder: Path
    began: float


class Logger(Protocol):
    """Something that a run is written to. What it raises is told, and it is opened anew later."""

    def open(self, run: Run, state: State) -> Known | None:
        """Go on with the run, or begin it. Return what it has of each series.

        None: that cannot be known, so that what was under way at a kill is not told again. `state`:
        as `state()` was when its cursor was kept; {}: there is none.
        """

    def write(self, told: Sequence[Told]) -> bool:
        """Write it all, in this order. Return whether it is kept now; else it is by the next."""

    def state(self) -> State:
        """Return what `open` is to be given."""

    def finish(self, outcome: str) -> None:
        """End the run: DONE, FAILED, or STOPPED, which may be gone on with. All is kept then."""
