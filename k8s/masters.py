"""Memory of a job's masters: how long they live, whether their image comes. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..common.retry import Backoff
from . import observe
from .api import Object

SOON_S = 60.0  # of its start: a master that ends so soon will do so again
IMAGE_S = 120.0  # a master whose image cannot be pulled for so long is given up
PAUSES = Backoff(2.0, 300.0)


@dataclass(frozen=True)
class Memory:
    """The part of a controller's knowledge that it may forget. Times are by its own clock."""

    uid: str = ""
    master: str = ""  # the newest that lived
    since: float = 0.0  # it does
    deaths: int = 0  # in a row, each soon after its start
    not_before: float = 0.0
    refused: str = ""  # by the API server, at the last try
    unmade: int | None = None  # the number of a master whose pod was refused
    pulls: float | None = None  # since when its image cannot be pulled
    unpulled: str = ""  # why the image of the last one was given up
    generation: int = 0  # of the spec that it was made of
    going: float | None = None  # since when a master that is to be suspended does not end


def mended(memory: Memory, generation: int, now: float) -> Memory:
    """Return the memory under a spec of this generation, whose image may be another one."""
    if memory.unpulled and generation != memory.generation:
        return dataclasses.replace(memory, unpulled="", not_before=now)
    return memory


def lives(memory: Memory, pod: Object, generation: int, now: float) -> tuple[Memory, float | None]:
    """Return what is remembered of a master that is there, and in how many seconds to look again.

    Where its image cannot be had, the memory has no `master`, but says why in `unpulled`.
    """
    name, state = pod["metadata"]["name"], observe.observe(pod)
    if name != memory.master:
        memory = dataclasses.replace(memory, master=name, since=now, pulls=None)
    elif observe.has_run(pod) and now - memory.since >= SOON_S:
        memory = dataclasses.replace(memory, deaths=0)
    if isinstance(state, observe.Running):
        return dataclasses.replace(memory, unpulled="", pulls=None), None
    if not (isinstance(state, observe.Waiting) and state.image):
        return memory, None
    since = now if memory.pulls is None else memory.pulls
    left_s = 0.0 if state.hopeless else since + IMAGE_S - now
    if left_s > 0:
        return dataclasses.replace(memory, pulls=since), left_s
    memory = dataclasses.replace(
        memory,
        master="",
        pulls=None,
        unpulled=state.why,
        generation=generation,
        not_before=now + PAUSES.longest_s,
    )
    return memory, None


def died(memory: Memory, had_run: bool, now: float) -> Memory:
    """Return what is remembered once a master is gone; the next but one that dies soon waits."""
    soon = now - memory.since < SOON_S or not had_run
    deaths = memory.deaths + 1 if soon else 0
    return dataclasses.replace(
        memory, master="", deaths=deaths, not_before=now + PAUSES.after(deaths - 1)
    )
