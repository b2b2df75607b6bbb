"""The fields by which an event of a job says whose start or end it tells. Pure."""

from __future__ import annotations

from typing import Protocol

from ..durable.schema import Json


class Whose(Protocol):
    """A process of a job, as runtime and membership know it."""

    @property
    def role(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def incarnation(self) -> str: ...


def about(kind: str, who: Whose, **more: Json) -> dict[str, Json]:
    """Return the fields of an event about a process. `kind`: start or death."""
    whose = {"role": who.role, "index": who.index, "incarnation": who.incarnation}
    return {"kind": kind, **whose, **{name: value for name, value in more.items() if value}}


def end_of(verdict: str, code: int) -> str:
    """Return how a process ended, in a word: killed, preempted, finished or failed."""
    if verdict == "preempted" and code < 0:
        return "killed"
    return verdict or "finished"
