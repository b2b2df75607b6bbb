"""A job as it was seen, and the requests that are to be made for it (decide.py). Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .api import Object
from .masters import Memory


@dataclass(frozen=True)
class Action:
    """One request. A patch with a resourceVersion is refused where the object has changed since."""

    verb: str  # create, patch or delete
    kind: str
    name: str
    body: Object = dataclasses.field(default_factory=dict)
    subresource: str = ""
    uid: str = ""  # of what is deleted
    grace_s: int | None = None  # None: its own


@dataclass(frozen=True)
class Seen:
    """An EdlJob and what there is of its objects. `others`: None where nobody has looked."""

    job: Object
    pods: Sequence[Object]
    config: Object | None
    status: Object | None
    others: Mapping[str, Object | None] | None = None


@dataclass(frozen=True)
class Plan:
    """The requests to be made for one job, in order, and what is remembered of it."""

    actions: list[Action]
    memory: Memory
    again_s: float | None = None  # look again then, whatever happens
    over: bool = False  # nothing is to be done for it any more
