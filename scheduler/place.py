"""The place where jobs are seen and changed: this machine, or a cluster. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..common import finite
from ..common.errors import UsageError
from ..common.foreign import must_be, parse
from .cluster import Node
from .jobs import Job, Plan

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Seen:
    """The jobs and nodes to be scheduled. `ignored`: what, by job, was not believed, and why."""

    jobs: list[Job]
    nodes: list[Node]
    ignored: dict[str, str]


class Place(Protocol):
    """A place where jobs are seen and changed, and the last plan is kept."""

    def look(self) -> Seen:
        """Return what there is now."""
        ...

    def act(self, plan: Plan, seen: Seen, tell: Tell) -> None:
        """Change the jobs that the plan changes; what fails is told, and tried again next time."""
        ...

    def keep(self, plan: dict[str, Any], tell: Tell) -> None:
        """Keep a plan (`read_plan`) for whoever asks."""
        ...


def seconds(time: str) -> float:
    """Return a time in RFC 3339 as s since the epoch. Raises UsageError."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except ValueError as error:
        raise UsageError(f"{time!r} is no time: write 2026-12-24T18:00:00Z.") from error


def write_plan(plan: dict[str, Any]) -> str:
    """Return a plan as the text that `read_plan` takes."""
    return finite.dumps(plan, indent=1)


def read_plan(text: str | bytes, where: str) -> dict[str, Any]:
    """Return a plan that was kept: {"at": s since the epoch, "jobs": [{name, held, workers, …}]}.

    Under "ignored" it says by job what was not believed, and why. Raises UsageError, which names
    `where`, for what is no plan.
    """
    try:
        values = finite.restored(parse(text))
        rows = [{"name": str, "workers": int, "why": str}]
        must_be(values, {"at": int, "jobs": rows, "ignored": dict})
    except ValueError as error:
        raise UsageError(
            f"{where} is no plan: {error}. `edl schedule serve` writes it anew."
        ) from error
    found: dict[str, Any] = values
    return found
