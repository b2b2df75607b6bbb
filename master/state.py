"""The pure state machines as JSON values, and back: what a compacted journal starts from.

`dump` and `load` carry all fields of an object, whatever they are, so that a field that is added
tomorrow is carried too; they know the few classes named in `_KNOWN` and refuse others. A queue is
made small first: the tasks of an opened epoch that nobody has touched are a pure function of the
plan, so they are ranges of ids, and retired tasks are what is not named at all.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Any

from .endings import Ending
from .evaluation import Round
from .membership import Member, Membership
from .plan import Kind, Plan
from .replicas import Phase, Replicas, Slot
from .task_queue import (
    _FRESH,
    _RANKS,
    UNPLANNED_IDS,
    Failure,
    Quarantine,
    State,
    Task,
    TaskQueue,
)

_KNOWN: dict[str, Any] = {
    c.__name__: c
    for c in (Ending, Failure, Kind, Member, Phase, Quarantine, Round, Slot, State, Task)
}
_PLAIN = (int, str, float, bool, type(None))
_LISTS: dict[str, Any] = {c.__name__: c for c in (tuple, set, frozenset, deque)}
_MAPPINGS: dict[str, Any] = {c.__name__: c for c in (dict, Counter, OrderedDict)}
# What does not change in the course of a job: its maker gives it again.
_GIVEN = {
    TaskQueue: ("plan", "tolerance"),
    Membership: ("_lease_s",),
    Replicas: ("_relaunches", "_name"),
}


def dump(value: Any) -> Any:
    """A value as JSON values: containers and enums by name, dataclasses by what is not default."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    name = kind.__name__
    if isinstance(value, Enum):
        return {name: value.value}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [dump(each) for each in value]
    if name in _LISTS:
        return {name: [dump(each) for each in value]}
    if name in _MAPPINGS:
        return {name: [[dump(key), dump(each)] for key, each in value.items()]}
    if name in _KNOWN and dataclasses.is_dataclass(value):
        told = ((field, getattr(value, field), default) for field, default in _fields(kind))
        return {name: {field: dump(now) for field, now, default in told if now != default}}
    raise TypeError(f"{name} cannot stand in the state of the books")


def load(value: Any) -> Any:
    """What `dump` was given."""
    if isinstance(value, list):
        return [load(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    if name == "bytes":
        return base64.b64decode(content)
    if name in _LISTS:
        return _LISTS[name](load(each) for each in content)
    if name in _MAPPINGS:
        return _MAPPINGS[name]({load(key): load(each) for key, each in content})
    if isinstance(content, dict):  # a dataclass
        return _KNOWN[name](**{key: load(each) for key, each in content.items()})
    return _KNOWN[name](content)


@functools.cache
def _fields(known: Any) -> list[tuple[str, Any]]:
    """Fields with their defaults, but those that do not count for equality: they are for the eye."""
    defaults = []
    for each in dataclasses.fields(known):
        made = each.default_factory
        default = each.default if made is dataclasses.MISSING else made()
        if each.compare:
            defaults.append((each.name, default))
    return defaults


def dump_fields(machine: Any) -> dict[str, Any]:
    """All fields of a state machine, but those that its maker gives."""
    given = _GIVEN.get(type(machine), ())
    return {name: dump(value) for name, value in vars(machine).items() if name not in given}


def load_fields(machine: Any, values: dict[str, Any]) -> None:
    """Set them in a machine that was just made."""
    for name, value in values.items():
        setattr(machine, name, load(value))


def dump_queue(queue: TaskQueue) -> dict[str, Any]:
    """The queue; the untouched tasks as [first id, one past the last, group]."""
    waiting = set(queue._todo)
    fresh: list[list[Any]] = []
    for task in queue.tasks.values():
        if _fresh_entry(task) not in waiting or task != _untouched(task):
            continue
        waiting.discard(_fresh_entry(task))
        if fresh and fresh[-1][1:] == [task.id, task.group]:
            fresh[-1][1] += 1
        else:
            fresh.append([task.id, task.id + 1, task.group])
    untouched = {number for first, end, _ in fresh for number in range(first, end)}
    tasks = {number: task for number, task in queue.tasks.items() if number not in untouched}
    values = dump_fields(queue)
    return {**values, "tasks": dump(tasks), "_todo": dump(sorted(waiting)), "fresh": fresh}


def load_queue(queue: TaskQueue, values: dict[str, Any]) -> None:
    """Set the fields of a queue that was just made, of the same plan."""
    fields = dict(values)
    fresh = fields.pop("fresh")
    load_fields(queue, fields)
    for first, end, group in fresh:
        for task in _planned(queue.plan, first, end):
            task.group = group
            queue.tasks[task.id] = task
            queue._todo.append(_fresh_entry(task))
    heapq.heapify(queue._todo)


def _fresh_entry(task: Task) -> tuple[int, int, int]:
    return (_RANKS + _FRESH, 0, task.id)


def _untouched(task: Task) -> Task | None:
    """The task as it was made, where the plan can make it again."""
    if task.id >= UNPLANNED_IDS:
        return None
    made = (task.id, task.kind, task.source, task.start, task.end, task.epoch)
    return Task(*made, group=task.group)


def _planned(plan: Plan, first: int, end: int) -> Iterable[Task]:
    per_epoch = max(1, len(plan.pieces))
    while first < end:
        epoch = (first - plan.first_id) // per_epoch
        start = plan.first_id_of(epoch)
        stop = min(end, start + per_epoch)
        for number, piece in enumerate(plan.epoch(epoch), start):
            if first <= number < stop:
                yield Task(number, plan.kind, *piece, epoch=epoch)
        first = stop
