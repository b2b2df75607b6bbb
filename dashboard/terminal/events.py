"""The events that the state machine of `edl top` takes, and its effects (machine.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...jobs.job import Status
from ..model import Snapshot

# -- events


@dataclass(frozen=True)
class Key:
    """A key, by its character or its word (keys.py)."""

    name: str


@dataclass(frozen=True)
class Listed:
    """The jobs of the place."""

    jobs: Sequence[Status]


@dataclass(frozen=True)
class Seen:
    """A job that is open, as it is now."""

    job: str
    snapshot: Snapshot


@dataclass(frozen=True)
class Lines:
    """The next lines of the log that is open; `over`: no more come."""

    of: str
    lines: Sequence[str] = ()
    over: bool = False


@dataclass(frozen=True)
class Told:
    """A sentence for the user: how an action went, or what cannot be read now."""

    text: str


@dataclass(frozen=True)
class Height:
    """The lines that the screen has now."""

    lines: int


Event = Key | Listed | Seen | Lines | Told | Height

# -- effects


@dataclass(frozen=True)
class Open:
    """Watch this job, and no list."""

    job: str


@dataclass(frozen=True)
class Close:
    """Watch the list again, and no job."""


@dataclass(frozen=True)
class Follow:
    """Follow the log of a process of the job that is open; None: let go of it."""

    role: str | None
    index: int | None = None
    of: str = ""


@dataclass(frozen=True)
class Act:
    """Do something to a job (dashboard/actions.py has what)."""

    job: str
    asked: Mapping[str, Any]


@dataclass(frozen=True)
class Quit:
    """End."""


Effect = Open | Close | Follow | Act | Quit
