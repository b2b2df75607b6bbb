"""Masters of one EdlJob: how long they live, whether their image comes, why none is there. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.retry import Backoff
from . import names, observe, oom
from .api import Object
from .conditions import Problem
from .job_status import lives

IDLE_S = 60.0  # no worker for so long is news: between epochs and at both ends it is usual
SOON_S = 60.0  # of its start: a master that ends so soon will do so again
IMAGE_S = 120.0  # a master whose image cannot be pulled for so long is given up
PAUSES = Backoff(2.0, 300.0)
_DIGITS = 16  # of a template's hash


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
    idle: float | None = None  # since when no worker is ready, though the job runs
    idle_told: bool = False
    late: float | None = None  # since when it is told to stop at its deadline


def mended(memory: Memory, generation: int, now: float) -> Memory:
    """Return the memory under a spec of this generation, whose image may be another one."""
    if memory.unpulled and generation != memory.generation:
        return dataclasses.replace(memory, unpulled="", not_before=now)
    return memory


def seen(memory: Memory, pod: Object, generation: int, now: float) -> tuple[Memory, float | None]:
    """Return what is remembered of a master that is there, and in how many seconds to look again.

    Where its image cannot be had, the memory has no `master`, but says why in `unpulled`, unless
    the spec has changed since the master came.
    """
    name, state = pod["metadata"]["name"], observe.observe(pod)
    if name != memory.master:
        memory = dataclasses.replace(
            memory, master=name, since=now, pulls=None, generation=generation
        )
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
    memory = dataclasses.replace(memory, master="", pulls=None)
    if generation != memory.generation:  # the spec was changed meanwhile: it is tried at once
        return dataclasses.replace(memory, not_before=now), None
    again = now + PAUSES.longest_s
    return dataclasses.replace(memory, unpulled=state.why, not_before=again), None


def replaced(memory: Memory) -> Memory:
    """Return what is remembered once a master is deleted for one of another template: no death."""
    return dataclasses.replace(memory, master="", pulls=None, unpulled="")


def is_outdated(pod: Object, template: Object) -> bool:
    """Tell whether a master's pod has not begun, and the spec asks for another one by now.

    A pod of an earlier edl, which says nothing of its template, is left alone.
    """
    made_of = (pod["metadata"].get("annotations") or {}).get(names.TEMPLATE_ANNOTATION)
    return made_of not in (None, _digest(template)) and not observe.has_begun(pod)


def _digest(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def died(memory: Memory, had_run: bool, now: float) -> Memory:
    """Return what is remembered once a master is gone; the next but one that dies soon waits."""
    soon = now - memory.since < SOON_S or not had_run
    deaths = memory.deaths + 1 if soon else 0
    return dataclasses.replace(
        memory, master="", deaths=deaths, not_before=now + PAUSES.after(deaths - 1)
    )


def idle(memory: Memory, is_idle: bool, now: float) -> tuple[Memory, bool, float | None]:
    """Return what is remembered of a job without workers, and whether that is news by now.

    The third says in how many seconds it will be.
    """
    if not is_idle:
        return dataclasses.replace(memory, idle=None, idle_told=False), False, None
    since = now if memory.idle is None else memory.idle
    left_s = since + IDLE_S - now
    after = dataclasses.replace(memory, idle=since, idle_told=left_s <= 0)
    return after, left_s <= 0 and not memory.idle_told, left_s if left_s > 0 else None


def last_ended(masters: Sequence[Object]) -> Object | None:
    """Return the newest of these masters, old to new, that has ended."""
    return next((pod for pod in reversed(masters) if not lives(pod)), None)


def problem(memory: Memory) -> Problem | None:
    """Return why no master can be made, None where one can."""
    if not memory.unpulled:
        return None
    return Problem(
        "ImageNotPulled",
        f"the master {memory.unpulled}, for {IMAGE_S:.0f} s or for ever: name another image, or "
        f"mend the registry's access; tried again after {PAUSES.longest_s:.0f} s",
    )


def note(
    memory: Memory,
    masters: Sequence[Object],
    living: Sequence[Object],
    told: Mapping[str, Any] | None,
) -> str:
    """Tell why there is no master, or why this one is another; "" where there is nothing to tell.

    `masters` are all that there are, old to new, `living` those that serve; `told` is the status
    that one of them has written.
    """
    if not living and memory.deaths > 1:
        return (
            f"the master ended {memory.deaths} times in a row within {SOON_S:.0f} s of its start"
            f"{_last_words(masters)}; the next one is made after a pause"
        )
    last = last_ended(masters)
    if last is None or not oom.ran_out(last):
        return ""
    if living and observe.has_run(living[-1]) or told:
        return ""
    limit = oom.limit_of(last)
    now = oom.limit_of(living[-1]) if living else ""
    return (
        f"the master ran out of memory ({limit or 'of its node'})"
        f"{f'; this one has {now}' if now else '; another one comes'}"
    )


def _last_words(masters: Sequence[Object]) -> str:
    for pod in reversed(masters):
        state = observe.observe(pod)
        if isinstance(state, observe.Ended):
            how = state.why or (
                f"exit code {state.code}" if state.code >= 0 else f"signal {-state.code}"
            )
            if oom.ran_out(pod):
                limit = oom.limit_of(pod)
                how += f" ({limit}: give it more in spec.master.resources)" if limit else ""
            said = observe.last_words(pod)
            return f", the last one with: {how}{f': {said}' if said else ''}"
    return ""


def pod(name: str, number: int, template: Object, asked: Object, owner: Object) -> Object:
    """Make the pod of the job's master of this number, with an owner reference.

    `asked` is the template that the spec asks for, without what `template` has grown by.
    """
    about = template["metadata"]
    about = {
        **about,
        "name": name,
        "labels": {**about["labels"], names.INDEX_LABEL: str(number)},
        "annotations": {
            **(about.get("annotations") or {}),
            names.TEMPLATE_ANNOTATION: _digest(asked),
        },
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}
